"""How decisions and published tables look on a terminal."""

from __future__ import annotations

from rich.console import Console

from autotune.cli.tables import render_table
from autotune.vocabulary.table import Decision, PublishedTable, Verdict


def console() -> Console:
    """Standard output, plain text; a pipe is as wide as COLUMNS says, 80 without it."""
    return Console(highlight=False, markup=False, emoji=False)


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
        totals = ", ".join(f"{b} {t / 1000:.1f} ms" for b, t in decision.static.total_us.items())
        out.print(
            f"static choice for {decision.static.profile}: {decision.static.backend} "
            f"(time of one layer over that traffic: {totals})"
        )
    if decision.environment:
        revision = f"revision {decision.revision}, " if decision.revision is not None else ""
        digest = f"digest {decision.table_digest[:12]}, " if decision.table_digest else ""
        out.print(f"{revision}{digest}{decision.environment}; from {decision.source}")


def print_table(published: PublishedTable, source: str) -> None:
    """Where the table comes from, and the table as `sweep` prints it."""
    table = published.table
    assert table is not None
    out = console()
    revision = f"revision {published.revision}" if published.revision is not None else "not published"
    out.print(f"checkpoint {table.checkpoint}, {revision}, from {source}")
    out.print(render_table(table))
