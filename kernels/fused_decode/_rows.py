"""How the blocks of `fused_decode` find their rows and wait for each other.

A layer is one launch whose blocks depend on earlier blocks of the same launch. That cannot deadlock: blocks
start in the order of their numbers, and a block waits for lower numbers only, which never wait for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.keys import settle


@triton.jit
def expert_ids(ids_ptr, lanes, pairs, EXPERTS: tl.constexpr):
    """The expert of each lane's pair; EXPERTS beyond the last pair.

    A pair of no expert here (padding, another rank's) goes with expert 0, where `down` gives it no weight:
    so every row of a token arrives, and the token's sum is complete.
    """
    ids = tl.load(ids_ptr + lanes, mask=lanes < pairs, other=0)
    ids = tl.where((ids >= 0) & (ids < EXPERTS), ids, 0)
    return tl.where(lanes < pairs, ids, EXPERTS)


@triton.jit
def find_rows(ids_ptr, slot, pairs, EXPERTS: tl.constexpr, PAIRS: tl.constexpr):
    """The expert of a pair, which of the PAIRS lanes are its rows, and their running numbers.

    Only the first pair of an expert works for all of that expert's rows; the others have none.
    """
    lanes = tl.arange(0, PAIRS)
    ids = expert_ids(ids_ptr, lanes, pairs, EXPERTS)
    expert = tl.load(ids_ptr + slot)
    expert = tl.where((expert >= 0) & (expert < EXPERTS), expert, 0)
    hits = ids == expert
    first = tl.min(tl.where(hits, lanes, PAIRS), 0)
    hits = (hits & (first == slot)).to(tl.int32)
    return expert.to(tl.int64), hits, tl.cumsum(hits, 0) - 1


@triton.jit
def pick(hits, ranks, first, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr):
    """The pairs of an expert's rows first..first+BLOCK_M."""
    lanes = tl.arange(0, PAIRS)
    rows = first + tl.arange(0, BLOCK_M)
    here = (ranks[None, :] == rows[:, None]) & (hits[None, :] > 0)
    return tl.sum(tl.where(here, lanes[None, :], 0), 1)


@triton.jit
def signal(counter, value):
    """Count this block's work as done, once every thread's stores before it are out."""
    tl.debug_barrier()
    tl.atomic_add(counter, value, sem="release", scope="gpu")


@triton.jit
def read(counter, INTERPRET: tl.constexpr):
    """The counter now, by every thread; what was stored before it got there is visible to the reader."""
    if INTERPRET:
        value = tl.load(counter)
    else:
        value = tl.inline_asm_elementwise(
            "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l", [counter], dtype=tl.int32, is_pure=False, pack=1
        )
    return value


@triton.jit
def wait_for(counter, target, INTERPRET: tl.constexpr):
    """Until the counter has reached target."""
    while read(counter, INTERPRET) < target:
        pass
    tl.debug_barrier()


@triton.jit
def route(
    ids_ptr, expert, pairs, slot_ptr, list_ptr,
    EXPERTS: tl.constexpr, BINS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write down one expert's slot (expert, rows) and its pairs, in the slot's row of list [slots, pairs].

    Room for all pairs, since a token that no expert here chose sends all of its pairs to expert 0.

    Experts with rows take the first slots, in order; the others the rest, with no rows. BINS: a power of two
    above EXPERTS.
    """
    lanes = tl.arange(0, PAIRS)
    ids = expert_ids(ids_ptr, lanes, pairs, EXPERTS)
    bins = tl.arange(0, BINS)
    rows = tl.histogram(ids, BINS)
    rows = tl.where(bins < EXPERTS, rows, 0)
    active = (rows > 0).to(tl.int32)
    hits = (ids == expert).to(tl.int32)
    count = tl.sum(hits, 0)
    rank = tl.sum(tl.where(bins < expert, active, 0), 0)
    slot = tl.where(count > 0, rank, tl.sum(active, 0) + expert - rank)
    tl.store(slot_ptr + 2 * slot, expert)
    tl.store(slot_ptr + 2 * slot + 1, count)
    tl.store(list_ptr + slot * pairs + tl.cumsum(hits, 0) - 1, lanes, mask=hits > 0)


@triton.jit
def rows_of(ids_ptr, slot_ptr, slot, pairs, EXPERTS: tl.constexpr, PAIRS: tl.constexpr, ROUTED: tl.constexpr):
    """A slot's expert, its number of rows, and (not ROUTED) which lanes they are."""
    if ROUTED:
        record = slot_ptr + 2 * slot
        expert = tl.load(record, cache_modifier=".cg").to(tl.int64)
        count = tl.load(record + 1, cache_modifier=".cg")
        hits = tl.zeros((PAIRS,), tl.int32)
        ranks = hits
    else:
        expert, hits, ranks = find_rows(ids_ptr, slot, pairs, EXPERTS, PAIRS)
        count = tl.sum(hits, 0)
    return expert, count, hits, ranks


@triton.jit
def pairs_of(
    list_ptr, hits, ranks, slot, pairs, first, count,
    PAIRS: tl.constexpr, ROUTED: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The pairs of rows first..first+BLOCK_M of a slot; beyond its count, 0."""
    if ROUTED:
        # Asked for before the count is known: one round trip to memory for both.
        row = first + tl.arange(0, BLOCK_M)
        pair = tl.load(list_ptr + slot * pairs + row, mask=row < pairs, other=0, cache_modifier=".cg")
        pair = tl.where(row < count, pair, 0)
    else:
        pair = pick(hits, ranks, first, PAIRS, BLOCK_M)
    return pair


settle(globals())
