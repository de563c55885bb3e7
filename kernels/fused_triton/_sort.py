"""Triton kernels that put (token, slot) pairs in expert order, padded to whole row blocks, deterministically.

Pair p = token * topk + slot. After `place_kernel`, `sorted_pairs[i]` is the pair at padded row i, or the
number of pairs where row i is padding; rows of one expert are consecutive, in ascending pair order, and
begin at a multiple of BLOCK_M; `block_expert[b]` is the expert of row block b.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.keys import settle


@triton.jit
def _chunk_ids(ids_ptr, chunk, pairs, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    offsets = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + offsets, mask=offsets < pairs, other=EXPERTS)
    # Experts of other ranks go to the extra bin, as padding does.
    return tl.where((ids < 0) | (ids >= EXPERTS), EXPERTS, ids)


@triton.jit(do_not_specialize=["pairs"])
def count_kernel(ids_ptr, counts_ptr, pairs, EXPERTS: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr):
    """Pairs per expert in each chunk: `counts[chunk, BINS]`."""
    chunk = tl.program_id(0)
    ids = _chunk_ids(ids_ptr, chunk, pairs, EXPERTS, CHUNK)
    tl.store(counts_ptr + chunk * BINS + tl.arange(0, BINS), tl.histogram(ids, BINS))


@triton.jit(do_not_specialize=["pairs", "chunks", "blocks"])
def place_kernel(
    ids_ptr,
    counts_ptr,
    sorted_pairs_ptr,
    block_expert_ptr,
    padded_rows_ptr,
    pairs,
    chunks,
    blocks,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """Scatter the pairs of one chunk. With COUNTED false, each program counts all chunks itself."""
    chunk = tl.program_id(0)
    bins = tl.arange(0, BINS)
    total = tl.zeros((BINS,), tl.int32)
    before = tl.zeros((BINS,), tl.int32)
    for other in range(chunks):
        if COUNTED:
            counts = tl.load(counts_ptr + other * BINS + bins)
        else:
            counts = tl.histogram(_chunk_ids(ids_ptr, other, pairs, EXPERTS, CHUNK), BINS)
        total += counts
        before += tl.where(other < chunk, counts, 0)
    total = tl.where(bins < EXPERTS, total, 0)
    padded = (total + BLOCK_M - 1) // BLOCK_M * BLOCK_M
    ends = tl.cumsum(padded, 0)
    starts = ends - padded

    ids = _chunk_ids(ids_ptr, chunk, pairs, EXPERTS, CHUNK)
    lanes = tl.arange(0, CHUNK)
    same = (ids[:, None] == ids[None, :]) & (lanes[None, :] < lanes[:, None])
    rank = tl.sum(same.to(tl.int32), 1)
    # The first free row of each pair's expert, looked up without a gather.
    hit = (ids[:, None] == bins[None, :]).to(tl.int32)
    row = tl.sum(hit * (starts + before)[None, :], 1) + rank
    pair = chunk * CHUNK + lanes
    tl.store(sorted_pairs_ptr + row, pair, mask=ids < EXPERTS)

    # The rest is split over the programs: padding rows of each expert, and each block's expert.
    programs = tl.num_programs(0)
    if chunk == 0:
        tl.store(padded_rows_ptr, tl.sum(padded, 0))
        pad_lanes = tl.arange(0, BLOCK_M)
        pad_rows = (starts + total)[:, None] + pad_lanes[None, :]
        tl.store(sorted_pairs_ptr + pad_rows, pairs + tl.zeros_like(pad_rows), mask=pad_rows < ends[:, None])
    for first in range(chunk * CHUNK, blocks, programs * CHUNK):
        block = first + lanes
        expert = tl.sum((ends[None, :] <= (block * BLOCK_M)[:, None]).to(tl.int32), 1)
        tl.store(block_expert_ptr + block, tl.minimum(expert, EXPERTS - 1), mask=block < blocks)


settle(globals())
