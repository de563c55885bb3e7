"""Triton kernels of `fused_decode`: two GEMMs that find their own rows, and a sum in a fixed order.

With few tokens the layer is bound by reading the active experts' weights, and by the launches around that. So
there is no sort and no quantization launch: every block scans the top-k ids for its expert's rows, and
quantizes the activations that it reads on the way into the dot. Weights are the left operand throughout
(Swap-AB), since an expert has a handful of rows and the wide dimension must fill WGMMA's 64.

Scheme codes as in `fused_triton`. Everything that follows from the token count is a run-time argument without
specialization; PAIRS, a power of four, bounds the scan.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.fused_triton._op import BF16, BLOCK128, FP8_MAX, TENSOR, TINY, _to_fp8


@triton.jit
def _find_rows(ids_ptr, slot, pairs, EXPERTS: tl.constexpr, PAIRS: tl.constexpr, BY_PAIR: tl.constexpr):
    """The expert of a slot, which of the PAIRS lanes are its rows, and their running numbers.

    BY_PAIR: slots are pairs, and only the first pair of an expert works for all of that expert's rows;
    else slots are experts.
    """
    lanes = tl.arange(0, PAIRS)
    ids = tl.load(ids_ptr + lanes, mask=lanes < pairs, other=EXPERTS)
    if BY_PAIR:
        expert = tl.load(ids_ptr + slot)
        hits = ids == expert
        first = tl.min(tl.where(hits, lanes, PAIRS), 0)
        hits = hits & (first == slot)
    else:
        expert = slot
        hits = ids == expert
    hits = hits.to(tl.int32)
    return expert, hits, tl.cumsum(hits, 0) - 1


@triton.jit
def _pick(hits, ranks, first, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr):
    """The pairs of an expert's rows first..first+BLOCK_M."""
    lanes = tl.arange(0, PAIRS)
    rows = first + tl.arange(0, BLOCK_M)
    here = (ranks[None, :] == rows[:, None]) & (hits[None, :] > 0)
    return tl.sum(tl.where(here, lanes[None, :], 0), 1)


@triton.jit
def _multiply(w, x, acc, w_scale, static_scale, SCHEME: tl.constexpr, WIDEN: tl.constexpr):
    """acc + w @ quantize(x): w [ROWS, BLOCK_K], x [BLOCK_K, BLOCK_M] bf16, w_scale [ROWS] per block."""
    if SCHEME == BF16 and WIDEN:
        acc = tl.dot(w.to(tl.float32), x.to(tl.float32), acc=acc)
    elif SCHEME == BF16:
        acc = tl.dot(w, x, acc=acc)
    elif SCHEME == TENSOR:
        acc = tl.dot(w, _to_fp8(x.to(tl.float32) / static_scale), acc=acc)
    else:
        wide = x.to(tl.float32)
        scale = tl.maximum(tl.max(tl.abs(wide), 0), TINY) / FP8_MAX
        partial = tl.dot(w, _to_fp8(wide / scale[None, :]))
        acc += partial * w_scale[:, None] * scale[None, :]
    return acc


@triton.jit(do_not_specialize=["pairs"])
def gate_up_kernel(
    x_ptr,
    static_scale_ptr,
    w_ptr,
    w_scale_ptr,
    ids_ptr,
    inner_ptr,
    pairs,
    N: tl.constexpr,
    K: tl.constexpr,
    TOPK: tl.constexpr,
    EXPERTS: tl.constexpr,
    SCHEME: tl.constexpr,
    WIDEN: tl.constexpr,
    PAIRS: tl.constexpr,
    BY_PAIR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """inner[pair, :] = silu(x[token] @ gate.T) * (x[token] @ up.T), bf16 (grid: slots, column tiles).

    The BLOCK_N gate rows and BLOCK_N up rows are one left operand of 2 * BLOCK_N rows, so that 32 columns
    already fill a warp group's 64.
    """
    expert, hits, ranks = _find_rows(ids_ptr, tl.program_id(0), pairs, EXPERTS, PAIRS, BY_PAIR)
    count = tl.sum(hits, 0)
    if count == 0:
        return
    expert = expert.to(tl.int64)
    half = tl.arange(0, 2 * BLOCK_N) // BLOCK_N
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, 2 * BLOCK_N) % BLOCK_N
    row = half * N + column % N
    k = tl.arange(0, BLOCK_K)
    static_scale = 1.0
    if SCHEME == TENSOR:
        static_scale = tl.load(static_scale_ptr)
    for first in range(0, count, BLOCK_M):
        pair = _pick(hits, ranks, first, PAIRS, BLOCK_M)
        real = first + tl.arange(0, BLOCK_M) < count
        token = (pair // TOPK).to(tl.int64)
        w_ptrs = w_ptr + expert * (2 * N * K) + row[:, None] * K + k[None, :]
        x_ptrs = x_ptr + token[None, :] * K + k[:, None]
        acc = tl.zeros((2 * BLOCK_N, BLOCK_M), tl.float32)
        w_scale = tl.zeros((2 * BLOCK_N,), tl.float32)
        for step in range((K + BLOCK_K - 1) // BLOCK_K):
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
            acc = _multiply(w, x, acc, w_scale, static_scale, SCHEME, WIDEN)
            w_ptrs += BLOCK_K
            x_ptrs += BLOCK_K
        if SCHEME == TENSOR:
            acc *= static_scale * tl.load(w_scale_ptr + expert)
        # [half, column, row] to a last axis of two, which split takes apart.
        gate, up = tl.split(tl.permute(tl.reshape(acc, (2, BLOCK_N, BLOCK_M)), (2, 1, 0)))
        inner = gate / (1.0 + tl.exp(-gate)) * up
        columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        out = inner_ptr + pair.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(out, inner.to(tl.bfloat16), mask=real[:, None] & (columns < N)[None, :])


@triton.jit(do_not_specialize=["pairs"])
def down_kernel(
    inner_ptr,
    static_scale_ptr,
    w_ptr,
    w_scale_ptr,
    topk_weights_ptr,
    ids_ptr,
    out_ptr,
    pairs,
    N: tl.constexpr,
    K: tl.constexpr,
    EXPERTS: tl.constexpr,
    SCHEME: tl.constexpr,
    WIDEN: tl.constexpr,
    PAIRS: tl.constexpr,
    BY_PAIR: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out[pair, part, :] = topk_weight[pair] * (inner[pair] @ w.T) over one of SPLIT parts of the reduction.

    Grid: slots, column tiles of K, parts. Steps of BLOCK_K are dealt to the parts in contiguous runs.
    """
    expert, hits, ranks = _find_rows(ids_ptr, tl.program_id(0), pairs, EXPERTS, PAIRS, BY_PAIR)
    count = tl.sum(hits, 0)
    if count == 0:
        return
    expert = expert.to(tl.int64)
    part = tl.program_id(2)
    STEPS: tl.constexpr = (N + BLOCK_K - 1) // BLOCK_K
    RUN: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    safe = columns % K
    n = tl.arange(0, BLOCK_K)
    static_scale = 1.0
    if SCHEME == TENSOR:
        static_scale = tl.load(static_scale_ptr)
    for first in range(0, count, BLOCK_M):
        pair = _pick(hits, ranks, first, PAIRS, BLOCK_M).to(tl.int64)
        real = first + tl.arange(0, BLOCK_M) < count
        start = part * RUN * BLOCK_K
        w_ptrs = w_ptr + expert * (K * N) + safe[:, None] * N + (start + n)[None, :]
        x_ptrs = inner_ptr + pair[None, :] * N + (start + n)[:, None]
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        w_scale = tl.zeros((BLOCK_N,), tl.float32)
        for step in range(RUN):
            left = N - start - step * BLOCK_K
            if N % (BLOCK_K * SPLIT) == 0:
                w = tl.load(w_ptrs)
                x = tl.load(x_ptrs, mask=real[None, :], other=0.0)
            else:
                w = tl.load(w_ptrs, mask=n[None, :] < left, other=0.0)
                x = tl.load(x_ptrs, mask=real[None, :] & (n[:, None] < left), other=0.0)
            if SCHEME == BLOCK128:
                blocks = expert * ((K // 128) * (N // 128)) + (safe // 128) * (N // 128)
                group = (start + step * BLOCK_K) // 128
                w_scale = tl.load(w_scale_ptr + blocks + group, mask=safe * 0 + left > 0, other=0.0)
            acc = _multiply(w, x, acc, w_scale, static_scale, SCHEME, WIDEN)
            w_ptrs += BLOCK_K
            x_ptrs += BLOCK_K
        if SCHEME == TENSOR:
            acc *= static_scale * tl.load(w_scale_ptr + expert)
        result = tl.trans(acc) * tl.load(topk_weights_ptr + pair, mask=real, other=0.0)[:, None]
        out = out_ptr + (pair * SPLIT + part)[:, None] * K + columns[None, :]
        tl.store(out, result.to(out_ptr.dtype.element_ty), mask=real[:, None] & (columns < K)[None, :])
