"""What our Triton kernels have in common on the host: launches laid out before they run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from triton.runtime.jit import JITFunction

from autotune.kernels.weights import LayerInputs, MoeWeights
from autotune.vocabulary.problem import Scheme

SCHEME_CODES = {Scheme.BF16: 0, Scheme.FP8_TENSOR: 1, Scheme.FP8_CHANNEL: 2, Scheme.FP8_BLOCK128: 3}
"""Schemes as the kernels' SCHEME argument."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch of ours: everything that decides what Triton compiles, and the grid."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def run(self) -> Callable[..., Any] | None:
        """Launch; from the second time on without Triton's look-up, most of what a launch costs on the host.

        On one H200's host it was two fifths of the layer's time in a prefill of 1,500 tokens
        (benchmarks/results/2026-11-30-prefill-profile, under cProfile).

        Returns:
            the compiled kernel on this grid, which takes arguments of the same types and addresses that 16
            divides, and `constants`; None where that is not all that decides which kernel it is.
        """
        key = self._key()
        compiled = _compiled.get(key)
        x, y, z = (*self.grid, 1, 1)[:3]
        if compiled is None:
            compiled = self.kernel[self.grid](*self.arguments, **self.options)
            if key is None or compiled is None:  # None where it is only collected, to be compiled later
                return None
            _compiled[key] = compiled
            return cast(Callable[..., Any], compiled[x, y, z])
        runner: Callable[..., Any] = compiled[x, y, z]
        runner(*self.arguments, *self.constants())
        return runner

    def compile(self) -> None:
        """Compile without running anything on the GPU (or find the result in Triton's cache)."""
        self.kernel.warmup(*self.arguments, grid=self.grid, **self.options)

    def constants(self) -> tuple[Any, ...]:
        """The compile-time arguments in the order of the kernel's parameters, which follow the others."""
        options = self.options
        return tuple([options[name] for name in self.kernel.arg_names[len(self.arguments) :]])

    def _key(self) -> tuple[Any, ...] | None:
        # What Triton's own look-up goes by: the type of a tensor and whether its address is a multiple of 16.
        # Of a number nothing, if the kernel does not specialize on it and it fits 32 bits.
        specialized_on = _specialized(self.kernel)
        if specialized_on is None:
            return None
        addresses = 0
        seen: list[Any] = [id(self.kernel), self.arguments[0].get_device()]
        for argument, specialized in zip(self.arguments, specialized_on, strict=False):
            if type(argument) is int:
                if specialized or argument >> 31:
                    return None
            elif type(argument) in _TENSORS:
                addresses |= argument.data_ptr()
                seen.append(argument.dtype)
            else:
                return None
        if addresses & 15:
            return None
        return (*seen, *self.options.values())


_TENSORS = (torch.Tensor, torch.nn.Parameter)


@functools.cache
def _specialized(kernel: Any) -> tuple[bool, ...] | None:
    """For each parameter, whether Triton compiles another variant for some values; None when interpreted."""
    if not isinstance(kernel, JITFunction):
        return None
    return tuple([not parameter.do_not_specialize for parameter in kernel.params])


_compiled: dict[tuple[Any, ...] | None, Any] = {}
"""Kernels that have been launched, by all that decides which one it is."""

Plan = Callable[[MoeWeights, LayerInputs, Any, torch.Tensor], Sequence[Launch]]
"""Lays out one layer call: weights, inputs, candidate, output `[M, K]` bfloat16."""


def run_layer(
    plan: Plan, weights: MoeWeights, inputs: LayerInputs, candidate: Any, output: torch.Tensor | None = None
) -> torch.Tensor:
    """Run the layer; returns `[M, K]` bfloat16, in `output` if given.

    Raises:
        ValueError: if the kernel does not take the inputs.
        triton.runtime.errors.OutOfResources: if a tile does not fit the GPU.
    """
    if output is None:
        output = torch.empty_like(inputs.hidden)
    for launch in plan(weights, inputs, candidate, output):
        launch.run()
    return output


def or_else(tensor: torch.Tensor | None, otherwise: torch.Tensor) -> torch.Tensor:
    """A stand-in where a kernel needs a pointer that its scheme does not read."""
    return otherwise if tensor is None else tensor
