"""The oracle: the fused MoE layer in float32, from the same quantized values that the backends read."""

from __future__ import annotations

import torch

from autotune.kernels.weights import LayerInputs, MoeWeights, dequantize_weight, fake_quantize


def reference_moe(
    weights: MoeWeights,
    inputs: LayerInputs,
    quantize_intermediate: bool = True,
    power_of_two_scales: bool = False,
) -> torch.Tensor:
    """Compute the layer expert by expert in float32; returns `[M, K]` float32.

    Args:
        quantize_intermediate: quantize the activation's output as the scheme does before the second GEMM.
            Every FP8 backend does so, so this is the default; with False the second rounding counts as error.
        power_of_two_scales: see `fake_quantize`; a backend says which it uses, so that each is held against
            the values that it reads.

    Raises:
        ValueError: for an activation that is not implemented here.
    """
    problem = weights.problem
    hidden = fake_quantize(inputs.hidden, problem.scheme, weights.a1_scale, power_of_two_scales)
    output = torch.zeros_like(hidden)
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        for expert in torch.unique(inputs.topk_ids).tolist():
            if not 0 <= expert < problem.E:
                continue  # another rank's
            rows, slots = (inputs.topk_ids == expert).nonzero(as_tuple=True)
            w13 = dequantize_weight(weights.w13[expert], _of(weights.w13_scale, expert))
            inner = activate(hidden[rows] @ w13.T, problem.act, weights.up_first)
            if quantize_intermediate:
                inner = fake_quantize(inner, problem.scheme, weights.a2_scale, power_of_two_scales)
            w2 = dequantize_weight(weights.w2[expert], _of(weights.w2_scale, expert))
            output.index_add_(0, rows, (inner @ w2.T) * inputs.topk_weights[rows, slots, None])
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32
    return output


def activate(columns: torch.Tensor, act: str, up_first: bool = False) -> torch.Tensor:
    """The activation on the first GEMM's output `[rows, 2N]` (or `[rows, N]` for relu2_no_mul)."""
    if act == "relu2_no_mul":
        return torch.relu(columns).square()
    gate, up = reversed(columns.chunk(2, dim=1)) if up_first else columns.chunk(2, dim=1)
    if act == "silu":
        return torch.nn.functional.silu(gate) * up
    if act == "gelu":
        return torch.nn.functional.gelu(gate) * up
    if act == "gelu_tanh":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    raise ValueError(f"activation {act} has no reference; known: silu, gelu, gelu_tanh, relu2_no_mul")


def relative_l2(output: torch.Tensor, reference: torch.Tensor) -> float:
    """||output - reference|| / ||reference||; infinity if anything is not finite.

    Where the reference is all zeros (no token chose an expert of this rank) only zeros are right.
    """
    wide = output.float()
    if not torch.isfinite(wide).all():
        return float("inf")
    difference = float(torch.linalg.vector_norm(wide - reference))
    scale = float(torch.linalg.vector_norm(reference))
    if scale == 0.0:
        return 0.0 if difference == 0.0 else float("inf")
    return difference / scale


def _of(scale: torch.Tensor | None, expert: int) -> torch.Tensor | None:
    return None if scale is None else scale[expert]
