"""The sweep's store of evidence, in a database."""

from __future__ import annotations

from autotune.db.engine import Database
from autotune.db.measurements import MeasurementRepository
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.measurement import Checkpoint, Measurement
from autotune.vocabulary.problem import Problem


class DatabaseStore:
    """Appends measurements one transaction each, so that a killed sweep keeps all that it finished."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, measurement: Measurement) -> bool:
        """Store one, durably when this returns; False if the same content is there already.

        Raises:
            DatabaseError: if it cannot be stored.
        """
        with self._database.write() as session:
            return MeasurementRepository(session).add(measurement)

    def measurements(
        self,
        problem: Problem,
        *,
        environment: Environment | None = None,
        checkpoint: Checkpoint | None = None,
        routing: str | None = None,
        run: str | None = None,
    ) -> list[Measurement]:
        """Those that fit, in the order in which they were recorded."""
        with self._database.read() as session:
            return MeasurementRepository(session).find(
                problem, environment=environment, checkpoint=checkpoint, routing=routing, run=run
            )

    def runs(
        self, problem: Problem, environment: Environment, checkpoint: Checkpoint, routing: str
    ) -> list[str]:
        """Names of the runs that measured exactly this, newest last."""
        with self._database.read() as session:
            return MeasurementRepository(session).runs(problem, environment, checkpoint, routing)
