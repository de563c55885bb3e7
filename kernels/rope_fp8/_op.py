"""Triton kernel that rotates query or key heads and quantizes each to FP8 with a scale of its own.

The same function is compiled twice: `rope_fp8_kernel` without specialization on the token count, and
`rope_fp8_naive_kernel` with Triton's default, which compiles again for counts of 1 and multiples of 16. The
second exists to show what the first avoids (`autotune jit audit rope_fp8 rope_fp8_naive`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.fused_triton._op import FP8_MAX, TINY, _to_fp8
from autotune.kernels.keys import settle


def _rope_fp8(
    x_ptr,
    positions_ptr,
    cos_sin_ptr,
    out_ptr,
    scale_ptr,
    tokens,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """One program: BLOCK_T tokens of one head (grid: token blocks, heads).

    x [tokens, HEADS, DIM] bf16, positions [tokens], cos_sin [positions, DIM] float32 (cosines, then sines),
    out [tokens, HEADS, DIM] float8_e4m3fn, scale [tokens, HEADS] float32. Pairs are (i, i + DIM/2), as in
    GPT-NeoX and Qwen.
    """
    HALF: tl.constexpr = DIM // 2
    token = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    head = tl.program_id(1)
    real = token < tokens
    mask = real[:, None]
    position = tl.load(positions_ptr + token, mask=real, other=0).to(tl.int64)
    i = tl.arange(0, HALF)[None, :]
    rows = (token * HEADS + head)[:, None] * DIM
    first = tl.load(x_ptr + rows + i, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + rows + HALF + i, mask=mask, other=0.0).to(tl.float32)
    angles = position[:, None] * DIM
    cos = tl.load(cos_sin_ptr + angles + i, mask=mask, other=0.0)
    sin = tl.load(cos_sin_ptr + angles + HALF + i, mask=mask, other=0.0)
    low = first * cos - second * sin
    high = second * cos + first * sin
    largest = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
    scale = tl.maximum(largest, TINY) / FP8_MAX
    tl.store(out_ptr + rows + i, _to_fp8(low / scale[:, None]), mask=mask)
    tl.store(out_ptr + rows + HALF + i, _to_fp8(high / scale[:, None]), mask=mask)
    tl.store(scale_ptr + token * HEADS + head, scale, mask=real)


rope_fp8_kernel = triton.jit(_rope_fp8, do_not_specialize=["tokens"])
rope_fp8_naive_kernel = triton.jit(_rope_fp8)


settle(globals())
