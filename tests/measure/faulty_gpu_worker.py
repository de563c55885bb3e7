"""The real GPU process, in which a candidate's `group_m` may ask for a fault of the GPU itself."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from autotune.measure import worker
from autotune.vocabulary.candidate import Candidate, TritonCandidate
from tests.factories import triton

ASSERTS, HANGS = 101, 102
LONG_CYCLES = 2 * 10**11
"""A minute and a half at 2 GHz: no harm where a process cannot be killed."""


def candidate(group_m: int = 1, block_n: int = 64) -> TritonCandidate:
    """A tile of vLLM's Triton kernel, marked."""
    return triton(16, block_n, 64, group_m=group_m)


def main(pipe: Connection, log: str) -> None:
    """worker.main, after the marked candidates have been given their faults."""
    from autotune.measure.bench import Bench

    whole = Bench.calls

    def calls(bench: Bench, asked: Candidate) -> tuple[Any, list[Any]]:
        import torch

        backend, found = whole(bench, asked)
        mark = asked.tile.group_m if isinstance(asked, TritonCandidate) else 0

        def faulty(inputs: Any) -> Any:
            if mark == ASSERTS:
                torch._assert_async(torch.zeros((), device="cuda"))
            else:
                torch.cuda._sleep(LONG_CYCLES)
            return found[0](inputs)

        return backend, [faulty for _ in found] if mark in (ASSERTS, HANGS) else found

    Bench.calls = calls  # type: ignore[method-assign]
    worker.main(pipe, log)
