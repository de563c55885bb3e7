"""What our Triton kernels have in common on the host: launches laid out before they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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

    def run(self) -> None:
        self.kernel[self.grid](*self.arguments, **self.options)

    def compile(self) -> None:
        """Compile without running anything on the GPU (or find the result in Triton's cache)."""
        self.kernel.warmup(*self.arguments, grid=self.grid, **self.options)


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
