"""The gate in front of `fused_decode` for a single token, and the choice of its experts."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from autotune.kernels.fused_decode._tile import quantize
from autotune.kernels.fused_triton._op import BF16
from autotune.kernels.keys import settle

LOWEST: tl.constexpr = tl.constexpr(-(1 << 31))


@triton.jit
def gate_kernel(
    x_ptr, w_ptr, logits_ptr, x_scale_ptr, q_ptr, q_scale_ptr,
    K: tl.constexpr, EXPERTS: tl.constexpr, SCHEME: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """logits[EXPERTS] = x[K] @ w.T, rounded to bfloat16, and x to FP8 (grid: experts, pieces of WIDTH).

    ROW: a power of two, at least K.
    """
    if PDL:
        # The layer's blocks may take their places now; they wait for this launch's stores.
        gdc_launch_dependents()
    block = tl.program_id(0)
    if block < EXPERTS:
        k = tl.arange(0, ROW)
        x = tl.load(x_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + block.to(tl.int64) * K + k, mask=k < K, other=0.0).to(tl.float32)
        # Plus zero, so that there is one zero: `choose` orders by bits.
        tl.store(logits_ptr + block, (tl.sum(x * w, 0) + 0.0).to(tl.bfloat16))
    else:
        if SCHEME != BF16:
            quantize(x_ptr, x_scale_ptr, q_ptr, q_scale_ptr, block - EXPERTS, 1, K, SCHEME, WIDTH)


@triton.jit
def choose(
    logits_ptr, slot, renormalize, EXPERTS: tl.constexpr, BINS: tl.constexpr, TOPK: tl.constexpr,
    WEIGH: tl.constexpr,
):  # fmt: skip
    """Of one token: the expert with the slot-th largest logit (of equal ones the lower first), its weight.

    Every block does it anew, which costs less than another launch. Maxima one after another: comparing all
    with all takes no step after the other, and so many registers that the layer took 7 us longer.

    BINS: a power of two, at least EXPERTS. Without WEIGH the weight is 0, and comes sooner.
    """
    bins = tl.arange(0, BINS)
    real = bins < EXPERTS
    logit = tl.load(logits_ptr + bins, mask=real, other=float("-inf"))
    # As integers, which order as bfloat16 do, NaN has a place, too; with the bin below no two are alike.
    bits = logit.to(tl.int16, bitcast=True).to(tl.int32)
    key = tl.where(bits < 0, bits ^ 0x7FFF, bits) * 65536 + (65535 - bins)
    key = tl.where(real, key, LOWEST)
    weight = 0.0
    if WEIGH:
        wide = logit.to(tl.float32)
        score = tl.where(real, tl.exp(wide - tl.max(wide, 0)), 0.0)
        mine = tl.max(key, 0)
        chosen = bins < 0
        for number in range(TOPK):
            best = tl.max(key, 0)
            mine = tl.where(number == slot, best, mine)
            chosen = chosen | (key == best)
            key = tl.where(key == best, LOWEST, key)
        expert = 65535 - (mine & 65535)
        total = tl.sum(tl.where(chosen | (renormalize == 0), score, 0.0), 0)
        weight = tl.sum(tl.where(bins == expert, score, 0.0), 0) / total
    else:
        for _ in range(slot):
            key = tl.where(key == tl.max(key, 0), LOWEST, key)
        expert = 65535 - (tl.max(key, 0) & 65535)
    return expert.to(tl.int64), weight


settle(globals())
