"""How routing tables look on a terminal: in 80 columns, and in a pipe, which follows COLUMNS."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autotune.choose.floor import floors_of
from autotune.vocabulary.measurement import vllm_backends
from autotune.vocabulary.table import Route, RoutingTable, Verdict
from autotune.vocabulary.traffic import TrafficProfile

_INDENT = 13
"""Columns left of a candidate's text: the width of the token counts and the gap after them."""


class TableView:
    """A routing table, laid out for whatever width it is printed at."""

    def __init__(self, table: RoutingTable) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _columns(self._table) if options.max_width >= _WHOLE else _stacked(self._table)


def render_table(table: RoutingTable) -> TableView:
    """Token counts with microseconds and verdict, then what runs and against what."""
    return TableView(table)


def _columns(table: RoutingTable) -> Group:
    """Two lines a route, the figures in columns."""
    lines: list[RenderableType] = [
        Text(str(table.problem), style="bold"),
        Text(str(table.environment)),
        Text(""),
        Text(
            _figures("tokens", "us", "baseline", "floor", "of floor", "faster", "at least", "verdict"),
            style="bold",
        ),
    ]
    for route, least in zip(table.routes, floors_of(table), strict=True):
        won = route.verdict is Verdict.WIN
        figures = _figures(
            span(route),
            f"{route.winner_timing.p50_us:.1f}",
            f"{route.baseline_timing.p50_us:.1f}",
            f"{least.us:.1f}" if least else "",
            f"{least.reached(route.winner_timing.p50_us):.0%}" if least else "",
            f"{route.speedup.median:.3f}" if route.speedup else "",
            f"{route.speedup.low:.3f}" if route.speedup else "",
            "",
        )
        lines.append(Text(figures).append("win" if won else "no benefit", style="green" if won else ""))
        runs = f"{route.winner}\nbaseline {route.baseline}" if won else f"baseline {route.baseline}"
        lines.append(Padding(Text(runs, style="dim"), (0, 0, 0, _INDENT), expand=False))
    return Group(*lines, Text(""), Text(_note(table), style="italic"))


def _stacked(table: RoutingTable) -> Group:
    """For terminals too narrow for columns: every figure named, what belongs to a route indented."""
    lines: list[RenderableType] = [
        Text(str(table.problem), style="bold", overflow="fold"),
        Text(str(table.environment)),
    ]
    for route, least in zip(table.routes, floors_of(table), strict=True):
        us = route.winner_timing.p50_us
        won = route.verdict is Verdict.WIN
        faster = f", {route.speedup.median:.3f} (at least {route.speedup.low:.3f})" if route.speedup else ""
        floor = f", floor {least.us:.1f} us ({least.reached(us):.0%} of it reached)" if least else ""
        verdict = Text("win" if won else "no benefit", style="green" if won else "")
        lines += [Text(""), Text(f"{span(route)}: ").append(verdict).append(faster)]
        for part in (
            f"{us:.1f} us, baseline {route.baseline_timing.p50_us:.1f} us{floor}",
            *([str(route.winner)] if won else []),
            f"baseline {route.baseline}",
        ):
            lines.append(Padding(Text(part, style="dim"), (0, 0, 0, 2), expand=False))
    return Group(*lines, Text(""), Text(_note(table), style="italic"))


def _note(table: RoutingTable) -> str:
    return (
        f"table {table.digest[:12]}, recorded {table.recording.first:%Y-%m-%d}; times are microseconds "
        "per layer call, median; `at least` is the one-sided 95% bound; `floor` is the time to read the "
        "weights of the experts touched or to multiply, whichever is longer; `of floor` is how much of that "
        'rate is reached; what the letters of a candidate mean: docs/measuring.md, "Reading a candidate"'
    )


_WIDTHS = (_INDENT - 2, 7, 8, 7, 8, 6, 8)
"""Of the columns before the verdict: with it and the gaps 79."""
_WHOLE = 79


def _figures(*texts: str) -> str:
    *numbers, verdict = texts
    columns = (f"{number:>{width}}" for number, width in zip(numbers, _WIDTHS, strict=True))
    return f"{'  '.join(columns)}  {verdict}"


def render_static(table: RoutingTable, concurrencies: Sequence[int]) -> Table:
    """The best single backend per concurrency, for deployments that can take only one."""
    allowed = vllm_backends(table.checkpoint)
    view = Table(
        title="best single vLLM backend by concurrency (1,024 prompt and 256 output tokens a request)",
        title_justify="left",
    )
    view.add_column("concurrency", justify="right")
    view.add_column("backend")
    view.add_column("by layer time over that traffic")
    for c in concurrencies:
        choice = table.static_choice(TrafficProfile.concurrency(c), allowed)
        if choice is None:
            view.add_row(str(c), "unknown", "its token counts are not all measured")
            continue
        others = sorted((us, name) for name, us in choice.total_us.items() if name != choice.backend)
        best = choice.total_us[choice.backend]
        versus = f"{others[0][0] / best:.3f}x as fast as {others[0][1]}" if others else "no other covers it"
        view.add_row(str(c), choice.backend, versus)
    return view


def span(route: Route) -> str:
    """`8` or `5..8`."""
    return str(route.last) if route.first == route.last else f"{route.first}..{route.last}"
