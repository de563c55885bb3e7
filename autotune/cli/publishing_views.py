"""How revisions and differences look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from autotune.db.revisions import Revision
from autotune.publish import DiffRow, Side


def print_revisions(revisions: Sequence[Revision]) -> None:
    """One line a revision; channels that point at it are named."""
    if not revisions:
        Console(stderr=True).print("Nothing is published yet. Publish a table with `autotune publish FILE`.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("revision", justify="right")
    for heading in ("channels", "gpu", "problem", "checkpoint", "table", "author", "when (UTC)", "reason"):
        table.add_column(heading, overflow="fold")
    for r in revisions:
        table.add_row(
            str(r.number), ", ".join(r.channels), r.environment.gpu, str(r.problem), r.checkpoint,
            r.table_digest[:12] if r.table_digest else "none", r.author,
            f"{r.created_at:%Y-%m-%d %H:%M}", r.reason,
        )  # fmt: skip
    _console().print(table)


def print_diff(before: str, after: str, rows: Sequence[DiffRow]) -> None:
    """One line a range of token counts; ranges where another thing runs are marked."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("")
    table.add_column(f"before ({before})", overflow="fold")
    table.add_column(f"after ({after})", overflow="fold")
    for row in rows:
        tokens = str(row.last) if row.first == row.last else f"{row.first}..{row.last}"
        table.add_row(tokens, "*" if row.changed else "", _side(row.before), _side(row.after))
    console = _console()
    console.print(table)
    changed = sum(row.changed for row in rows)
    console.print(f"{changed} of {len(rows)} ranges run something else (marked *).")


def _console() -> Console:
    # A pipe has no width of its own, and cutting names at 80 columns would lose them.
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=200)


def _side(side: Side) -> str:
    if side.answer == "fallback":
        return "fallback"
    if side.answer == "no_benefit":
        return f"baseline {side.winner}, {side.p50_us:.1f} us"
    return f"{side.winner}, {side.speedup:.3f}x (at least {side.low:.3f}x), {side.p50_us:.1f} us"
