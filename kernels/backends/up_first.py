"""vLLM's Triton and CUTLASS experts on weights whose up rows come first (`w31`, FlashInfer's order).

Their activation runs apart from their GEMMs, so it alone has to take its halves in the other order: vLLM has
that op, `mul_and_silu(out, x)` with out = x[:, :N] * silu(x[:, N:]) (csrc/activation_kernels.cu).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_EXPERTS = "vllm.model_executor.layers.fused_moe.experts"


def up_first_activation(
    activation: Any, output: torch.Tensor, input: torch.Tensor, **named: Any
) -> torch.Tensor:
    """In place of vLLM's `apply_moe_activation`: `output` [rows, N] from `input` [rows, 2N], up half first.

    Raises:
        NotImplementedError: for another activation than plain silu, which has no op in this order.
    """
    # Keywords until vLLM 0.26, an object since 0.28.
    config = named.get("activation_config")
    limit = named.get("clamp_limit") if config is None else config.clamp_limit
    if activation.value != "silu" or limit is not None:
        clamped = "clamped " if limit is not None else ""
        raise NotImplementedError(f"vLLM has no {clamped}{activation.value} that takes the up half first")
    torch.ops._C.mul_and_silu(output, input)
    return output


def up_first_triton(experts: type) -> type:
    """A subclass of vLLM's TritonExperts for weights whose up rows come first."""

    class UpFirstTritonExperts(experts):  # type: ignore[misc]
        def activation(self, activation: Any, output: Any, input: Any, **named: Any) -> None:
            limit = self.quant_config.gemm1_clamp_limit
            up_first_activation(activation, output, input, clamp_limit=limit)

    return UpFirstTritonExperts


@contextmanager
def up_first_cutlass() -> Iterator[None]:
    """Make calls of vLLM's CUTLASS experts take the up half first, and put everything back.

    `run_cutlass_moe_fp8` looks its activation up as a global of its module, on every call.
    """
    module: Any = importlib.import_module(f"{_EXPERTS}.cutlass_moe")
    original = module.apply_moe_activation
    module.apply_moe_activation = up_first_activation
    try:
        yield
    finally:
        module.apply_moe_activation = original
