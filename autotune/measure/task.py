"""What a runner is asked to measure, and what it answers. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.measurement import Checkpoint, Measurement, Stage
from autotune.vocabulary.problem import Problem


@dataclass(frozen=True)
class Task:
    """Candidates to time against one baseline at one token count, in one process.

    Args:
        process: which of the runner's processes; screening uses 0, finals are repeated in several.
        seed: inputs and routing are drawn from it; the same seed means the same inputs.
    """

    problem: Problem
    checkpoint: Checkpoint
    tokens: int
    baseline: Candidate
    candidates: tuple[Candidate, ...]
    stage: Stage
    run: str
    routing: str = "uniform"
    process: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Machine:
    """What a runner measures on."""

    environment: Environment
    driver: str
    cores: int = 1
    recording: str = ""
    """Not empty if the answers are recorded ones: which recording, for a person."""
    recorded: str = ""
    """The same in a few words: how many measurements, of when."""
    absent: tuple[str, ...] = ()
    """Libraries that are installed but cannot be used here, each with the reason and what to do."""


class Runner(Protocol):
    """Measures tasks. The real one owns a GPU; the replaying one reads recorded evidence."""

    machine: Machine

    def start_processes(self, count: int) -> None:
        """Make processes 0..count-1 ready side by side, before tasks name them."""
        ...

    def baseline(self, problem: Problem, checkpoint: Checkpoint, tokens: int) -> Candidate:
        """What that vLLM would run unaided."""
        ...

    def vllm_triton(self, problem: Problem, tokens: int) -> Candidate | None:
        """The tile and Swap-AB choice of vLLM's Triton backend: a start for the search. None if not known."""
        ...

    def recorded(
        self, problem: Problem, tokens: int, stage: Stage = Stage.SCREEN
    ) -> Sequence[Candidate] | None:
        """The only candidates that can be answered at that stage; None if any can."""
        ...

    def compile(
        self, problem: Problem, pairs: Sequence[tuple[int, Candidate]]
    ) -> Iterator[tuple[int, Candidate]]:
        """Compile (tokens, candidate) pairs ahead, yielding each as it is done."""
        ...

    def measure(self, task: Task) -> Iterator[Measurement]:
        """One measurement per candidate, as they are made. A failing one is a status, not an exception."""
        ...

    def close(self) -> None: ...
