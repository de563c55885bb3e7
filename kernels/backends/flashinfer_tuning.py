"""FlashInfer's autotuner (flashinfer/autotuner.py): let it tune, go around it, see which tactic a call took.

FlashInfer's CUTLASS MoE asks the tuner twice a call, once per GEMM. It answers with an index into the list of
kernels compiled in, which it found fastest for the call's bucket of token counts, or -1 for "the first one".
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GEMMS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
"""What flashinfer/fused_moe/core.py calls the two choices."""
FALLBACK = -1


@contextmanager
def tuning() -> Iterator[None]:
    """Calls in here tune what is not tuned yet, as vLLM's warm-up does."""
    from flashinfer.autotuner import autotune

    with autotune(True):
        yield


@contextmanager
def untuned() -> Iterator[None]:
    """Calls in here run as if nothing had been tuned, whatever this process has tuned before.

    Raises:
        NotImplementedError: if this FlashInfer cannot skip its tuner.
    """
    from flashinfer.autotuner import autotune

    if "skip_ops" not in inspect.signature(autotune).parameters:
        raise NotImplementedError(
            "this FlashInfer cannot skip its autotuner (no `skip_ops`); install flashinfer-python 0.6.13"
        )
    with autotune(False, skip_ops=set(GEMMS)):
        yield


@contextmanager
def recording_tactics() -> Iterator[dict[str, int]]:
    """The tactic of each GEMM that calls in here ran with, by `gemm1` and `gemm2`."""
    from flashinfer.autotuner import AutoTuner

    tuner: Any = AutoTuner.get()
    chosen: dict[str, int] = {}
    choose = tuner.choose_one

    def choose_one(custom_op: str, *args: Any, **named: Any) -> Any:
        runner, tactic = choose(custom_op, *args, **named)
        if custom_op in GEMMS:
            chosen[custom_op.rpartition("::")[2]] = int(tactic)
        return runner, tactic

    # On the one instance that there is, not on the class: deleting it brings the method back.
    tuner.choose_one = choose_one
    try:
        yield chosen
    finally:
        del tuner.choose_one


def describe(chosen: dict[str, int]) -> str | None:
    """`gemm1 12, gemm2 40`; None if no tactic was asked for."""
    if not chosen:
        return None
    return ", ".join(
        f"{gemm} {'fallback' if tactic == FALLBACK else tactic}" for gemm, tactic in sorted(chosen.items())
    )
