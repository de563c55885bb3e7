"""Queries on measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite

from autotune.db.engine import ReadSession, WriteSession
from autotune.db.keys import environment_data, environment_digest
from autotune.db.models import MeasurementRow
from autotune.vocabulary.canonical import content_digest, is_intact
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import DamagedDatabaseError, SchemaVersionError
from autotune.vocabulary.measurement import Checkpoint, Measurement
from autotune.vocabulary.problem import Problem


class MeasurementRepository:
    """Measurements are added and read, never changed; their digest says what is there already."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    def add(self, measurement: Measurement) -> bool:
        """Store one; False if the same content is there already. Needs a write session."""
        if not isinstance(self._session, WriteSession):
            raise TypeError("adding measurements needs a write session")
        insert = postgresql.insert if self._session.get_bind().dialect.name == "postgresql" else sqlite.insert
        statement = (
            insert(MeasurementRow)
            .values(**_columns(measurement))
            .on_conflict_do_nothing(index_elements=["digest"])
            .returning(MeasurementRow.id)
        )
        return self._session.execute(statement).first() is not None

    def add_all(self, measurements: Iterable[Measurement]) -> int:
        """Store several; the number of those that were new."""
        return sum(self.add(measurement) for measurement in measurements)

    def find(
        self,
        problem: Problem,
        *,
        environment: Environment | None = None,
        checkpoint: Checkpoint | None = None,
        routing: str | None = None,
        run: str | None = None,
    ) -> list[Measurement]:
        """Those of a problem that fit, in the order in which they were recorded.

        Raises:
            DamagedDatabaseError: if a stored row is not what its digest says.
            SchemaVersionError: if it is, but a later release made it.
        """
        query = select(MeasurementRow.digest, MeasurementRow.content).where(
            MeasurementRow.problem == str(problem)
        )
        if environment is not None:
            query = query.where(MeasurementRow.environment_digest == environment_digest(environment))
        if checkpoint is not None:
            query = query.where(MeasurementRow.checkpoint == checkpoint)
        if routing is not None:
            query = query.where(MeasurementRow.routing == routing)
        if run is not None:
            query = query.where(MeasurementRow.run == run)
        query = query.order_by(MeasurementRow.recorded_at, MeasurementRow.id)
        return [_measurement(digest, content) for digest, content in self._session.execute(query)]

    def runs(
        self, problem: Problem, environment: Environment, checkpoint: Checkpoint, routing: str
    ) -> list[str]:
        """Names of the runs that measured exactly this; the one that was stored last is last.

        By when they were stored, not by their own time: a clock may have been ahead.
        """
        query = (
            select(MeasurementRow.run)
            .where(
                MeasurementRow.problem == str(problem),
                MeasurementRow.environment_digest == environment_digest(environment),
                MeasurementRow.checkpoint == checkpoint,
                MeasurementRow.routing == routing,
            )
            .group_by(MeasurementRow.run)
            .order_by(func.max(MeasurementRow.id))
        )
        return list(self._session.scalars(query))

    def environments(self, gpu: str, problem: Problem) -> list[tuple[Environment, Checkpoint]]:
        """Where a problem was measured on a GPU, and for which checkpoint formats; the newest last."""
        newest = (
            select(func.max(MeasurementRow.id))
            .where(MeasurementRow.gpu == gpu, MeasurementRow.problem == str(problem))
            .group_by(MeasurementRow.environment_digest, MeasurementRow.checkpoint)
        )
        query = (
            select(MeasurementRow.environment, MeasurementRow.checkpoint)
            .where(MeasurementRow.id.in_(newest))
            .order_by(MeasurementRow.id)
        )
        return [
            (Environment.model_validate(data), checkpoint)
            for data, checkpoint in self._session.execute(query)
        ]

    def count(self) -> int:
        """How many there are in all."""
        return self._session.scalar(select(func.count()).select_from(MeasurementRow)) or 0

    def known(self, digests: Sequence[str]) -> set[str]:
        """Those of `digests` that are stored."""
        query = select(MeasurementRow.digest).where(MeasurementRow.digest.in_(digests))
        return set(self._session.scalars(query))


def _columns(measurement: Measurement) -> dict[str, Any]:
    return {
        "digest": measurement.digest,
        "problem": str(measurement.problem),
        "gpu": measurement.environment.gpu,
        "environment": environment_data(measurement.environment),
        "environment_digest": environment_digest(measurement.environment),
        "checkpoint": measurement.checkpoint,
        "tokens": measurement.tokens,
        "routing": measurement.routing,
        "backend": measurement.candidate.backend,
        "candidate_digest": measurement.candidate.digest,
        "stage": measurement.stage.value,
        "status": measurement.status.value,
        "run": measurement.run,
        "recorded_at": measurement.recorded_at,
        "content": measurement.model_dump(mode="json"),
    }


def _measurement(digest: str, content: dict[str, Any]) -> Measurement:
    try:
        measurement = Measurement.model_validate(content)
    except ValidationError as error:
        if is_intact(content, digest):
            raise SchemaVersionError(
                f"The stored measurement {digest[:12]} is of a later release: {error.errors()[0]['msg']}.",
                "Upgrade the package: git pull in its clone, then pip install --upgrade . there.",
            ) from error
        raise DamagedDatabaseError(
            f"The stored measurement {digest[:12]} is malformed: {error.errors()[0]['msg']}.",
            "It was changed from outside; restore the database from a copy.",
        ) from error
    # Of what is stored, not of what was read: a later release may read more fields into it.
    if content_digest(content) != digest:
        raise DamagedDatabaseError(
            f"The stored measurement {digest[:12]} does not match its digest.",
            "It was changed from outside; restore the database from a copy.",
        )
    return measurement
