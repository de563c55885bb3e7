"""A runner with made-up times, for the logic of searching and choosing only. Its figures mean nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from statistics import median

from autotune.measure.task import Machine, Task
from autotune.vocabulary.candidate import Candidate, Tile, TritonCandidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.measurement import Checkpoint, Measurement, PairedTimes, Status
from autotune.vocabulary.problem import Problem

ENVIRONMENT = Environment(
    gpu="NVIDIA_H200",
    capability="9.0",
    vllm="0.25.1",
    torch="2.11.0",
    triton="3.6.0",
    cuda="13.0",
    flashinfer="0.6.13",
)
BASELINE = TritonCandidate(tile=Tile(block_m=64, block_n=64, block_k=128))


class SimulatedRunner:
    """Times follow `speed(candidate, tokens)` (1.0: as fast as the baseline) with noise."""

    def __init__(self, speed, noise: float = 0.003, fail=None, clock=None) -> None:
        self.machine = Machine(ENVIRONMENT, "580", 2)
        self.speed = speed
        self.noise = noise
        self.fail = fail or (lambda candidate, tokens: None)
        self.tasks: list[Task] = []
        self.closed = False
        self._clock = clock or (lambda: datetime(2026, 11, 1, tzinfo=UTC))

    def start_processes(self, count: int) -> None: ...

    def baseline(self, problem: Problem, checkpoint: Checkpoint, tokens: int) -> Candidate:
        return BASELINE

    def vllm_triton(self, problem: Problem, tokens: int) -> Candidate | None:
        return None

    def recorded(self, problem: Problem, tokens: int) -> Sequence[Candidate] | None:
        return None

    def compile(self, problem, pairs):
        return iter(pairs)

    def measure(self, task: Task) -> Iterator[Measurement]:
        self.tasks.append(task)
        for candidate in task.candidates:
            status = self.fail(candidate, task.tokens)
            times = None
            if status is None:
                dice = random.Random(f"{candidate.digest}{task.tokens}{task.stage}{task.process}{task.run}")
                base = [100 * (1 + dice.gauss(0, self.noise)) for _ in range(6)]
                cand = [
                    b / self.speed(candidate, task.tokens) * (1 + dice.gauss(0, self.noise)) for b in base
                ]
                times = PairedTimes(
                    candidate_us=tuple(cand), baseline_us=tuple(base), p50_us=median(cand), p95_us=max(cand),
                    baseline_p50_us=median(base), baseline_p95_us=max(base),
                )  # fmt: skip
            yield Measurement(
                problem=task.problem, environment=ENVIRONMENT, checkpoint=task.checkpoint, tokens=task.tokens,
                routing=task.routing, candidate=candidate, baseline=task.baseline, stage=task.stage,
                status=status or Status.OK, reason="made to fail" if status else "",
                times=times, run=task.run, process=task.process, seed=task.seed, driver="580",
                recorded_at=self._clock(),
            )  # fmt: skip

    def close(self) -> None:
        self.closed = True


class ListStore:
    """Measurements in memory, unique by content."""

    def __init__(self) -> None:
        self.rows: dict[str, Measurement] = {}

    def append(self, measurement: Measurement) -> bool:
        if measurement.digest in self.rows:
            return False
        self.rows[measurement.digest] = measurement
        return True

    def measurements(self, problem, *, environment=None, checkpoint=None, routing=None, run=None):
        return [
            m
            for m in self.rows.values()
            if m.problem == problem
            and (environment is None or m.environment == environment)
            and (checkpoint is None or m.checkpoint == checkpoint)
            and (routing is None or m.routing == routing)
            and (run is None or m.run == run)
        ]

    def runs(self, problem, environment, checkpoint, routing):
        fitting = self.measurements(problem, environment=environment, checkpoint=checkpoint, routing=routing)
        return list(dict.fromkeys(m.run for m in fitting))


class Quiet:
    """A progress display that only counts."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def phase(self, name: str, total: int) -> None: ...

    def step(self, tokens: int, trying: str, best: str = "", *, advance: int = 1) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)
