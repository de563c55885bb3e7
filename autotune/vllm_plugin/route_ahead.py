"""Our kernels' variants, compiled side by side before their routes are tried one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from autotune.vllm_plugin.log import info_once

if TYPE_CHECKING:
    from autotune.kernels.launch import Launch

LayOut = Callable[[], "Sequence[Launch]"]
"""Lays out the launches of one call, and runs none of them."""


def compile_ahead(label: str, calls: Iterable[LayOut], limit_s: float) -> None:
    """Compile what these calls launch, or read it from Triton's cache, for at most `limit_s` seconds.

    A call that cannot be laid out is left to its probe, which says what is wrong with it; so is what is not
    compiled in time.

    Args:
        label: what is served, for the log.
    """
    from triton.runtime import driver

    from autotune.kernels.ahead.variants import collecting
    from autotune.kernels.ahead.warmup import warm_up

    with collecting() as found:
        for call in calls:
            try:
                for launch in call():
                    launch.compile()
            except Exception:
                continue
    if found.missing:
        done = warm_up(list(found.missing.values()), driver.active.get_current_target(), limit_s)
        info_once(f"our kernels for {label}: {done}")
