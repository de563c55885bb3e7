"""Host side of `fused_decode`: one launch for one layer call."""

from __future__ import annotations

import torch
import triton

from autotune.kernels.fused_decode._op import layer_kernel
from autotune.kernels.launch import SCHEME_CODES, Launch, or_else
from autotune.kernels.specs import DECODE_PAIRS
from autotune.kernels.weights import LayerInputs, MoeWeights
from autotune.vocabulary.candidate import FusedDecodeCandidate
from autotune.vocabulary.problem import Problem, Scheme

QUANTIZE_WIDTH = 2048
"""Elements that one block quantizes: small, so that all of them are done in one go."""

SCANNED_PAIRS = 16
"""Up to so many pairs every block finds its rows itself; beyond, blocks ahead of the rest list them."""

COUNTERS = 1 << 18
"""Counters that are set aside for a stream: enough for most layers, so that they seldom grow."""

_counters: dict[tuple[torch.device, int], list[torch.Tensor]] = {}


def scan_width(pairs: int) -> int:
    """How many lanes a block scans, 16, 128 or 1,024: few widths, so that few kernels exist."""
    width = 16
    while width < pairs:
        width *= 8
    return width


def form(problem: Problem, tokens: int) -> tuple[int, bool]:
    """What of a launch's compile-time constants follows from the token count: PAIRS and ROUTED."""
    pairs = tokens * problem.topk
    return scan_width(pairs), pairs > SCANNED_PAIRS


def counters(device: torch.device, size: int) -> torch.Tensor:
    """Zeroed int32 counters, one buffer for each device and stream; every call leaves them at zero.

    Calls on one stream follow each other, so they can share. A CUDA graph keeps using the buffer of the
    stream that it was captured on: replay no two of them at the same time.
    """
    if device.type != "cuda":
        return torch.zeros(size, dtype=torch.int32, device=device)
    if torch.cuda.is_current_stream_capturing():
        kept = _counters.get((device, 0), [])
        # Zeroed by every replay: right, if slower. Not kept, since the memory is the graph's.
        return (
            kept[-1]
            if kept and kept[-1].numel() >= size
            else torch.zeros(size, dtype=torch.int32, device=device)
        )
    stream = torch.cuda.current_stream(device).cuda_stream
    for key in ((device, stream), (device, 0)):
        kept = _counters.setdefault(key, [])
        if not kept or kept[-1].numel() < size:
            # Smaller ones stay: a captured graph may hold them.
            kept.append(torch.zeros(max(size, COUNTERS), dtype=torch.int32, device=device))
            torch.cuda.current_stream(device).synchronize()
    return _counters[device, stream][-1]


def plan(
    weights: MoeWeights,
    inputs: LayerInputs,
    candidate: FusedDecodeCandidate,
    output: torch.Tensor,
) -> list[Launch]:
    """Allocate the workspaces of one call and lay out its launch.

    The same input gives the same bits: no sum depends on which block comes first. Calls of one layer may
    not overlap in time with others on another stream that were captured in graphs (see `counters`).

    Args:
        inputs: hidden rows in bfloat16, or with fp8_tensor already quantized by `weights.a1_scale`.
        output: `[M, K]` bfloat16, written whole.

    Raises:
        ValueError: for more pairs than a block can scan, or FP8 rows in another scheme.
    """
    problem = weights.problem
    if inputs.hidden.dtype is torch.float8_e4m3fn and problem.scheme is not Scheme.FP8_TENSOR:
        raise ValueError(f"fused_decode takes FP8 rows with fp8_tensor only, not {problem.scheme.value}")
    pairs = inputs.tokens * problem.topk
    if pairs > DECODE_PAIRS:
        raise ValueError(f"fused_decode takes up to {DECODE_PAIRS} (token, slot) pairs, not {pairs}")
    return [_launch(weights, inputs, candidate, output)]


def _launch(
    weights: MoeWeights,
    inputs: LayerInputs,
    candidate: FusedDecodeCandidate,
    output: torch.Tensor,
) -> Launch:
    problem, ids = weights.problem, inputs.topk_ids
    pairs = inputs.tokens * problem.topk
    width, routed = form(problem, inputs.tokens)
    slots = min(pairs, problem.E) if routed else pairs
    given = inputs.hidden.dtype is torch.float8_e4m3fn
    first = candidate.quantize_first and problem.scheme.is_fp8 and not given
    tiles = triton.cdiv(problem.N, candidate.gate_up_block_n)
    down_tiles = triton.cdiv(problem.K, candidate.down_block_n)
    split = candidate.down_split_k
    chunks = triton.cdiv(inputs.hidden.numel(), QUANTIZE_WIDTH) if first else 0
    preparing = problem.E if routed else chunks
    blocks = preparing + slots * tiles + slots * down_tiles * split
    device = ids.device
    quantized, scales, listed = inputs.hidden, ids, ids
    if routed:
        listed = torch.empty((2 + pairs) * problem.E, dtype=torch.int32, device=device)
    if first:
        quantized = torch.empty(inputs.hidden.shape, dtype=torch.float8_e4m3fn, device=device)
    if first and problem.scheme is Scheme.FP8_BLOCK128:
        scales = torch.empty(inputs.tokens, problem.K // 128, dtype=torch.float32, device=device)
    inner_dtype = torch.float8_e4m3fn if problem.scheme is Scheme.FP8_TENSOR else torch.bfloat16
    inner = torch.empty(pairs, problem.N, dtype=inner_dtype, device=device)
    # Nothing to add up in between: what vLLM's kernels hand on is bf16, too.
    partial_dtype = torch.bfloat16 if split == 1 else torch.float32
    partial = torch.empty(pairs * split, problem.K, dtype=partial_dtype, device=device)
    interpret = triton.knobs.runtime.interpret
    return Launch(
        layer_kernel,
        (blocks,),
        (
            inputs.hidden, or_else(weights.a1_scale, ids), quantized, scales, weights.w13,
            or_else(weights.w13_scale, ids), ids, inputs.topk_weights, or_else(weights.a2_scale, ids),
            inner, weights.w2, or_else(weights.w2_scale, ids),
            partial, output, listed,
            counters(device, 2 + 2 * slots + inputs.tokens * down_tiles), pairs,
        ),
        {
            "N": problem.N,
            "K": problem.K,
            "TOPK": problem.topk,
            "EXPERTS": problem.E,
            "SCHEME": SCHEME_CODES[problem.scheme],
            "UP_FIRST": weights.up_first,
            "PAIRS": width,
            "FIRST": first,
            "QUANTIZED": first or given,
            "INTERPRET": interpret,
            "ROUTED": routed,
            "BINS": triton.next_power_of_2(problem.E + 1),
            "WIDTH": QUANTIZE_WIDTH,
            "BLOCK_M": candidate.block_m,
            "GATE_UP_N": candidate.gate_up_block_n,
            "GATE_UP_K": candidate.gate_up_block_k,
            "GATE_UP_STAGES": candidate.gate_up_stages,
            "DOWN_N": candidate.down_block_n,
            "DOWN_K": candidate.down_block_k,
            "DOWN_STAGES": candidate.down_stages,
            "SPLIT": split,
            "CROWDED_M": max(candidate.crowded_block_m, candidate.block_m),
            "num_warps": candidate.num_warps,
        },
    )  # fmt: skip
