"""A runner that answers from recorded evidence of a real GPU. Imports no torch, compiles nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.measure.evidence_file import RecordingHeader
from autotune.measure.task import Machine, Task
from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.errors import NotFoundError
from autotune.vocabulary.measurement import Checkpoint, Measurement, Stage
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.text import counted


class ReplayRunner:
    """Answers with the recorded measurements themselves: same content, same digests, so nothing new arises.

    Args:
        measurements: of one problem in one environment.
    """

    def __init__(self, header: RecordingHeader, measurements: Sequence[Measurement]) -> None:
        self.measurements = tuple(measurements)
        first = self.measurements[0]
        dates = sorted(m.recorded_at for m in self.measurements)
        day = f"{dates[0]:%Y-%m-%d}" + (
            f" to {dates[-1]:%Y-%m-%d}" if dates[0].date() != dates[-1].date() else ""
        )
        self.machine = Machine(
            environment=first.environment,
            driver=first.driver,
            recorded=f"{counted(len(self.measurements), 'measurement')} of {day}",
            recording=f"{counted(len(self.measurements), 'measurement')} of {day} on {header.machine}; "
            f"{first.environment}; driver {first.driver}; made by `{header.command}`",
        )
        self._by_key: dict[tuple[int, str, Stage], list[Measurement]] = {}
        for m in self.measurements:
            self._by_key.setdefault((m.tokens, m.candidate.digest, m.stage), []).append(m)
        self._baselines = {m.tokens: m.baseline for m in self.measurements}

    def start_processes(self, count: int) -> None:
        """Nothing to start."""

    def tokens(self) -> list[int]:
        """The token counts on record."""
        return sorted(self._baselines)

    def baseline(self, problem: Problem, checkpoint: Checkpoint, tokens: int) -> Candidate:
        if tokens not in self._baselines:
            raise NotFoundError(
                f"The recording has no measurements at {counted(tokens, 'token')}.",
                f"Recorded: {', '.join(map(str, self.tokens()))}.",
            )
        return self._baselines[tokens]

    def vllm_triton(self, problem: Problem, tokens: int) -> Candidate | None:
        return None

    def recorded(self, problem: Problem, tokens: int, stage: Stage = Stage.SCREEN) -> Sequence[Candidate]:
        unique = {
            m.candidate.digest: m.candidate
            for (count, _, of_stage), found in self._by_key.items()
            if count == tokens and of_stage is stage
            for m in found
        }
        return list(unique.values())

    def compile(
        self, problem: Problem, pairs: Sequence[tuple[int, Candidate]]
    ) -> Iterator[tuple[int, Candidate]]:
        return iter(pairs)

    def measure(self, task: Task) -> Iterator[Measurement]:
        """The recorded measurements of the task's candidates; what was never recorded is left out."""
        for candidate in task.candidates:
            for m in self._by_key.get((task.tokens, candidate.digest, task.stage), []):
                if m.process == task.process:
                    yield m

    def close(self) -> None:
        """Nothing to close."""
