"""What choosing needs from a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autotune.vocabulary.environment import Environment
from autotune.vocabulary.measurement import Checkpoint, Measurement
from autotune.vocabulary.problem import Problem


class MeasurementStore(Protocol):
    """Append-only measurements, durable as soon as `append` returns."""

    def append(self, measurement: Measurement) -> bool:
        """Store it; False if the same content is there already."""
        ...

    def measurements(
        self,
        problem: Problem,
        *,
        environment: Environment | None = None,
        checkpoint: Checkpoint | None = None,
        routing: str | None = None,
        run: str | None = None,
    ) -> Sequence[Measurement]: ...

    def runs(
        self, problem: Problem, environment: Environment, checkpoint: Checkpoint, routing: str
    ) -> Sequence[str]:
        """Names of the runs that measured exactly this, newest last."""
        ...
