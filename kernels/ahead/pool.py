"""Processes that compile variants side by side into Triton's cache on disk."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.kernels.ahead.child import describe_kernel
from autotune.kernels.ahead.variants import Variant

CHILD = "autotune.kernels.ahead.child"


@dataclass
class Compiled:
    """What became of a list of variants.

    Args:
        seconds: compile time of each that was compiled, by cache key.
        hits: cache keys found on disk.
        failed: why the others could not be compiled, by cache key.
        processes: how many compiled side by side.
        first_s: seconds until the first variant was done, most of which a process took to start; None if
            none was done.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    hits: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    timed_out: bool = False
    processes: int = 0
    first_s: float | None = None

    @property
    def done(self) -> int:
        return len(self.seconds) + len(self.hits) + len(self.failed)


def compile_variants(
    variants: Sequence[Variant],
    target: Any,
    limit_s: float,
    workers: int = 0,
    tell: Callable[[int, int], None] = lambda done, total: None,
    stop: threading.Event | None = None,
) -> Compiled:
    """Compile in as many processes as there are cores, in the order given, for at most `limit_s` seconds.

    A process that crashes is replaced, and its variant is left out; at the time limit all are killed.

    Args:
        target: Triton's GPUTarget.
        workers: how many processes; 0 for the cores of this process less two.
        tell: told how many are done, of how many, about once a second.
        stop: once set, all are killed, within a second.
    """
    result = Compiled()
    if not variants:
        return result
    tasks: queue.SimpleQueue[Variant] = queue.SimpleQueue()
    for variant in variants:
        tasks.put(variant)
    count = min(len(variants), workers or max(1, len(os.sched_getaffinity(0)) - 2))
    crew = [_Worker(tasks, target, result) for _ in range(count)]
    deadline = time.monotonic() + limit_s
    result.processes = count
    try:
        for worker in crew:
            worker.start()
        while alive := [worker for worker in crew if worker.is_alive()]:
            left = deadline - time.monotonic()
            if left <= 0:
                result.timed_out = True
                break
            if stop is not None and stop.is_set():
                break
            alive[0].join(min(left, 1.0))
            tell(result.done, len(variants))
    finally:  # an interrupt, too, ends what compiles
        for worker in crew:
            worker.stop()
        for worker in crew:
            if worker.ident is not None:
                worker.join(5)
    return result


class _Worker(threading.Thread):
    """Feeds one process."""

    def __init__(self, tasks: queue.SimpleQueue[Variant], target: Any, result: Compiled) -> None:
        super().__init__(name="autotune-compile", daemon=True)
        self._begun = time.monotonic()
        self._tasks, self._target, self._result = tasks, target, result
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self) -> None:
        while not self._stopped:
            try:
                variant = self._tasks.get_nowait()
            except queue.Empty:
                break
            try:
                answer = self._ask(variant)
            except (OSError, ValueError) as error:
                answer = {"error": f"the compiling process ended: {error}"}
                self._kill()
            if self._stopped:
                break
            if self._result.first_s is None:
                self._result.first_s = time.monotonic() - self._begun
            if "error" in answer:
                self._result.failed[variant.key] = answer["error"]
            elif answer["hit"]:
                self._result.hits.add(variant.key)
            else:
                self._result.seconds[variant.key] = answer["seconds"]
        self._kill()

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._stopped = True
        self._kill()

    def _ask(self, variant: Variant) -> dict[str, Any]:
        if self._process is None:
            self._process = _start(self._target)
            if self._stopped:  # while it started
                self._kill()
                raise OSError("the time is up")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {"kernel": describe_kernel(variant.kernel), "data": variant.data}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what is still to be flushed has no reader
                        stream.close()


def _start(target: Any) -> subprocess.Popen[str]:
    from triton import knobs

    # No GPU in sight: a CUDA context would take memory that the server has given to its cache.
    env = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "AUTOTUNE_MODE": "off",
        "TRITON_CACHE_DIR": knobs.cache.dir,
    }
    env["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
    process = subprocess.Popen(
        [sys.executable, "-m", CHILD],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps([target.backend, target.arch, target.warp_size]) + "\n")
    return process
