"""How revisions and differences look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table

from autotune.db.keys import environment_digest
from autotune.db.revisions import Key, Revision
from autotune.publish import DiffRow, Side
from autotune.vocabulary.text import counted

_HEADINGS = ("revision", "date", "channels", "table", "author", "reason")


def print_revisions(revisions: Sequence[Revision], total: int, *, wide: bool = False) -> None:
    """A heading for each layer and environment, and one line a revision; the newest first.

    Args:
        total: how many there are at least; with none to show, whether something was left out.
        wide: whole reasons and the time of day, however wide that gets. Otherwise the reason is cut to
            what the terminal (or COLUMNS) leaves.
    """
    if not revisions:
        said = "Nothing is published yet. Publish a table with `autotune publish FILE`."
        if total:
            others = "1 revision is" if total == 1 else f"{total} revisions are"
            said = f"Nothing is published for this; {others} for something else. See `autotune revisions`."
        Console(stderr=True, highlight=False).print(said)
        return
    console = _console()
    rows = {r.number: _cells(r, wide) for r in revisions}
    # Rich's tables shrink every column alike; here only the reason may lose anything.
    widths = [max(cell_len(cells[i]) for cells in (_HEADINGS, *rows.values())) for i in range(5)]
    room = None if wide else max(console.width - sum(widths) - 2 * len(widths), 8)
    groups: dict[tuple[str, ...], list[Revision]] = {}
    for revision in revisions:
        groups.setdefault(tuple(revision.columns().values()), []).append(revision)
    for position, group in enumerate(groups.values()):
        if position:
            console.print()
        print_layer(group[0], console)
        for cells in (_HEADINGS, *(rows[r.number] for r in group)):
            *fixed, reason = cells
            line = [set_cell_size(cell, width) for cell, width in zip(fixed, widths, strict=True)]
            console.print("  ".join([*line, cut(reason, room)]).rstrip(), soft_wrap=True)


def cut(text: str, room: int | None) -> str:
    """A text in at most `room` terminal cells; one that was cut ends in `...`."""
    if room is None or cell_len(text) <= room:
        return text
    return f"{set_cell_size(text, room - 3).rstrip()}..."


def _cells(r: Revision, wide: bool) -> tuple[str, ...]:
    most = None if wide else 14
    return (
        f"{r.number:>{len(_HEADINGS[0])}}",
        f"{r.created_at:%Y-%m-%d %H:%M}" if wide else f"{r.created_at:%Y-%m-%d}",
        cut(",".join(r.channels), most),
        r.table_digest[:12] if r.table_digest else "none",
        cut(r.author, most and 10),
        r.reason,
    )


def print_layer(key: Key, console: Console, before: str = "") -> None:
    """What a revision is for, in two lines."""
    console.print(f"{before}{key.problem} on {key.environment.gpu}, {key.checkpoint}", soft_wrap=True)
    versions = key.environment.model_dump(exclude={"gpu"}, exclude_none=True)
    listing = ", ".join(f"{name} {value}" for name, value in versions.items() if name != "capability")
    digest = environment_digest(key.environment)[:8]
    console.print(f"  {listing or 'no versions'}, environment {digest}", soft_wrap=True)


def print_diff(
    before: tuple[str, Key | None],
    after: tuple[str, Key | None],
    rows: Sequence[DiffRow],
    *,
    only_changed: bool = False,
) -> None:
    """What both sides are for, then one line a range of token counts; those that run another thing marked.

    Args:
        only_changed: leave out the ranges in which only figures differ. Where nothing differs at all, one
            line says so either way.
    """
    console = _console()
    for heading, (name, key) in (("before", before), ("after", after)):
        if key is None:
            console.print(f"{heading} ({name}): nothing is applied")
        else:
            print_layer(key, console, f"{heading} ({name}): ")
    changed = sum(row.changed for row in rows)
    shown = [row for row in rows if row.changed or not only_changed]
    if all(row.before == row.after for row in rows):
        console.print(f"No difference in {counted(len(rows), 'range')} of token counts.")
        return
    if not shown:
        console.print(f"0 of {counted(len(rows), 'range')} run something else; only figures differ.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("before", overflow="fold")
    table.add_column("after", overflow="fold")
    for row in shown:
        tokens = str(row.last) if row.first == row.last else f"{row.first}..{row.last}"
        table.add_row(tokens, "*" if row.changed else "", _side(row.before), _side(row.after))
    console.print(table)
    verb = "runs" if len(rows) == 1 else "run"
    console.print(f"{changed} of {counted(len(rows), 'range')} {verb} something else (marked *).")


def _console() -> Console:
    return Console(highlight=False, markup=False)


def _side(side: Side) -> str:
    if side.answer == "fallback":
        return "fallback"
    if side.answer == "no_benefit":
        return f"baseline {side.winner}, {side.p50_us:.1f} us"
    return f"{side.winner}, {side.speedup:.3f}x (at least {side.low:.3f}x), {side.p50_us:.1f} us"
