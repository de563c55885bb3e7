"""How tables look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from autotune.vocabulary.measurement import vllm_backends
from autotune.vocabulary.table import Route, RoutingTable, Verdict
from autotune.vocabulary.traffic import TrafficProfile


def render_table(table: RoutingTable) -> Table:
    """Token ranges, winner, against the baseline, interval, verdict."""
    view = Table(
        title=f"{table.problem}  {table.environment}",
        caption=f"table {table.digest[:12]}, recorded {table.recording.first:%Y-%m-%d}; times are "
        "microseconds per layer call, median; `at least` is the one-sided 95% bound",
        title_justify="left",
        caption_justify="left",
    )
    for name, justify in (
        ("tokens", "right"),
        ("winner", "left"),
        ("us", "right"),
        ("baseline", "left"),
        ("faster", "right"),
        ("at least", "right"),
        ("verdict", "left"),
    ):
        view.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for route in table.routes:
        won = route.verdict is Verdict.WIN
        view.add_row(
            span(route),
            str(route.winner) if won else str(route.baseline),
            f"{route.winner_timing.p50_us:.1f}",
            f"{route.baseline_timing.p50_us:.1f} {route.baseline.backend}",
            f"{route.speedup.median:.3f}" if route.speedup else "",
            f"{route.speedup.low:.3f}" if route.speedup else "",
            "[green]win[/]" if won else "no benefit",
        )
    return view


def render_static(table: RoutingTable, concurrencies: Sequence[int]) -> Table:
    """The best single backend per concurrency, for deployments that can take only one."""
    allowed = vllm_backends(table.checkpoint)
    view = Table(
        title="best single vLLM backend by concurrency (1,024 prompt and 256 output tokens a request)",
        title_justify="left",
    )
    view.add_column("concurrency", justify="right")
    view.add_column("backend")
    view.add_column("layer time over the profile, against the next best")
    for c in concurrencies:
        choice = table.static_choice(TrafficProfile.concurrency(c), allowed)
        if choice is None:
            view.add_row(str(c), "unknown", "its token counts are not all measured")
            continue
        others = sorted((us, name) for name, us in choice.total_us.items() if name != choice.backend)
        best = choice.total_us[choice.backend]
        versus = f"{others[0][0] / best:.3f}x {others[0][1]}" if others else "no other backend covers it"
        view.add_row(str(c), choice.backend, versus)
    return view


def span(route: Route) -> str:
    """`8` or `5..8`."""
    return str(route.last) if route.first == route.last else f"{route.first}..{route.last}"
