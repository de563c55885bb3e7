"""Asking Triton for a GPU's variants on a machine that has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TargetOnly:
    """Triton's driver where nothing can be launched: it only names what is compiled for."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target


@contextmanager
def compiling_for(capability: tuple[int, int]) -> Iterator[Any]:
    """Let Triton think of a CUDA GPU of this compute capability; yields its GPUTarget."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    before = driver._active  # reset_active would look for a GPU
    driver.set_active(TargetOnly(target))
    try:
        yield target
    finally:
        driver.set_active(before)
