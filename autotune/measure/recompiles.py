"""vLLM's Triton MoE kernel against itself without specialization on the token count: bits and speed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from autotune.kernels.ahead.variants import Variant, collecting
from autotune.kernels.ahead.warmup import WarmUp, warm_up
from autotune.kernels.backends.registry import get_backend, vllm_triton_config
from autotune.kernels.backends.vllm_gemms import TritonGemms
from autotune.kernels.backends.vllm_modular import forced_tile
from autotune.kernels.unspecialized import VLLM_SCALARS, without_specialization
from autotune.kernels.weights import make_inputs, make_weights
from autotune.measure.timing import TimedGraph, calls_per_graph, capture, estimate_us, time_pairs
from autotune.vocabulary.measurement import PairedTimes
from autotune.vocabulary.problem import Problem

_MODULE = "vllm.model_executor.layers.fused_moe.fused_moe"
DISTINCT = 8
"""Different inputs in one graph, as in a sweep; half of them from 513 tokens on."""


@contextmanager
def kernel_in_place(kernel: Any) -> Iterator[None]:
    """Let vLLM's launcher use this kernel."""
    module: Any = importlib.import_module(_MODULE)
    original = module.fused_moe_kernel
    module.fused_moe_kernel = kernel
    try:
        yield
    finally:
        module.fused_moe_kernel = original


class KernelPair:
    """One problem's layer with vLLM's own tiles, run with either form of the kernel.

    Args:
        seed: of the weights.
    """

    def __init__(self, problem: Problem, seed: int = 1) -> None:
        self.problem = problem
        module: Any = importlib.import_module(_MODULE)
        self.original = module.fused_moe_kernel
        self.unspecialized = without_specialization(self.original, VLLM_SCALARS)
        self._backend = get_backend("triton")
        self._prepared = self._backend.prepare(make_weights(problem, seed))

    def variants(self, counts: Sequence[int]) -> list[Variant]:
        """What both forms need for these token counts and is not loaded; nothing is compiled or launched."""
        gemms = TritonGemms(self.problem)
        with collecting() as found:
            for kernel in (self.original, self.unspecialized):
                for tokens in counts:
                    candidate = vllm_triton_config(self.problem, tokens)
                    with kernel_in_place(kernel), forced_tile(candidate.tile, candidate.swap_ab):
                        gemms.launch(tokens, candidate.tile.vllm_config())
        return list(found.missing.values())

    def outputs(self, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The layer's output `[tokens, K]` from the original, the original again, and the other form."""
        inputs = make_inputs(self.problem, tokens, seed)
        call = self._backend.bind(self._prepared, vllm_triton_config(self.problem, tokens))
        found = []
        for kernel in (self.original, self.original, self.unspecialized):
            with kernel_in_place(kernel):
                found.append(call(inputs).clone())
        torch.cuda.synchronize()
        return found[0], found[1], found[2]

    def times(self, tokens: int, seed: int, blocks: int = 10, replays: int = 3) -> PairedTimes:
        """Both forms in turns, on graphs captured for this call; the original is the baseline."""
        distinct = DISTINCT if tokens <= 512 else DISTINCT // 2
        inputs = [make_inputs(self.problem, tokens, seed * 1000 + i) for i in range(distinct)]
        call = self._backend.bind(self._prepared, vllm_triton_config(self.problem, tokens))
        with kernel_in_place(self.original):
            total = calls_per_graph(estimate_us(call, inputs[0]), distinct)
        graphs: list[TimedGraph] = []
        for kernel in (self.original, self.unspecialized):
            with kernel_in_place(kernel):
                rounds = [(call, inputs[i % distinct]) for i in range(total)]
                graphs.append(capture(rounds, self._backend.scratch))
        return time_pairs(graphs[0], graphs[1], blocks, replays)


def compile_pairs(pairs: Sequence[KernelPair], counts: Sequence[int], limit_s: float = 300.0) -> WarmUp:
    """Compile both forms of every pair for these token counts, side by side."""
    from triton.runtime import driver

    variants = {v.key: v for pair in pairs for v in pair.variants(counts)}
    return warm_up(list(variants.values()), driver.active.get_current_target(), limit_s)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two bfloat16 tensors hold the same bits, NaN included."""
    return torch.equal(first.contiguous().view(torch.int16), second.contiguous().view(torch.int16))
