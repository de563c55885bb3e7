"""The real runner: replaceable GPU processes and a pool that compiles ahead. The parent imports no torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from autotune.measure import worker
from autotune.measure.compile_pool import CompilePool
from autotune.measure.gpu_state import GpuState, read_state, wait_until_ready
from autotune.measure.orphans import end_with_parent, started_for_good
from autotune.measure.outcome import PROCESS_ENDED, Outcome
from autotune.measure.task import Machine, Task
from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.errors import AutotuneError, GpuNotReadyError
from autotune.vocabulary.measurement import Checkpoint, Measurement, PairedTimes, Stage, Status
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.text import counted, printable

START_TIMEOUT_S = 300.0
CANDIDATE_TIMEOUT_S = 60.0
SETUP_TIMEOUT_S = 1200.0
"""For the first use of a backend in a process: FlashInfer may build its module just in time."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    prepared: set[str] = field(default_factory=set)


class GpuRunner:
    """Measures on the GPU of this machine.

    Args:
        wait_s: how long to wait for a busy GPU before giving up.
        tell: called with one line for a person (waiting, replaced workers).
        worker_main: what a GPU process runs.
        candidate_timeout_s: for one candidate of a backend that the process has used before.
        setup_timeout_s: for a backend's first candidate, which may build and tune.

    Raises:
        GpuNotReadyError, MissingDependencyError: if there is nothing to measure on.
    """

    def __init__(
        self,
        wait_s: float = 0.0,
        tell: Callable[[str], None] = lambda text: None,
        worker_main: Callable[[Connection, str], None] = worker.main,
        candidate_timeout_s: float = CANDIDATE_TIMEOUT_S,
        setup_timeout_s: float = SETUP_TIMEOUT_S,
    ) -> None:
        wait_until_ready(wait_s, tell=tell)
        self._main = worker_main
        handle, name = tempfile.mkstemp(prefix="autotune-gpu-", suffix=".log")
        os.close(handle)
        self.log = Path(name)
        """What the GPU processes print: libraries' progress, and the trace of a crash."""
        self._failed = False
        self._candidate_timeout_s = candidate_timeout_s
        self._setup_timeout_s = setup_timeout_s
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[int, _Worker] = {}
        self._wait_s = wait_s
        self._tell = tell
        self.machine = self._start(0)
        self._pool = CompilePool(max(1, self.machine.cores - 2))

    def start_processes(self, count: int) -> None:
        """Start workers 0..count-1 side by side: importing libraries takes longer than measuring."""
        started = []
        for number in range(count):
            if number not in self._workers:
                self._workers[number] = self._spawn()
                started.append(number)
        for number in started:
            self._greet(number)

    def baseline(self, problem: Problem, checkpoint: Checkpoint, tokens: int) -> Candidate:
        try:
            self._worker(0).pipe.send(("baseline", problem, checkpoint, tokens))
            kind, answer = self._receive(0, self._setup_timeout_s)[:2]
        except _Silent as silent:
            self._replace(0)
            kind, answer = "failed", silent.reason
        if kind != "baseline":
            raise AutotuneError(
                f"vLLM's own choice for {problem} cannot be determined: {answer}",
                "Check that vLLM imports here.",
            )
        found: Candidate = answer
        return found

    def vllm_triton(self, problem: Problem, tokens: int) -> Candidate | None:
        try:
            self._worker(0).pipe.send(("triton", problem, tokens))
            kind, answer = self._receive(0, self._setup_timeout_s)[:2]
        except _Silent:
            self._replace(0)
            return None
        # A start for the search and no more: without it the search starts elsewhere.
        found: Candidate | None = answer if kind == "triton" else None
        return found

    def recorded(
        self, problem: Problem, tokens: int, stage: Stage = Stage.SCREEN
    ) -> Sequence[Candidate] | None:
        return None

    def compile(
        self, problem: Problem, pairs: Sequence[tuple[int, Candidate]]
    ) -> Iterator[tuple[int, Candidate]]:
        return self._pool.compile(problem, pairs)

    def measure(self, task: Task) -> Iterator[Measurement]:
        """Run the task, replacing the process when a candidate kills or hangs it.

        Raises:
            AutotuneError: if the baseline itself cannot be measured.
        """
        remaining = list(task.candidates)
        while remaining:
            done = 0
            failure: tuple[int, Status, str] | None = None
            part = replace(task, candidates=tuple(remaining))
            wait_until_ready(self._wait_s + 5.0, own=self._pids(), read=_between_tasks, tell=self._tell)
            current = -1
            try:
                self._worker(task.process).pipe.send(("task", part))
                while True:
                    backend = task.baseline.backend if current < 0 else remaining[current].backend
                    message = self._receive(task.process, self._limit(task.process, backend))
                    if message[0] == "begin":
                        current = message[1]
                    elif message[0] == "outcome":
                        self._workers[task.process].prepared.add(remaining[message[1]].backend)
                        yield self._measurement(task, remaining[message[1]], message[2])
                        done = message[1] + 1
                    elif message[0] == "done":
                        return
                    elif message[0] in ("failed", "fatal"):
                        failure = (current, Status.CRASHED, str(message[1]).strip().splitlines()[0][:500])
                        break
            except _Silent as silent:
                status = Status.TIMEOUT if silent.alive else Status.CRASHED
                failure = (current, status, silent.reason)
            self._replace(task.process)
            assert failure is not None
            index, status, reason = failure
            if index < 0:
                raise AutotuneError(
                    f"The baseline {task.baseline} cannot be measured at "
                    f"{counted(task.tokens, 'token')}: {reason}",
                    f"Without a baseline nothing can be compared; the whole error may be in {self.log}.",
                )
            self._tell(
                f"{remaining[index]} at {counted(task.tokens, 'token')}: {status.value} ({reason}); "
                f"GPU process replaced, its output is in {self.log}"
            )
            if index >= done:  # else its outcome had come before the process ended
                yield self._measurement(task, remaining[index], Outcome(status, reason))
            remaining = remaining[max(done, index + 1) :]

    def _measurement(self, task: Task, candidate: Candidate, outcome: Any) -> Measurement:
        compile_s = outcome.compile_s
        if compile_s is None:
            compile_s = self._pool.seconds.get((candidate.digest, task.tokens))
        return Measurement(
            problem=task.problem,
            environment=self.machine.environment,
            checkpoint=task.checkpoint,
            tokens=task.tokens,
            routing=task.routing,
            candidate=candidate,
            baseline=task.baseline,
            stage=task.stage,
            status=outcome.status,
            reason=printable(outcome.reason),
            times=PairedTimes.model_validate(outcome.times) if outcome.times else None,
            relative_error=outcome.relative_error,
            baseline_relative_error=outcome.baseline_relative_error,
            compile_s=None if compile_s is None else float(f"{compile_s:.3g}"),
            setup_s=outcome.setup_s,
            tactic=outcome.tactic,
            tuning_s=outcome.tuning_s,
            peak_bytes=outcome.peak_bytes,
            run=task.run,
            process=task.process,
            seed=task.seed,
            driver=self.machine.driver,
            recorded_at=datetime.now(UTC),
        )

    def close(self) -> None:
        """End the processes; their log stays only if one of them failed."""
        self._pool.close()
        for number in list(self._workers):
            self._stop(number)
        if not self._failed:
            self.log.unlink(missing_ok=True)

    def _limit(self, number: int, backend: str) -> float:
        known = backend in self._workers[number].prepared
        return self._candidate_timeout_s if known else self._setup_timeout_s

    def _pids(self) -> frozenset[int]:
        return frozenset(w.process.pid for w in self._workers.values() if w.process.pid) | self._pool.pids()

    def _spawn(self) -> _Worker:
        here, there = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(started_for_good(), self._main, there, str(self.log)), daemon=True
        )
        process.start()
        there.close()
        return _Worker(process, here)

    def _start(self, number: int) -> Machine:
        self._workers[number] = self._spawn()
        return self._greet(number)

    def _greet(self, number: int) -> Machine:
        try:
            message = self._receive(number, START_TIMEOUT_S)
        except _Silent as silent:
            self._stop(number)
            raise GpuNotReadyError(
                f"The GPU process did not start: {silent.reason}.",
                f"Look at {self.log}; is the GPU healthy?",
            ) from None
        if message[0] == "unable":
            self._stop(number)
            self.log.unlink(missing_ok=True)
            raise message[1]
        environment, driver, cores, absent = message[1:]
        return Machine(environment, driver, cores, absent=absent)

    def _worker(self, number: int) -> _Worker:
        found = self._workers.get(number)
        if found is not None and not found.process.is_alive():
            self._stop(number)  # it ended between two tasks
        if number not in self._workers:
            self._start(number)
        return self._workers[number]

    def _replace(self, number: int) -> None:
        self._failed = True
        self._stop(number)
        self._start(number)

    def _stop(self, number: int) -> None:
        gone = self._workers.pop(number)
        gone.pipe.close()
        if gone.process.pid and gone.process.is_alive():
            gone.process.join(0.2)
        if gone.process.is_alive():
            gone.process.kill()
        gone.process.join(10)

    def _receive(self, number: int, timeout_s: float) -> tuple[Any, ...]:
        """The next message, or _Silent when the process died or nothing came in time."""
        current = self._workers[number]
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if current.pipe.poll(0.25):
                    message: tuple[Any, ...] = current.pipe.recv()
                    return message
            except (EOFError, OSError):
                # Its end of the pipe is closed and everything that it sent has been read.
                current.process.join(10)
                raise _Silent(False, f"{PROCESS_ENDED} {_exit(current.process.exitcode)}") from None
            if time.monotonic() > deadline:
                raise _Silent(True, f"no answer within {timeout_s:.0f} s")


def _serve(with_thread: bool, main: Callable[[Connection, str], None], pipe: Connection, log: str) -> None:
    end_with_parent(with_thread)
    main(pipe, log)


class _Silent(Exception):
    def __init__(self, alive: bool, reason: str) -> None:
        super().__init__(reason)
        self.alive = alive
        self.reason = reason


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _between_tasks(own: frozenset[int]) -> GpuState | None:
    """The state with our own load left out.

    In a container NVML may number processes as the host does; strangers are believed only if our own
    processes are recognized.
    """
    state = read_state()
    if state is None:
        return None
    seen = set(state.other_processes)
    strangers = tuple(p for p in state.other_processes if p not in own) if seen & own else ()
    return replace(state, utilization_percent=0, other_processes=strangers)
