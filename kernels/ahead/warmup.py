"""Warm-up: bring variants into this process, from Triton's cache or compiled side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.kernels.ahead.lock import alone
from autotune.kernels.ahead.pool import compile_variants
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
        took_s: from beginning to end, seconds.
        timed_out: whether the limit ended it.
    """

    variants: int
    from_disk: int
    compiled: int
    left: int
    failures: tuple[str, ...]
    compile_s: float
    took_s: float
    timed_out: bool

    def __str__(self) -> str:
        if self.variants == self.from_disk:
            return f"all {self.variants} variants were in Triton's cache, read in {self.took_s:.1f} s"
        text = (
            f"{self.compiled} of {self.variants} variants compiled and {self.from_disk} read from Triton's "
            f"cache in {self.took_s:.1f} s ({self.compile_s:.1f} s one after another)"
        )
        if self.left:
            text += f"; {self.left} are left to their first use"
            if self.timed_out:
                text += ", as the time limit was reached"
            if self.failures:
                text += f" ({self.failures[0]})"
        return text


def warm_up(
    variants: Sequence[Variant],
    target: Any,
    limit_s: float,
    workers: int = 0,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> WarmUp:
    """Compile what Triton's disk cache lacks, then load all of it; nothing runs on the GPU.

    Args:
        target: Triton's GPUTarget.
        limit_s: after this many seconds the rest is left to its first use.
        workers: compiling processes; 0 for one a core, less two.
        tell: told how many variants are done, of how many.
    """
    from triton import knobs

    start = time.monotonic()
    deadline = start + limit_s
    known = {v.key for v in variants if on_disk(v, target)}
    ready, seconds, timed_out = set(known), 0.0, False
    failures: tuple[str, ...] = ()
    if len(known) < len(variants):
        with alone(knobs.cache.dir, deadline) as held:
            ready |= {v.key for v in variants if v.key not in ready and on_disk(v, target)}
            rest = [v for v in variants if v.key not in ready]
            before = len(ready)
            if held and rest:
                left_s = max(0.0, deadline - time.monotonic())
                done = compile_variants(
                    rest, target, left_s, workers, lambda n, _: tell(before + n, len(variants))
                )
                known |= done.hits
                ready |= done.hits | done.seconds.keys()
                seconds = sum(done.seconds.values())
                failures = tuple(sorted(set(done.failed.values())))
                timed_out = done.timed_out
            timed_out |= not held
    for variant in variants:
        if variant.key in ready:
            variant.load()
    return WarmUp(
        variants=len(variants),
        from_disk=len(known),
        compiled=len(ready) - len(known),
        left=len(variants) - len(ready),
        failures=failures,
        compile_s=seconds,
        took_s=time.monotonic() - start,
        timed_out=timed_out,
    )
