"""Host side of `fused_decode`: three launches for one layer call."""

from __future__ import annotations

import torch
import triton

from autotune.kernels.fused_decode import _op
from autotune.kernels.fused_triton import _op as fused_triton_kernels
from autotune.kernels.launch import SCHEME_CODES, Launch, or_else
from autotune.kernels.specs import DECODE_PAIRS
from autotune.kernels.weights import LayerInputs, MoeWeights
from autotune.vocabulary.candidate import FusedDecodeCandidate
from autotune.vocabulary.problem import Scheme


def scan_width(pairs: int) -> int:
    """The power of four, 16 to 1,024, that bounds the scan: few widths, so that few kernels exist."""
    width = 16
    while width < pairs:
        width *= 4
    return width


def plan(
    weights: MoeWeights, inputs: LayerInputs, candidate: FusedDecodeCandidate, output: torch.Tensor
) -> list[Launch]:
    """Allocate the workspaces of one call and lay out its launches, in order.

    The same input gives the same bits: no sum depends on which block comes first.

    Args:
        output: `[M, K]` bfloat16, written whole.

    Raises:
        ValueError: for more pairs than a block can scan.
    """
    problem, scheme = weights.problem, weights.problem.scheme
    pairs = inputs.tokens * problem.topk
    if pairs > DECODE_PAIRS:
        raise ValueError(f"fused_decode takes up to {DECODE_PAIRS} (token, slot) pairs, not {pairs}")
    device, split = inputs.hidden.device, candidate.down_split_k
    inner = torch.empty(pairs, problem.N, dtype=torch.bfloat16, device=device)
    kind = torch.bfloat16 if split == 1 else torch.float32
    partial = torch.empty(pairs * split, problem.K, dtype=kind, device=device)
    # Fewer pairs than experts: a block for each pair, so that few blocks find nothing to do.
    by_pair = pairs < problem.E
    slots = pairs if by_pair else problem.E
    common = {
        "N": problem.N,
        "K": problem.K,
        "EXPERTS": problem.E,
        "SCHEME": SCHEME_CODES[scheme],
        "WIDEN": triton.knobs.runtime.interpret and scheme is Scheme.BF16,
        "PAIRS": scan_width(pairs),
        "BY_PAIR": by_pair,
        "BLOCK_M": candidate.block_m,
    }
    ids = inputs.topk_ids
    gate_up = Launch(
        _op.gate_up_kernel,
        (slots, triton.cdiv(problem.N, candidate.gate_up_block_n)),
        (
            inputs.hidden,
            or_else(weights.a1_scale, ids),
            weights.w13,
            or_else(weights.w13_scale, ids),
            ids,
            inner,
            pairs,
        ),
        {
            **common,
            "TOPK": problem.topk,
            "BLOCK_N": candidate.gate_up_block_n,
            "BLOCK_K": candidate.gate_up_block_k,
            "num_warps": candidate.gate_up_warps,
            "num_stages": candidate.gate_up_stages,
        },
    )
    down = Launch(
        _op.down_kernel,
        (slots, triton.cdiv(problem.K, candidate.down_block_n), split),
        (
            inner, or_else(weights.a2_scale, ids), weights.w2, or_else(weights.w2_scale, ids),
            inputs.topk_weights, ids, partial, pairs,
        ),
        {
            **common,
            "SPLIT": split,
            "BLOCK_N": candidate.down_block_n,
            "BLOCK_K": candidate.down_block_k,
            "num_warps": candidate.down_warps,
            "num_stages": candidate.down_stages,
        },
    )  # fmt: skip
    block = 256 if problem.K >= 256 else triton.next_power_of_2(problem.K)
    total = Launch(
        fused_triton_kernels.sum_kernel,
        (inputs.tokens, triton.cdiv(problem.K, block)),
        (partial, ids, output),
        {
            "K": problem.K,
            "TOPK": problem.topk * split,
            "EXPERTS": problem.E,
            "SPARSE": False,
            "BLOCK": block,
            "num_warps": 2,
        },
    )
    return [gate_up, down, total]
