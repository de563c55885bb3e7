"""A GPU process without a GPU: speaks worker.py's protocol and misbehaves as its candidates' `group_m` says.

Every candidate that it touches is appended to the file that AUTOTUNE_TEST_LOG names.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

from autotune.measure.outcome import Outcome
from autotune.measure.task import Task
from autotune.vocabulary.candidate import Candidate, TritonCandidate
from autotune.vocabulary.errors import GpuNotReadyError
from autotune.vocabulary.measurement import Status
from tests.factories import H200, make_times, triton

EXITS, IS_KILLED, HANGS, LOSES_CUDA, FAILS, EXITS_AFTERWARDS, IS_WRONG = range(101, 108)


def candidate(behaviour: int = 1, block_n: int = 128) -> TritonCandidate:
    """A candidate that behaves so."""
    return triton(16, block_n, group_m=behaviour)


def main(pipe: Connection, log: str = "") -> None:
    """Serve tasks until the pipe closes."""
    pipe.send(("machine", H200, "580.1", 2, ("DeepGEMM is of no known version",)))
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        if message[0] == "task":
            _run(pipe, message[1])
        elif message[0] == "triton":
            pipe.send(("triton", candidate(block_n=256)) if message[2] != 13 else ("failed", "no such tile"))
        elif message[3] == 13:
            os._exit(4)
        elif message[3] == 14:
            pipe.send(("failed", "ImportError: no vllm\nTraceback ..."))
        else:
            pipe.send(("baseline", candidate(block_n=64)))


def cannot(pipe: Connection, log: str) -> None:
    """A process that finds nothing to measure on."""
    pipe.send(("unable", GpuNotReadyError("There is no CUDA GPU here.", "Use --replay.")))


def dies_at_once(pipe: Connection, log: str) -> None:
    """A process that ends before it greets."""
    os._exit(7)


def _run(pipe: Connection, task: Task) -> None:
    pipe.send(("begin", -1))
    _misbehave(pipe, task.baseline)
    for index, one in enumerate(task.candidates):
        with open(os.environ["AUTOTUNE_TEST_LOG"], "a") as touched:
            touched.write(f"{one.digest}\n")
        pipe.send(("begin", index))
        _misbehave(pipe, one)
        if _behaviour(one) == IS_WRONG:
            outcome = Outcome(Status.WRONG, "relative L2 error 0.5 exceeds 0.03", relative_error=0.5)
        else:
            times = make_times(50.0 + index, 100.0).model_dump(mode="json")
            outcome = Outcome(Status.OK, times=times, relative_error=0.01, compile_s=1.23456)
        pipe.send(("outcome", index, outcome))
        if _behaviour(one) == EXITS_AFTERWARDS:
            os._exit(5)
    pipe.send(("done",))


def _behaviour(one: Candidate) -> int:
    return one.tile.group_m if isinstance(one, TritonCandidate) else 0


def _misbehave(pipe: Connection, one: Candidate) -> None:
    match _behaviour(one):
        case 101:
            os._exit(9)
        case 102:
            os.kill(os.getpid(), signal.SIGKILL)
        case 103:
            time.sleep(120)
        case 104:
            pipe.send(("fatal", "RuntimeError: CUDA error: an illegal memory access\nmore"))
            os._exit(3)
        case 105:
            pipe.send(("failed", "KeyError: 'w13'\nmore"))
            time.sleep(120)
