"""A layer call's launches, laid out once for a token count; later calls only fill the addresses in.

Laying out six launches, allocating a tensor for each intermediate and asking each argument for its type is
most of what `fused_triton` costs on the host, and above the largest CUDA graph the host sets the pace of a
prefill (docs/lab.md). All layers of a problem share what is laid out here: it holds no address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.launch import Launch
from autotune.kernels.weights import LayerInputs, MoeWeights

ALIGNMENT = 256
"""Bytes: what torch's allocator aligns tensors to, more than any of the kernels asks for."""
MOST = 4096
"""Token counts laid out at a time for one kernel, some kilobytes each."""

Runner = Callable[..., Any]


@dataclass(frozen=True)
class _Filled:
    """One launch: Triton's compiled kernel on its grid, where its addresses come from, and the rest."""

    runner: Runner
    addresses: tuple[tuple[int, int], ...]
    """Of each pointer: the place of its tensor in `_sources`, and how many bytes behind its start."""
    rest: tuple[Any, ...]
    """Numbers and compile-time constants, which follow the pointers."""


class Prepared:
    """The launches of a candidate at one token count, for any layer with these types and this layout."""

    def __init__(self, launches: Sequence[_Filled], nbytes: int) -> None:
        self._launches = launches
        self._nbytes = nbytes

    def run(self, weights: MoeWeights, inputs: LayerInputs, output: torch.Tensor) -> bool:
        """Launch; False, and nothing launched, where an address is not a multiple of 16.

        Triton compiles another variant for such a one, so that call must be laid out anew.
        """
        scratch = torch.empty(self._nbytes, dtype=torch.uint8, device=inputs.hidden.device)
        sources = [0 if tensor is None else tensor.data_ptr() for tensor in _sources(weights, inputs, output)]
        seen = 0
        for address in sources:
            seen |= address
        if seen & 15:
            return False
        sources.append(scratch.data_ptr())
        for launch in self._launches:
            launch.runner(*[sources[place] + offset for place, offset in launch.addresses], *launch.rest)
        return True


def _sources(
    weights: MoeWeights, inputs: LayerInputs, output: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """All that a call is given, in the order that `_Filled.addresses` counts; the scratch follows."""
    return (
        inputs.hidden, inputs.topk_ids, inputs.topk_weights, output, weights.w13, weights.w2,
        weights.w13_scale, weights.w2_scale, weights.a1_scale, weights.a2_scale,
    )  # fmt: skip


def prepare(
    launches: Sequence[Launch],
    runners: Sequence[Runner],
    weights: MoeWeights,
    inputs: LayerInputs,
    output: torch.Tensor,
) -> Prepared | None:
    """What later calls of as many tokens launch; None if this call's launches do not tell it.

    Args:
        launches: of this call. Tensors in them that the call was not given are its own, written before they
            are read; each gets its place in one allocation, as long as the call.
        runners: for each launch, the compiled kernel on its grid.
    """
    sources = _sources(weights, inputs, output)
    given = {id(t): place for place, t in enumerate(sources) if t is not None}
    if len(given) < sum(t is not None for t in sources):
        return None  # one tensor in two places, which a later call need not repeat
    scratch_place = len(sources)
    own: dict[int, int] = {}
    nbytes = 0
    filled = []
    for launch, runner in zip(launches, runners, strict=True):
        addresses: list[tuple[int, int]] = []
        numbers: list[int] = []
        for argument in launch.arguments:
            if not isinstance(argument, torch.Tensor):
                numbers.append(argument)
                continue
            if numbers:
                return None  # a pointer behind a number
            if id(argument) in given:
                addresses.append((given[id(argument)], 0))
                continue
            if id(argument) not in own:
                own[id(argument)] = nbytes
                size = argument.numel() * argument.element_size()
                nbytes += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            addresses.append((scratch_place, own[id(argument)]))
        filled.append(_Filled(runner, tuple(addresses), (*numbers, *launch.constants())))
    return Prepared(filled, nbytes)


__all__ = ["MOST", "Prepared", "prepare"]
