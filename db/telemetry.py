"""Queries on what serving processes report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select

from autotune.db.engine import ReadSession, WriteSession
from autotune.db.models import TelemetryRow


@dataclass(frozen=True)
class TelemetryCount:
    """How often one process got one answer since its last report."""

    problem: str
    tokens: int
    answer: str
    reason: str
    revision: int | None
    count: int


class TelemetryRepository:
    """Reports are added as they come and summed when read."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    def add(self, instance: str, gpu: str, counts: list[TelemetryCount]) -> None:
        """Store one report. Needs a write session."""
        if not isinstance(self._session, WriteSession):
            raise TypeError("adding telemetry needs a write session")
        now = datetime.now(UTC)
        self._session.add_all(
            TelemetryRow(
                received_at=now,
                instance=instance,
                gpu=gpu,
                problem=c.problem,
                revision=c.revision,
                tokens=c.tokens,
                answer=c.answer,
                reason=c.reason,
                count=c.count,
            )
            for c in counts
        )

    def totals(self) -> dict[tuple[str, str], int]:
        """Sums by answer and reason, over everything reported."""
        query = (
            select(TelemetryRow.answer, TelemetryRow.reason, func.sum(TelemetryRow.count))
            .group_by(TelemetryRow.answer, TelemetryRow.reason)
            .order_by(TelemetryRow.answer, TelemetryRow.reason)
        )
        return {(answer, reason): int(total) for answer, reason, total in self._session.execute(query)}
