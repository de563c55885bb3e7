"""How decisions and tables look on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from autotune.vocabulary.table import Decision, PublishedTable, Route, Verdict


def console() -> Console:
    """Standard output; a pipe has no width of its own, and cutting names at 80 columns would lose them."""
    own = Console(highlight=False, markup=False)
    return own if own.is_terminal else Console(highlight=False, markup=False, width=200)


def print_decision(decision: Decision) -> None:
    """What to run, why, and what it rests on."""
    out = console()
    route = decision.route
    if route is None:
        out.print(
            f"fallback ({decision.reason.value if decision.reason else 'none'}): vLLM's own choice stays"
        )
    elif route.verdict is Verdict.WIN:
        out.print(f"{route.winner}")
    else:
        out.print(f"{route.winner} (the baseline: nothing beat it)")
    out.print(decision.detail)
    if decision.static:
        totals = ", ".join(f"{b} {t:.0f} us" for b, t in decision.static.total_us.items())
        out.print(f"static choice for {decision.static.profile}: {decision.static.backend} ({totals})")
    if decision.environment:
        revision = f"revision {decision.revision}, " if decision.revision is not None else ""
        digest = f"digest {decision.table_digest[:12]}, " if decision.table_digest else ""
        out.print(f"{revision}{digest}{decision.environment}; from {decision.source}")


def print_table(published: PublishedTable, source: str) -> None:
    """One line a route: tokens, winner, against the baseline, interval, verdict, microseconds."""
    table = published.table
    assert table is not None
    out = console()
    revision = f"revision {published.revision}" if published.revision is not None else "not published"
    out.print(f"{table.problem}, checkpoint {table.checkpoint}, {revision}, digest {table.digest[:12]}")
    out.print(f"{table.environment}; recorded {table.recording.last:%Y-%m-%d}; from {source}")
    view = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    view.add_column("tokens", justify="right", no_wrap=True)
    view.add_column("winner", overflow="fold")
    for heading in ("against the baseline", "at least (95%)", "verdict", "us", "baseline us"):
        view.add_column(heading, justify="left" if heading == "verdict" else "right", no_wrap=True)
    view.add_column("baseline", overflow="fold")
    for route in table.routes:
        view.add_row(*_cells(route))
    out.print(view)


def _cells(route: Route) -> tuple[str, ...]:
    tokens = str(route.last) if route.first == route.last else f"{route.first}..{route.last}"
    speed = (f"{route.speedup.median:.3f}x", f"{route.speedup.low:.3f}x") if route.speedup else ("", "")
    times = (f"{route.winner_timing.p50_us:.1f}", f"{route.baseline_timing.p50_us:.1f}")
    return (tokens, str(route.winner), *speed, route.verdict.value, *times, str(route.baseline))
