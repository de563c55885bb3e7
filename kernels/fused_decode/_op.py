"""The Triton kernel of `fused_decode`: the whole layer in one launch.

In decode the layer is bound by reading the active experts' weights, and by the launches around that. Weights
are the left operand throughout (Swap-AB), since an expert has a handful of rows and the wide dimension must
fill WGMMA's 64. Blocks of the second GEMM start as soon as their expert's first GEMM is done, so the memory
never runs dry between the two.

Scheme codes as in `fused_triton`. Everything that follows from the token count is a run-time argument without
specialization; PAIRS (16, 128 or 1,024) bounds the scan for an expert's rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from autotune.kernels.fused_decode._down import down
from autotune.kernels.fused_decode._gate_up import gate_up
from autotune.kernels.fused_decode._rows import route, signal
from autotune.kernels.fused_decode._tile import quantize
from autotune.kernels.keys import settle


@triton.jit(do_not_specialize=["pairs", "renormalize"])
def layer_kernel(
    x_ptr, x_scale_ptr, q_ptr, q_scale_ptr, w13_ptr, w13_scale_ptr, ids_ptr, topk_weights_ptr,
    inner_scale_ptr, inner_ptr, w2_ptr, w2_scale_ptr, partial_ptr, out_ptr, slot_ptr, counter_ptr,
    logits_ptr, pairs, renormalize,
    N: tl.constexpr, K: tl.constexpr, TOPK: tl.constexpr, EXPERTS: tl.constexpr, SCHEME: tl.constexpr,
    UP_FIRST: tl.constexpr, FIRST: tl.constexpr, QUANTIZED: tl.constexpr, INTERPRET: tl.constexpr,
    PAIRS: tl.constexpr, ROUTED: tl.constexpr, BINS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, GATE_UP_N: tl.constexpr, GATE_UP_K: tl.constexpr, GATE_UP_STAGES: tl.constexpr,
    DOWN_N: tl.constexpr, DOWN_K: tl.constexpr, DOWN_STAGES: tl.constexpr, SPLIT: tl.constexpr,
    CROWDED_M: tl.constexpr, CHOOSE: tl.constexpr, GATE_BINS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The whole layer (grid: preparing blocks, slots x tiles of N, slots x tiles of K x parts).

    Slots are the experts that have rows. ROUTED: one preparing block for each expert lists its rows; else
    every block finds them itself, and a slot is a pair. FIRST: the preparing blocks quantize x, too; else
    every block of the first GEMM quantizes what it reads, unless x is QUANTIZED when it comes in. CHOOSE: of
    one token, every block finds its expert and weight in `logits` by itself (GATE_BINS: a power of two, at
    least EXPERTS), and nothing is read of ids and weights. PDL: launched before the launch ahead is done.

    inner: scratch [pairs, N], FP8 per tensor, else bf16. partial: scratch [pairs * SPLIT, K], float32 or
    (SPLIT 1) bf16. slots: scratch int32 [EXPERTS * (2 + pairs)]. counters: int32
    [2 + 2 * slots + tokens * tiles of K], zero before and after.
    """
    if PDL:
        gdc_wait()
    tokens = pairs // TOPK
    slots = pairs
    if ROUTED:
        slots = tl.minimum(pairs, EXPERTS)
    TILES: tl.constexpr = (N + GATE_UP_N - 1) // GATE_UP_N
    chunks = 0
    if FIRST:
        chunks = (tokens * K + WIDTH - 1) // WIDTH
    preparing = chunks
    if ROUTED:
        preparing = EXPERTS
    block = tl.program_id(0)
    done_ptr = counter_ptr + 2
    if block < preparing:
        if ROUTED:
            route(ids_ptr, block, pairs, slot_ptr, slot_ptr + 2 * EXPERTS, EXPERTS, BINS, PAIRS)
        if FIRST:
            for chunk in range(block, chunks, preparing):
                quantize(x_ptr, x_scale_ptr, q_ptr, q_scale_ptr, chunk, tokens, K, SCHEME, WIDTH)
        signal(counter_ptr, 1)
    elif block < preparing + slots * TILES:
        gate_up(
            q_ptr if FIRST else x_ptr, q_scale_ptr, x_scale_ptr, w13_ptr, w13_scale_ptr, ids_ptr, slot_ptr,
            slot_ptr + 2 * EXPERTS, inner_scale_ptr, inner_ptr, counter_ptr, done_ptr, block - preparing,
            pairs, preparing, N, K, TOPK, EXPERTS, SCHEME, UP_FIRST, FIRST, QUANTIZED, INTERPRET, PAIRS,
            ROUTED, BLOCK_M, GATE_UP_N, GATE_UP_K, GATE_UP_STAGES, CROWDED_M,
            logits_ptr, renormalize, CHOOSE, GATE_BINS,
        )  # fmt: skip
    else:
        down(
            inner_ptr, inner_scale_ptr, w2_ptr, w2_scale_ptr, topk_weights_ptr, ids_ptr, slot_ptr,
            slot_ptr + 2 * EXPERTS, partial_ptr, out_ptr, counter_ptr, done_ptr, done_ptr + slots,
            done_ptr + 2 * slots, block - preparing - slots * TILES, slots, pairs, preparing, N, K, TOPK,
            EXPERTS, SCHEME, INTERPRET, PAIRS, ROUTED, TILES, SPLIT, BLOCK_M, DOWN_N, DOWN_K, DOWN_STAGES,
            CROWDED_M, logits_ptr, renormalize, CHOOSE, GATE_BINS,
        )  # fmt: skip


settle(globals())
