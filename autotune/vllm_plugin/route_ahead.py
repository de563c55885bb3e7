"""Our kernels' variants, compiled side by side before their routes are tried one after another."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.vllm_plugin.inner_experts import Inner
from autotune.vllm_plugin.log import info_once
from autotune.vllm_plugin.own_experts import tried_at
from autotune.vllm_plugin.route_plan import RoutePlan

if TYPE_CHECKING:
    from autotune.kernels.launch import Launch

LayOut = Callable[[], "Sequence[Launch]"]
"""Lays out the launches of one call, and runs none of them."""


class Ahead:
    """What is compiled for a plan, from the time when it is made until its first route is tried.

    Args:
        label: what is served, for the log.
    """

    def __init__(self, label: str, warming: Any) -> None:
        self._label, self._warming = label, warming

    def finish(self) -> float:
        """Wait for it and load it; the seconds that it took. What is not compiled in time is left.

        Raises:
            OSError: if Triton's cache cannot be used.
        """
        done = self._warming.finish()
        info_once(f"our kernels for {self._label}: {done}")
        return float(done.took_s)


def begin(label: str, calls: Iterable[LayOut], limit_s: float) -> Ahead | None:
    """Begin to compile what these calls launch, for at most `limit_s` seconds; None if nothing is missing.

    vLLM prepares the other layers' weights and compiles the model meanwhile. A call that cannot be laid out
    is left to its probe, which says what is wrong with it.
    """
    from triton.runtime import driver

    from autotune.kernels.ahead.variants import collecting
    from autotune.kernels.ahead.warmup import WarmingUp

    with collecting() as found:
        for call in calls:
            try:
                for launch in call():
                    launch.compile()
            except Exception:
                continue
    if not found.missing:
        return None
    target = driver.active.get_current_target()
    return Ahead(label, WarmingUp(list(found.missing.values()), target, limit_s))


def compile_ahead(
    label: str, calls: Iterable[LayOut], limit_s: float, begun_before: Ahead | None = None
) -> None:
    """Compile what these calls launch, or read it from Triton's cache, for at most `limit_s` seconds.

    Args:
        begun_before: what is on its way already; its time is a part of the limit.

    Raises:
        OSError: if Triton's cache cannot be used.
    """
    if begun_before is not None:
        limit_s -= begun_before.finish()
        if limit_s <= 0:
            return
    begun = begin(label, calls, limit_s)
    if begun is not None:
        begun.finish()


def begin_plan(plan: RoutePlan, inners: Sequence[Inner], gate: bool = False) -> Ahead | None:
    """Begin to compile what a new plan's routes launch of our kernels.

    Args:
        inners: of a layer, the base first. Only shapes are read of its tensors.
        gate: whether a single token may be taken from the gate on.

    Returns:
        None where nothing is begun: nothing is missing, there is no GPU, or it fails, which the log says; the
        probes compile it then.
    """
    import torch

    if plan.ahead_s <= 0 or not torch.cuda.is_initialized():
        return None
    try:
        from autotune.kernels.backends.fused import unfilled

        weights, _ = unfilled(plan.problem, 1)
        most = _largest_batch()
        calls: list[LayOut] = [
            partial(inner.lay_out, count, weights.w13, weights.w2)
            for inner, entry in zip(inners[1:], plan.entries, strict=True)
            if inner.lay_out is not None
            for count in tried_at(plan.problem, entry.candidate, entry.first, entry.last)
            if count <= most
        ]
        if gate:
            calls += [
                partial(inner.own.lay_out_from_gate, weights.w13, weights.w2)
                for inner, entry in zip(inners[1:], plan.entries, strict=True)
                if inner.own is not None and entry.backend == "fused_decode" and entry.first == 1
            ]
        return begin(str(plan.problem), calls, plan.ahead_s)
    except Exception as error:
        info_once(f"our kernels are not compiled ahead: {type(error).__name__}: {error}")
        return None


def _largest_batch() -> int:
    """vLLM's `max_num_batched_tokens`, or more than any where the configuration is not at hand."""
    try:
        config: Any = importlib.import_module("vllm.config").get_current_vllm_config_or_none()
        return int(config.scheduler_config.max_num_batched_tokens)
    except Exception:
        return sys.maxsize
