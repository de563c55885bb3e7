"""CPU processes that compile Triton kernels ahead, sharing Triton's on-disk cache with the GPU process."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool

from autotune.measure.orphans import end_with_parent, started_for_good
from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.problem import Problem

TRITON_BACKENDS = frozenset({"triton", "fused_triton", "fused_decode"})
COMPILE_TIMEOUT_S = 120.0
"""A tile that takes longer is left to the GPU process, whose own time-out then decides."""


class CompilePool:
    """Compiles (tokens, candidate) pairs of one problem. Failures are left for the GPU process to report."""

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        self._pool: ProcessPoolExecutor | None = None
        self.seconds: dict[tuple[str, int], float] = {}
        """Cold compile time of (candidate digest, tokens), for those that were not in the cache."""
        self._done: set[tuple[str, int]] = set()

    def compile(
        self, problem: Problem, pairs: Sequence[tuple[int, Candidate]]
    ) -> Iterator[tuple[int, Candidate]]:
        """Yield each pair once it is compiled, or once it turned out that it cannot be."""
        fresh: list[tuple[int, Candidate]] = []
        for pair in pairs:
            key = (pair[1].digest, pair[0])
            if key in self._done or pair[1].backend not in TRITON_BACKENDS:
                yield pair
            else:
                self._done.add(key)
                fresh.append(pair)
        if not fresh:
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_quiet,
                initargs=(started_for_good(),),
            )
        futures: dict[Future[float | None], tuple[int, Candidate]] = {}
        try:
            for tokens, candidate in fresh:
                futures[self._pool.submit(_compile, problem, tokens, candidate)] = (tokens, candidate)
            pending = set(futures)
            last = time.monotonic()
            while pending:
                finished, pending = wait(pending, timeout=1.0, return_when="FIRST_COMPLETED")
                for future in finished:
                    last = time.monotonic()
                    tokens, candidate = futures[future]
                    seconds = future.result()
                    if seconds is not None:
                        self.seconds[candidate.digest, tokens] = seconds
                    yield tokens, candidate
                if not finished and time.monotonic() - last > COMPILE_TIMEOUT_S:
                    raise FutureTimeout
        except (BrokenProcessPool, FutureTimeout):
            # A compiler that crashes or hangs takes its pool along; the GPU process meets the culprit alone.
            self.close()
            for future, pair in futures.items():
                if not future.done() or future.exception() is not None:
                    yield pair

    def pids(self) -> frozenset[int]:
        """Its processes: each holds a CUDA context, though it launches nothing."""
        return frozenset((self._pool._processes or {}) if self._pool else ())

    def close(self) -> None:
        """Kill the processes: nothing that they hold is needed."""
        if self._pool is not None:
            processes = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()
            self._pool = None


def _quiet(with_thread: bool = False) -> None:
    end_with_parent(with_thread)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["AUTOTUNE_MODE"] = "off"


def _compile(problem: Problem, tokens: int, candidate: Candidate) -> float | None:
    from autotune.kernels.backends.registry import get_backend
    from autotune.measure.compiles import counting_compiles

    start = time.perf_counter()
    try:
        with counting_compiles() as compiled:
            get_backend(candidate.backend).compile_ahead(problem, tokens, candidate)
    except Exception:
        return None  # the GPU process runs it again and records the status
    return time.perf_counter() - start if compiled.count else None
