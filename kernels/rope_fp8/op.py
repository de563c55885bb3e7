"""Host side of the fused rotary embedding and FP8 quantization, and its torch reference."""

from __future__ import annotations

import torch
import triton

from autotune.kernels.launch import Launch
from autotune.kernels.rope_fp8 import _op
from autotune.kernels.weights import FP8_MAX

BLOCK_T = 4
"""Tokens of one program: four heads' rows of 128 fill one warp's registers without spilling."""


def plan(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    naive: bool = False,
) -> Launch:
    """The launch; shapes as in `rope_fp8`.

    Raises:
        ValueError: if the head dimension is no power of two, or a shape does not fit.
    """
    tokens, heads, dim = x.shape
    if dim < 16 or dim & (dim - 1):
        raise ValueError(f"the head dimension must be a power of two from 16 on, not {dim}")
    if positions.shape != (tokens,) or cos_sin.shape[1:] != (dim,):
        raise ValueError(
            f"positions {tuple(positions.shape)} and cos_sin {tuple(cos_sin.shape)} "
            f"do not fit x {tuple(x.shape)}"
        )
    return Launch(
        _op.rope_fp8_naive_kernel if naive else _op.rope_fp8_kernel,
        (triton.cdiv(tokens, BLOCK_T), heads),
        (x, positions, cos_sin, out, scale, tokens),
        {"HEADS": heads, "DIM": dim, "BLOCK_T": BLOCK_T, "num_warps": 1},
    )


def rope_fp8(
    x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, naive: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate and quantize.

    Args:
        x: `[tokens, heads, dim]` bfloat16, contiguous; dim a power of two.
        positions: `[tokens]` integers, rows of `cos_sin`.
        cos_sin: `[positions, dim]` float32: dim/2 cosines, then dim/2 sines.
        naive: use the kernel that Triton specializes on the token count.

    Returns:
        `[tokens, heads, dim]` float8_e4m3fn, and the scales `[tokens, heads]` float32 that bring it back.

    Raises:
        ValueError: if the head dimension is no power of two, or a shape does not fit.
    """
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(x.shape[:2], dtype=torch.float32, device=x.device)
    plan(x, positions, cos_sin, out, scale, naive).run()
    return out, scale


def rope_fp8_reference(
    x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotation `[tokens, heads, dim]` in float32, not yet FP8, and the scales `[tokens, heads]`."""
    half = x.shape[2] // 2
    angles = cos_sin[positions.long()][:, None, :]
    cos, sin = angles[..., :half], angles[..., half:]
    first, second = x.float()[..., :half], x.float()[..., half:]
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=2)
    return rotated, rotated.abs().amax(dim=2).clamp_min(1e-10) / FP8_MAX


def rotary_table(positions: int, dim: int, base: float = 1e6, device: str = "cpu") -> torch.Tensor:
    """`cos_sin` for positions 0..positions-1 (RoFormer, Su et al. 2021, equation 15; base as in Qwen3)."""
    frequencies = base ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    angles = torch.arange(positions, device=device, dtype=torch.float32)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)
