"""The first GEMM of `fused_decode`, with SwiGLU and the second quantization in its epilogue."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.fused_decode._gate import choose
from autotune.kernels.fused_decode._rows import pairs_of, rows_of, signal, wait_for
from autotune.kernels.fused_decode._tile import multiply
from autotune.kernels.fused_triton._op import BLOCK128, TENSOR, _to_fp8
from autotune.kernels.keys import settle


@triton.jit
def _gate_up_rows(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, list_ptr, inner_ptr, hits, ranks, expert, slot, tile, row, pairs,
    first, count, static_scale, scale, inner_scale,
    N: tl.constexpr, K: tl.constexpr, TOPK: tl.constexpr, SCHEME: tl.constexpr, QUANTIZED: tl.constexpr,
    INTERPRET: tl.constexpr, PAIRS: tl.constexpr, ROUTED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows first..first+BLOCK_M of an expert, for one tile of columns."""
    k = tl.arange(0, BLOCK_K)
    pair = pairs_of(list_ptr, hits, ranks, slot, pairs, first, count, PAIRS, ROUTED, BLOCK_M)
    real = first + tl.arange(0, BLOCK_M) < count
    token = (pair // TOPK).to(tl.int64)
    w_ptrs = w_ptr + row[:, None] * K + k[None, :]
    x_ptrs = x_ptr + token[None, :] * K + k[:, None]
    acc = tl.zeros((2 * BLOCK_N, BLOCK_M), tl.float32)
    w_scale = tl.zeros((2 * BLOCK_N,), tl.float32)
    x_scale = tl.zeros((BLOCK_M,), tl.float32)
    for step in tl.range((K + BLOCK_K - 1) // BLOCK_K, num_stages=STAGES):
        if K % BLOCK_K == 0:
            w = tl.load(w_ptrs)
            x = tl.load(x_ptrs, mask=real[None, :], other=0.0)
        else:
            left = K - step * BLOCK_K
            w = tl.load(w_ptrs, mask=k[None, :] < left, other=0.0)
            x = tl.load(x_ptrs, mask=real[None, :] & (k[:, None] < left), other=0.0)
        if SCHEME == BLOCK128:
            blocks = expert * ((2 * N // 128) * (K // 128)) + (row // 128) * (K // 128)
            w_scale = tl.load(w_scale_ptr + blocks + step * BLOCK_K // 128)
            if QUANTIZED:
                x_scale = tl.load(x_scale_ptr + token * (K // 128) + step * BLOCK_K // 128)
        acc = multiply(w, x, acc, w_scale, x_scale, static_scale, SCHEME, QUANTIZED, INTERPRET)
        w_ptrs += BLOCK_K
        x_ptrs += BLOCK_K
    acc *= scale
    # [half, column, row] to a last axis of two, which split takes apart.
    gate, up = tl.split(tl.permute(tl.reshape(acc, (2, BLOCK_N, BLOCK_M)), (2, 1, 0)))
    inner = (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    out = inner_ptr + pair.to(tl.int64)[:, None] * N + columns[None, :]
    inside = real[:, None] & (columns < N)[None, :]
    if SCHEME == TENSOR:
        tl.store(out, _to_fp8(inner.to(tl.float32) / inner_scale), mask=inside)
    else:
        tl.store(out, inner, mask=inside)


@triton.jit
def gate_up(
    x_ptr, x_scale_ptr, static_scale_ptr, w_ptr, w_scale_ptr, ids_ptr, slot_ptr, list_ptr, inner_scale_ptr,
    inner_ptr, ready_ptr, counter_ptr, block, pairs, target,
    N: tl.constexpr, K: tl.constexpr, TOPK: tl.constexpr, EXPERTS: tl.constexpr, SCHEME: tl.constexpr,
    UP_FIRST: tl.constexpr, FIRST: tl.constexpr, QUANTIZED: tl.constexpr, INTERPRET: tl.constexpr,
    PAIRS: tl.constexpr, ROUTED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, CROWDED_M: tl.constexpr, logits_ptr, renormalize,
    CHOOSE: tl.constexpr, GATE_BINS: tl.constexpr,
):  # fmt: skip
    """inner[pair, :] = silu(x[token] @ gate.T) * (x[token] @ up.T).

    The BLOCK_N gate rows and BLOCK_N up rows are one left operand of 2 * BLOCK_N rows, so that 32 columns
    already fill a warp group's 64. FIRST: x is quantized by blocks of this launch; QUANTIZED: it is FP8 when
    it is read.
    """
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    FEWER: tl.constexpr = STAGES - 1 if STAGES > 2 else STAGES
    slot = block // TILES
    tile = block % TILES
    half = tl.arange(0, 2 * BLOCK_N) // BLOCK_N
    column = tile * BLOCK_N + tl.arange(0, 2 * BLOCK_N) % BLOCK_N
    row = (1 - half if UP_FIRST else half) * N + column % N
    if ROUTED:
        wait_for(ready_ptr, target, INTERPRET)
    if CHOOSE:
        expert, _weight = choose(logits_ptr, slot, renormalize, EXPERTS, GATE_BINS, TOPK, False)
        count = 1
        hits = (tl.arange(0, PAIRS) == slot).to(tl.int32)
        ranks = hits * 0
    else:
        expert, count, hits, ranks = rows_of(ids_ptr, slot_ptr, slot, pairs, EXPERTS, PAIRS, ROUTED)
    if count > 0:
        w_ptr += expert * (2 * N * K)
        static_scale = 1.0
        scale = 1.0
        inner_scale = 1.0
        if SCHEME == TENSOR:
            static_scale = tl.load(static_scale_ptr)
            scale = static_scale * tl.load(w_scale_ptr + expert)
            inner_scale = tl.load(inner_scale_ptr)
        if FIRST and not ROUTED:
            wait_for(ready_ptr, target, INTERPRET)
        plain = count
        if CROWDED_M > BLOCK_M:  # see `down`
            plain = tl.where(count > BLOCK_M, 0, count)
            for first in range(0, count - plain, CROWDED_M):
                _gate_up_rows(
                    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, list_ptr, inner_ptr, hits, ranks, expert, slot,
                    tile, row, pairs, first, count, static_scale, scale, inner_scale, N, K, TOPK, SCHEME,
                    QUANTIZED, INTERPRET, PAIRS, ROUTED, CROWDED_M, BLOCK_N, BLOCK_K, FEWER,
                )  # fmt: skip
        for first in range(0, plain, BLOCK_M):
            _gate_up_rows(
                x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, list_ptr, inner_ptr, hits, ranks, expert, slot,
                tile, row, pairs, first, count, static_scale, scale, inner_scale, N, K, TOPK, SCHEME,
                QUANTIZED, INTERPRET, PAIRS, ROUTED, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
            )  # fmt: skip
        if not ROUTED:
            signal(counter_ptr + slot, 1)
    if ROUTED:
        # Slots without rows count, too: nobody may still be waiting for what the last block resets.
        signal(counter_ptr + slot, 1)


settle(globals())
