"""Warm-up: bring variants into this process, from Triton's cache or compiled side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.kernels.ahead.lock import alone
from autotune.kernels.ahead.pool import Compiled, compile_variants
from autotune.kernels.ahead.variants import Variant, on_disk


@dataclass(frozen=True)
class WarmUp:
    """What a warm-up did.

    Args:
        variants: how many were asked for.
        from_disk: found in Triton's cache when it began.
        compiled: compiled by this process's helpers, or meanwhile by another rank's.
        left: not there; their first launch compiles them.
        failures: reasons of those that could not be compiled.
        compile_s: sum of the compile times, seconds.
        took_s: what compiling and loading took, seconds.
        timed_out: whether the limit ended it.
        waited_s: seconds for which this process did nothing else.
        processes, first_s: how many compiled, and when the first variant was done, seconds from their start.
    """

    variants: int
    from_disk: int
    compiled: int
    left: int
    failures: tuple[str, ...]
    compile_s: float
    took_s: float
    timed_out: bool
    waited_s: float
    processes: int = 0
    first_s: float | None = None

    def __str__(self) -> str:
        if self.variants == self.from_disk:
            return f"all {self.variants} variants were in Triton's cache, read in {self.waited_s:.1f} s"
        text = (
            f"{self.compiled} of {self.variants} variants compiled and {self.from_disk} read from Triton's "
            f"cache in {self.took_s:.1f} s ({self.compile_s:.1f} s one after another"
        )
        if self.first_s is not None:
            text += f"; {self.processes} processes, the first variant after {self.first_s:.1f} s"
        text += ")"
        if self.took_s - self.waited_s > 0.1:
            text += f" beside the start, which waited {self.waited_s:.1f} s for it"
        if self.left:
            text += f"; {self.left} are left to their first use"
            if self.timed_out:
                text += ", as the time limit was reached"
            if self.failures:
                text += f" ({self.failures[0]})"
        return text


class WarmingUp:
    """A warm-up on its way: other processes compile what Triton's disk cache lacks, from now on.

    Args:
        target: Triton's GPUTarget.
        limit_s: after this many seconds the rest is left to its first use.
        workers: compiling processes; 0 for one a core, less two.
        tell: told how many variants are done, of how many, by another thread.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        target: Any,
        limit_s: float,
        workers: int = 0,
        tell: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._variants, self._target, self._workers, self._tell = tuple(variants), target, workers, tell
        self._start = time.monotonic()
        self._deadline = self._start + limit_s
        self._known = {v.key for v in variants if on_disk(v, target)}
        self._ready = set(self._known)
        self._done = Compiled()
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._ended = self._start
        self._thread: threading.Thread | None = None
        if len(self._known) < len(self._variants):
            self._thread = threading.Thread(target=self._work, name="autotune-warm-up", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            self._compile()
        except BaseException as error:  # whoever waits for it is told
            self._error = error
        finally:
            self._ended = time.monotonic()

    def _compile(self) -> None:
        from triton import knobs

        with alone(knobs.cache.dir, self._deadline) as held:
            self._ready |= {
                v.key for v in self._variants if v.key not in self._ready and on_disk(v, self._target)
            }
            rest = [v for v in self._variants if v.key not in self._ready]
            before, total = len(self._ready), len(self._variants)
            if held and rest:
                left_s = max(0.0, self._deadline - time.monotonic())
                self._done = compile_variants(
                    rest, self._target, left_s, self._workers,
                    lambda n, _: self._tell(before + n, total), self._stop,
                )  # fmt: skip
            self._done.timed_out |= not held

    def stop(self) -> None:
        """End what compiles; `finish` then tells how far it came."""
        self._stop.set()

    def finish(self) -> WarmUp:
        """Wait for what is still compiled, and load all of it; nothing runs on the GPU.

        Raises:
            OSError: if the cache cannot be used.
        """
        waiting = time.monotonic()
        try:
            if self._thread is not None:
                self._thread.join()
        except BaseException:  # an interrupt ends what compiles
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        done = self._done
        known = self._known | done.hits
        ready = self._ready | done.hits | done.seconds.keys()
        loading = time.monotonic()
        for variant in self._variants:
            if variant.key in ready:
                variant.load()
        now = time.monotonic()
        return WarmUp(
            variants=len(self._variants),
            from_disk=len(known),
            compiled=len(ready) - len(known),
            left=len(self._variants) - len(ready),
            failures=tuple(sorted(set(done.failed.values()))),
            compile_s=sum(done.seconds.values()),
            took_s=self._ended - self._start + now - loading,
            timed_out=done.timed_out,
            waited_s=now - waiting,
            processes=done.processes,
            first_s=done.first_s,
        )


def warm_up(
    variants: Sequence[Variant],
    target: Any,
    limit_s: float,
    workers: int = 0,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> WarmUp:
    """Compile what Triton's disk cache lacks, then load all of it. Arguments as for `WarmingUp`.

    Raises:
        OSError: if the cache cannot be used.
    """
    return WarmingUp(variants, target, limit_s, workers, tell).finish()
