"""What backends' own tuners chose, from the evidence behind a table where that is at hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.vocabulary.measurement import Measurement
    from autotune.vocabulary.table import RoutingTable


def tuners_of(table: RoutingTable, source: str, db: str | None) -> list[dict[str, Any]]:
    """One entry a token count and candidate that a tuner had a say in, by its newest measurement.

    Evidence is looked for in the database that the table came from, and in the recordings of this
    installation.

    Args:
        source: where the table came from, as its snapshot names it.
        db: the database that was asked for; None for the usual one.
    """
    newest: dict[tuple[int, str], Measurement] = {}
    for m in sorted(
        (*_recorded(table), *_stored(table, source, db)), key=lambda m: (m.recorded_at, m.digest)
    ):
        if m.tactic is not None and (m.environment.gpu, m.checkpoint) == (
            table.environment.gpu,
            table.checkpoint,
        ):
            newest[m.tokens, str(m.candidate)] = m
    counts = {route.tokens for route in table.routes}
    return [
        {
            "tokens": tokens,
            "candidate": m.candidate.model_dump(mode="json"),
            "tactic": m.tactic,
            "tuning_s": m.tuning_s,
            "p50_us": m.times.p50_us if m.times else None,
            "evidence": m.digest,
        }
        for (tokens, _), m in sorted(newest.items())
        if tokens in counts
    ]


def print_tuners(rows: list[dict[str, Any]], table: RoutingTable) -> None:
    """What tuners chose, beside what the table runs: where one chose badly, its time stands out."""
    from rich import box
    from rich.table import Table

    from autotune.cli.routing_views import console
    from autotune.vocabulary.candidate import parse_candidate
    from autotune.vocabulary.table import Verdict

    out = console()
    if not rows:
        out.print("No tuner of a backend had a say here, or the evidence behind the table is not at hand.")
        return
    shown = Table(box=box.SIMPLE_HEAD, title="What backends' own tuners chose", title_justify="left")
    for name in ("tokens", "candidate", "tactic", "tuning s", "us", "against what runs"):
        shown.add_column(name, justify="left" if name in ("candidate", "tactic") else "right")
    runs = {
        route.tokens: (route.winner_timing if route.verdict is Verdict.WIN else route.baseline_timing).p50_us
        for route in table.routes
    }
    for row in rows:
        runs_us = runs.get(row["tokens"])
        took, tuning_s = row["p50_us"], row["tuning_s"]
        shown.add_row(
            str(row["tokens"]),
            str(parse_candidate(row["candidate"])),
            row["tactic"],
            "" if tuning_s is None else f"{tuning_s:.1f}",
            "" if took is None else f"{took:.1f}",
            "" if took is None or not runs_us else f"{took / runs_us:.2f}x as long",
        )
    out.print(shown)


def _recorded(table: RoutingTable) -> Iterable[Measurement]:
    from autotune.measure.evidence_file import read_evidence, shipped_evidence

    runs = set(table.recording.runs)
    for file in shipped_evidence():
        measured = read_evidence(file)[1]
        yield from (m for m in measured if m.problem == table.problem and m.run in runs)


def _stored(table: RoutingTable, source: str, db: str | None) -> list[Measurement]:
    from autotune.vocabulary.errors import DatabaseError, UsageError
    from autotune.vocabulary.settings import Settings

    try:
        from autotune.db.engine import open_database
        from autotune.db.measurements import MeasurementRepository
    except ModuleNotFoundError:
        return []  # the table came from elsewhere then
    try:
        with open_database(db or Settings.from_env().db, create=False) as database:
            if database.name != source:
                return []
            with database.read() as session:
                found = MeasurementRepository(session).find(table.problem, checkpoint=table.checkpoint)
    except (DatabaseError, UsageError):  # UsageError: there is none
        return []
    return [m for m in found if not table.environment.differences(m.environment)]
