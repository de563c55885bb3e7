"""Quantized expert weights and layer inputs, made once per problem and shared by every backend."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from autotune.kernels.layouts import Layout
from autotune.vocabulary.problem import Problem, Scheme

FP8_MAX = 448.0
"""Largest finite float8_e4m3fn."""
BLOCK = 128


@dataclass(frozen=True)
class MoeWeights:
    """One layer's expert weights.

    Args:
        w13: `[E, 2N, K]` in the order that `layout` names (the checkpoint's: gate rows, then up rows), or
            `[E, N, K]` where the activation is not gated.
        w2: `[E, K, N]`.
        w13_scale, w2_scale: None for bf16; float32 `[E]` per tensor, `[E, rows, 1]` per channel,
            `[E, rows/128, columns/128]` per block.
        a1_scale, a2_scale: for fp8_tensor only: static activation scales, float32 scalars (0-D, as vLLM
            keeps them).
    """

    problem: Problem
    w13: torch.Tensor
    w2: torch.Tensor
    w13_scale: torch.Tensor | None = None
    w2_scale: torch.Tensor | None = None
    a1_scale: torch.Tensor | None = None
    a2_scale: torch.Tensor | None = None
    layout: Layout = "w13"

    @property
    def up_first(self) -> bool:
        return self.layout == "w31" and self.problem.gated


def in_layout(weights: MoeWeights, layout: Layout) -> MoeWeights:
    """The same layer with its first matrix, and that one's scales by row, in another order.

    Copies the first matrix, unless it is in that order already.
    """
    if weights.layout == layout:
        return weights
    if not weights.problem.gated:
        return replace(weights, layout=layout)
    scale = weights.w13_scale
    by_row = scale is not None and scale.dim() == 3
    return replace(
        weights,
        w13=swap_halves(weights.w13),
        w13_scale=swap_halves(scale) if scale is not None and by_row else scale,
        layout=layout,
    )


def swap_halves(rows: torch.Tensor) -> torch.Tensor:
    """A copy of `[E, 2R, ...]` with the halves of its second dimension exchanged."""
    first, second = rows.chunk(2, dim=1)
    return torch.cat([second, first], dim=1)


@dataclass(frozen=True)
class LayerInputs:
    """One call's inputs.

    Args:
        hidden: `[M, K]` bfloat16.
        topk_ids: `[M, topk]` int32, expert numbers over all ranks; this rank holds `0..E-1` and skips
            the rest.
        topk_weights: `[M, topk]` float32.
    """

    hidden: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor

    @property
    def tokens(self) -> int:
        return self.hidden.shape[0]


def make_weights(problem: Problem, seed: int, device: str = "cuda") -> MoeWeights:
    """Draw random weights as a trained layer has them (zero mean, 1/sqrt(fan-in)) and quantize them.

    Raises:
        torch.OutOfMemoryError: if the layer does not fit the GPU.
    """
    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        dtype = torch.bfloat16 if problem.scheme is Scheme.BF16 else torch.float8_e4m3fn
        values = torch.empty(problem.E, rows, columns, dtype=dtype, device=device)
        scales = []
        for expert in range(problem.E):
            # One expert at a time: float32 copies of a whole layer would need four times its memory.
            raw = torch.randn(rows, columns, generator=generator, device=device) * columns**-0.5
            quantized, scale = quantize_weight(raw, problem.scheme)
            values[expert] = quantized
            scales.append(scale)
        return values, None if scales[0] is None else torch.stack(scales)  # type: ignore[arg-type]

    w13, w13_scale = draw(problem.gate_up_rows, problem.K)
    w2, w2_scale = draw(problem.K, problem.N)
    a1_scale = a2_scale = None
    if problem.scheme is Scheme.FP8_TENSOR:
        # Static scales come from calibration: about four standard deviations of the hidden state (drawn
        # with deviation 1) and eight of the SwiGLU product (deviation about 0.6) just fit.
        a1_scale = torch.tensor(4.5 / FP8_MAX, device=device)
        a2_scale = torch.tensor(6.0 / FP8_MAX, device=device)
    return MoeWeights(problem, w13, w2, w13_scale, w2_scale, a1_scale, a2_scale)


def quantize_weight(raw: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Quantize one expert's float32 matrix `[rows, columns]`; returns values and scales (see MoeWeights)."""
    if scheme is Scheme.BF16:
        return raw.to(torch.bfloat16), None
    rows, columns = raw.shape
    if scheme is Scheme.FP8_TENSOR:
        scale = raw.abs().amax() / FP8_MAX
        return _to_fp8(raw / scale), scale
    if scheme is Scheme.FP8_CHANNEL:
        scale = raw.abs().amax(dim=1, keepdim=True) / FP8_MAX
        return _to_fp8(raw / scale), scale
    blocks = raw.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scale = blocks.abs().amax(dim=(1, 3)) / FP8_MAX
    return _to_fp8((blocks / scale[:, None, :, None]).view(rows, columns)), scale


def dequantize_weight(values: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """One expert's matrix back in float32."""
    wide = values.float()
    if scale is None:
        return wide
    if (scale.dim() == 2 and scale.shape[1] > 1) or (scale.dim() == 2 and scale.shape[0] != values.shape[0]):
        return wide * scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return wide * scale


def fake_quantize(
    rows: torch.Tensor, scheme: Scheme, static_scale: torch.Tensor | None, power_of_two: bool = False
) -> torch.Tensor:
    """Quantize activations as the scheme does and return them dequantized, float32.

    Args:
        power_of_two: round the scales of fp8_block128 up to powers of two (UE8M0), as vLLM does on GPUs
            with DeepGEMM (`is_deep_gemm_e8m0_used`).
    """
    wide = rows.float()
    if scheme is Scheme.BF16:
        return wide.to(torch.bfloat16).float()
    if scheme is Scheme.FP8_TENSOR:
        assert static_scale is not None
        return _to_fp8(wide / static_scale).float() * static_scale
    if scheme is Scheme.FP8_CHANNEL:
        scale = wide.abs().amax(dim=1, keepdim=True).clamp_min(1e-10) / FP8_MAX
        return _to_fp8(wide / scale).float() * scale
    groups = wide.view(wide.shape[0], -1, BLOCK)
    scale = groups.abs().amax(dim=2, keepdim=True).clamp_min(1e-10) / FP8_MAX
    if power_of_two:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    return (_to_fp8(groups / scale).float() * scale).view_as(wide)


def make_inputs(
    problem: Problem, tokens: int, seed: int, routing: str = "uniform", device: str = "cuda"
) -> LayerInputs:
    """Draw one call's inputs.

    Args:
        routing: `uniform`, or `zipf:S`: expert r (in a random order of its own) is drawn with a probability
            proportional to (r+1)^-S, without replacement within a token.
    """
    # Far from any seed of make_weights: with one seed for both, the hidden rows would equal an expert's
    # weight rows, and their products would be outliers.
    generator = torch.Generator(device=device).manual_seed(seed + (1 << 30))
    hidden = torch.randn(tokens, problem.K, generator=generator, device=device).to(torch.bfloat16)
    experts = problem.global_experts
    # Gumbel top-k: draws without replacement in proportion to exp(logit).
    logits = torch.zeros(experts, device=device)
    if routing != "uniform":
        exponent = float(routing.partition(":")[2])
        order = torch.randperm(experts, generator=generator, device=device)
        logits = -exponent * torch.log(order.float() + 1)
    noise = torch.rand(tokens, experts, generator=generator, device=device).clamp_(1e-20, 1 - 1e-7)
    ids = (logits - torch.log(-torch.log(noise))).topk(problem.topk, dim=1).indices.to(torch.int32)
    weights = torch.rand(tokens, problem.topk, generator=generator, device=device) + 0.1
    return LayerInputs(hidden, ids.contiguous(), weights / weights.sum(dim=1, keepdim=True))


def _to_fp8(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
