"""The second GEMM of `fused_decode`, with the routing weights and the sum over experts."""

# The tuples grow while Triton unrolls the loops around them, which mypy cannot follow.
# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.fused_decode._gate import choose
from autotune.kernels.fused_decode._rows import pairs_of, rows_of, wait_for
from autotune.kernels.fused_decode._tile import multiply
from autotune.kernels.fused_triton._op import BLOCK128, TENSOR
from autotune.kernels.keys import settle


@triton.jit
def _weights(w_ptr, columns, at, N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr):
    """One step of an expert's weights, [columns, at..at+BLOCK_K]; zero beyond N."""
    n = at + tl.arange(0, BLOCK_K)
    w_ptrs = w_ptr + columns[:, None] * N + n[None, :]
    return tl.load(w_ptrs) if N % (BLOCK_K * SPLIT) == 0 else tl.load(w_ptrs, mask=n[None, :] < N, other=0.0)


@triton.jit
def _rows(inner_ptr, pair, real, at, N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr):
    """The same step of the rows that the first GEMM made, [at..at+BLOCK_K, pairs]; zero beyond N."""
    n = at + tl.arange(0, BLOCK_K)
    x_ptrs = inner_ptr + pair[None, :] * N + n[:, None]
    if N % (BLOCK_K * SPLIT) == 0:
        x = tl.load(x_ptrs, mask=real[None, :], other=0.0, cache_modifier=".cg")
    else:
        x = tl.load(x_ptrs, mask=real[None, :] & (n[:, None] < N), other=0.0, cache_modifier=".cg")
    return x


@triton.jit
def _weight_scales(
    w_scale_ptr, expert, columns, at, N: tl.constexpr, K: tl.constexpr, SCHEME: tl.constexpr
):  # fmt: skip
    """The step's scale of each column with block scales; else zeros, which nobody reads."""
    if SCHEME == BLOCK128:
        blocks = expert * ((K // 128) * (N // 128)) + (columns // 128) * (N // 128)
        scale = tl.load(w_scale_ptr + blocks + at // 128, mask=columns * 0 + at < N, other=0.0)
    else:
        scale = tl.zeros(columns.shape, tl.float32)
    return scale


@triton.jit
def _down_rows(
    inner_ptr, w_ptr, w_scale_ptr, topk_weights_ptr, ids_ptr, list_ptr, partial_ptr, out_ptr, arrived_ptr,
    held, held_scales, hits, ranks, expert, slot, tile, part, columns, safe, begin, pairs, first, count,
    scale, N: tl.constexpr, K: tl.constexpr, TOPK: tl.constexpr, EXPERTS: tl.constexpr, SCHEME: tl.constexpr,
    INTERPRET: tl.constexpr, PAIRS: tl.constexpr, ROUTED: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    HOLD: tl.constexpr, chosen_weight, CHOOSE: tl.constexpr,
):  # fmt: skip
    """Rows first..first+BLOCK_M of an expert, for one tile of columns and one part of the reduction."""
    TILES: tl.constexpr = (K + BLOCK_N - 1) // BLOCK_N
    STEPS: tl.constexpr = (N + BLOCK_K - 1) // BLOCK_K
    RUN: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    pair = pairs_of(list_ptr, hits, ranks, slot, pairs, first, count, PAIRS, ROUTED, BLOCK_M)
    pair = pair.to(tl.int64)
    real = first + tl.arange(0, BLOCK_M) < count
    if CHOOSE:
        weight = tl.where(real, chosen_weight, 0.0)
    else:
        chosen = tl.load(ids_ptr + pair, mask=real, other=0)
        here = real & (chosen >= 0) & (chosen < EXPERTS)
        weight = tl.load(topk_weights_ptr + pair, mask=here, other=0.0)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    x_scale = tl.zeros((BLOCK_M,), tl.float32)
    if HOLD:
        # All rows are asked for at once: one trip to memory, not one a step.
        read = ()
        for step in tl.static_range(RUN):
            read += (_rows(inner_ptr, pair, real, begin + step * BLOCK_K, N, BLOCK_K, SPLIT),)
        for step in tl.static_range(RUN):
            w, x, w_scale = held[step], read[step], held_scales[step]
            acc = multiply(w, x, acc, w_scale, x_scale, 1.0, SCHEME, SCHEME == TENSOR, INTERPRET)
    else:
        for step in tl.range(RUN, num_stages=STAGES):
            at = begin + step * BLOCK_K
            w = _weights(w_ptr, safe, at, N, BLOCK_K, SPLIT)
            x = _rows(inner_ptr, pair, real, at, N, BLOCK_K, SPLIT)
            w_scale = _weight_scales(w_scale_ptr, expert, safe, at, N, K, SCHEME)
            acc = multiply(w, x, acc, w_scale, x_scale, 1.0, SCHEME, SCHEME == TENSOR, INTERPRET)
    result = tl.trans(acc) * (weight * scale)[:, None]
    inside = real[:, None] & (columns < K)[None, :]
    tl.store(
        partial_ptr + (pair * SPLIT + part)[:, None] * K + columns[None, :],
        result.to(partial_ptr.dtype.element_ty),
        mask=inside,
    )
    tl.debug_barrier()
    token = pair // TOPK
    arrived = arrived_ptr + token * TILES + tile
    before = tl.atomic_add(arrived, 1, mask=real, sem="acq_rel", scope="gpu")
    last = real & (before == TOPK * SPLIT - 1)
    if tl.max(last.to(tl.int32), 0) > 0:
        tl.debug_barrier()
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        summed = last[:, None] & (columns < K)[None, :]
        for number in tl.range(TOPK * SPLIT, loop_unroll_factor=1 if BLOCK_M > 16 else TOPK * SPLIT):
            row = partial_ptr + (token * (TOPK * SPLIT) + number)[:, None] * K
            total += tl.load(row + columns[None, :], mask=summed, other=0.0, cache_modifier=".cg")
        tl.store(out_ptr + token[:, None] * K + columns[None, :], total.to(tl.bfloat16), mask=summed)
        tl.store(arrived, 0, mask=last)


@triton.jit
def down(
    inner_ptr, static_scale_ptr, w_ptr, w_scale_ptr, topk_weights_ptr, ids_ptr, slot_ptr, list_ptr,
    partial_ptr, out_ptr, ready_ptr, counter_ptr, done_ptr, arrived_ptr, block, slots, pairs, target,
    N: tl.constexpr, K: tl.constexpr, TOPK: tl.constexpr, EXPERTS: tl.constexpr, SCHEME: tl.constexpr,
    INTERPRET: tl.constexpr, PAIRS: tl.constexpr, ROUTED: tl.constexpr, TARGET: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, CROWDED_M: tl.constexpr, logits_ptr, renormalize, CHOOSE: tl.constexpr,
    GATE_BINS: tl.constexpr,
):  # fmt: skip
    """partial[pair, part, :] = topk_weight[pair] * (inner[pair] @ w.T), and out for tokens that are complete.

    Steps of BLOCK_K are dealt to the SPLIT parts in contiguous runs. Whoever brings a token's last partial
    row for these columns adds all of them up, in the order of slots: the same bits whoever it is.

    STAGES 0: no pipeline. The block asks for all of its weights before it waits for the first GEMM, and holds
    them on chip.
    """
    TILES: tl.constexpr = (K + BLOCK_N - 1) // BLOCK_N
    STEPS: tl.constexpr = (N + BLOCK_K - 1) // BLOCK_K
    RUN: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    slot = block // (TILES * SPLIT)
    tile = block // SPLIT % TILES
    part = block % SPLIT
    HOLD: tl.constexpr = STAGES == 0
    FEWER: tl.constexpr = STAGES - 1 if STAGES > 2 else STAGES
    if ROUTED:
        if HOLD:
            wait_for(ready_ptr, target, INTERPRET)
        else:
            wait_for(counter_ptr + slot, TARGET, INTERPRET)
    chosen_weight = 0.0
    if CHOOSE:
        expert, chosen_weight = choose(logits_ptr, slot, renormalize, EXPERTS, GATE_BINS, TOPK, True)
        count = 1
        hits = (tl.arange(0, PAIRS) == slot).to(tl.int32)
        ranks = hits * 0
    else:
        expert, count, hits, ranks = rows_of(ids_ptr, slot_ptr, slot, pairs, EXPERTS, PAIRS, ROUTED)
    if count > 0:
        w_ptr += expert * (K * N)
        columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        safe = columns % K
        scale = 1.0
        if SCHEME == TENSOR:
            scale = tl.load(static_scale_ptr) * tl.load(w_scale_ptr + expert)
        begin = part * RUN * BLOCK_K
        held = ()
        held_scales = ()
        if HOLD:
            for step in tl.static_range(RUN):
                held += (_weights(w_ptr, safe, begin + step * BLOCK_K, N, BLOCK_K, SPLIT),)
                held_scales += (
                    _weight_scales(w_scale_ptr, expert, safe, begin + step * BLOCK_K, N, K, SCHEME),
                )
        if HOLD or not ROUTED:
            wait_for(counter_ptr + slot, TARGET, INTERPRET)
        plain = count
        if CROWDED_M > BLOCK_M:
            # An expert that many tokens chose: its weights are read once for more rows, in fewer stages, so
            # that the shared memory stays that of the others.
            plain = tl.where(count > BLOCK_M, 0, count)
            for first in range(0, count - plain, CROWDED_M):
                _down_rows(
                    inner_ptr, w_ptr, w_scale_ptr, topk_weights_ptr, ids_ptr, list_ptr, partial_ptr, out_ptr,
                    arrived_ptr, held, held_scales, hits, ranks, expert, slot, tile, part, columns, safe,
                    begin, pairs, first, count, scale, N, K, TOPK, EXPERTS, SCHEME, INTERPRET, PAIRS, ROUTED,
                    SPLIT, CROWDED_M, BLOCK_N, BLOCK_K, FEWER, HOLD, chosen_weight, CHOOSE,
                )  # fmt: skip
        for first in range(0, plain, BLOCK_M):
            _down_rows(
                inner_ptr, w_ptr, w_scale_ptr, topk_weights_ptr, ids_ptr, list_ptr, partial_ptr, out_ptr,
                arrived_ptr, held, held_scales, hits, ranks, expert, slot, tile, part, columns, safe,
                begin, pairs, first, count, scale, N, K, TOPK, EXPERTS, SCHEME, INTERPRET, PAIRS, ROUTED,
                SPLIT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, HOLD, chosen_weight, CHOOSE,
            )  # fmt: skip
    # The last block of a slot, and of all slots, leave the counters at zero for the next call.
    tl.debug_barrier()
    if tl.atomic_add(done_ptr + slot, 1, sem="acq_rel", scope="gpu") == TILES * SPLIT - 1:
        tl.store(counter_ptr + slot, 0)
        tl.store(done_ptr + slot, 0)
        if target > 0:  # noqa: SIM102  (Triton's `and` would count in any case)
            if tl.atomic_add(ready_ptr + 1, 1, sem="acq_rel", scope="gpu") == slots - 1:
                tl.store(ready_ptr, 0)
                tl.store(ready_ptr + 1, 0)


settle(globals())
