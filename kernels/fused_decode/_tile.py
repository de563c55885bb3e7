"""Arithmetic of `fused_decode`: activations to FP8, and one step of a product with weights on the left."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.fused_triton._op import BF16, FP8_MAX, TENSOR, TINY, _to_fp8
from autotune.kernels.keys import settle


@triton.jit
def multiply(
    w,
    x,
    acc,
    w_scale,
    x_scale,
    static_scale,
    SCHEME: tl.constexpr,
    QUANTIZED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """acc + w @ quantize(x): w [ROWS, BLOCK_K], x [BLOCK_K, BLOCK_M], w_scale [ROWS] of this step.

    QUANTIZED: x is FP8 already, with x_scale [BLOCK_M] where scales are per block.
    """
    if SCHEME == BF16 and WIDEN:
        acc = tl.dot(w.to(tl.float32), x.to(tl.float32), acc=acc)
    elif SCHEME == BF16 or (SCHEME == TENSOR and QUANTIZED):
        acc = tl.dot(w, x, acc=acc)
    elif SCHEME == TENSOR:
        acc = tl.dot(w, _to_fp8(x.to(tl.float32) / static_scale), acc=acc)
    elif QUANTIZED:
        acc += tl.dot(w, x) * w_scale[:, None] * x_scale[None, :]
    else:
        wide = x.to(tl.float32)
        scale = tl.maximum(tl.max(tl.abs(wide), 0), TINY) / FP8_MAX
        acc += tl.dot(w, _to_fp8(wide / scale[None, :])) * w_scale[:, None] * scale[None, :]
    return acc


@triton.jit
def quantize(
    x_ptr, static_scale_ptr, q_ptr, q_scale_ptr, block, tokens,
    K: tl.constexpr, SCHEME: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """x [tokens, K] to FP8, WIDTH elements a block; block scales go to q_scale [tokens, K / 128]."""
    if SCHEME == TENSOR:
        at = block * WIDTH + tl.arange(0, WIDTH)
        inside = at < tokens * K
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(q_ptr + at, _to_fp8(x / tl.load(static_scale_ptr)), mask=inside)
    else:
        group = block * (WIDTH // 128) + tl.arange(0, WIDTH // 128)
        at = group[:, None] * 128 + tl.arange(0, 128)[None, :]
        inside = group < tokens * (K // 128)
        x = tl.load(x_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)
        scale = tl.maximum(tl.max(tl.abs(x), 1), TINY) / FP8_MAX
        tl.store(q_ptr + at, _to_fp8(x / scale[:, None]), mask=inside[:, None])
        tl.store(q_scale_ptr + group, scale, mask=inside)


settle(globals())
