"""Host side of `fused_decode`: one launch for one layer call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton

from autotune.kernels.fused_decode._gate import gate_kernel
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


@dataclass(frozen=True)
class Gate:
    """A linear gate whose softmax chooses the experts.

    Args:
        weight: `[E, K]` bfloat16, contiguous.
        renormalize: whether the chosen experts' weights add up to one, or are the softmax over all experts.
    """

    weight: torch.Tensor
    renormalize: bool


@dataclass(frozen=True)
class _Chosen:
    """What the gate's launch hands to the layer's: logits `[E]` bfloat16, scales of the FP8 row by block."""

    logits: torch.Tensor
    renormalize: bool
    scales: torch.Tensor


def plan_from_gate(
    weights: MoeWeights,
    gate: Gate,
    hidden: torch.Tensor,
    candidate: FusedDecodeCandidate,
    output: torch.Tensor,
) -> list[Launch]:
    """Lay out a single token's layer together with the gate in front of it: two launches.

    The first makes the logits, summed in float32 and rounded to bfloat16 as a GEMM's are, and the token in
    FP8. In the second every block chooses by itself, of equal logits the lower expert first, as vLLM's
    `topk_softmax` does. The same input gives the same bits.

    Args:
        hidden: `[1, K]` bfloat16, contiguous.
        output: `[1, K]` bfloat16, contiguous, written whole.

    Raises:
        ValueError: for what the kernels do not take.
    """
    problem, device = weights.problem, hidden.device
    if problem.scheme is Scheme.FP8_CHANNEL:
        raise ValueError("fused_decode takes no scales by channel")
    if problem.ep > 1:
        raise ValueError("the gate chooses among experts of other ranks, too")
    if problem.topk > SCANNED_PAIRS:
        raise ValueError(f"a block chooses among up to {SCANNED_PAIRS} experts a token, not {problem.topk}")
    for name, tensor, shape in (
        ("hidden", hidden, (1, problem.K)), ("the gate", gate.weight, (problem.E, problem.K)),
        ("output", output, (1, problem.K)),
    ):  # fmt: skip
        if (tuple(tensor.shape), tensor.dtype) != (shape, torch.bfloat16) or not tensor.is_contiguous():
            raise ValueError(
                f"{name}: {tuple(tensor.shape)} in {tensor.dtype}, not {shape} in bfloat16, row after row"
            )
    dependent = _dependent_launches()
    logits = torch.empty(problem.E, dtype=torch.bfloat16, device=device)
    row = scales = hidden
    chunks = 0
    if problem.scheme.is_fp8:
        row = torch.empty(1, problem.K, dtype=torch.float8_e4m3fn, device=device)
        chunks = triton.cdiv(problem.K, QUANTIZE_WIDTH)
        scales = row
    if problem.scheme is Scheme.FP8_BLOCK128:
        scales = torch.empty(1, problem.K // 128, dtype=torch.float32, device=device)
    first = Launch(
        gate_kernel,
        (problem.E + chunks,),
        (hidden, gate.weight, logits, or_else(weights.a1_scale, logits), row, scales),
        {
            "K": problem.K,
            "EXPERTS": problem.E,
            "SCHEME": SCHEME_CODES[problem.scheme],
            "ROW": triton.next_power_of_2(problem.K),
            "WIDTH": QUANTIZE_WIDTH,
            "PDL": dependent,
            "num_warps": 4,
        },
    )
    chosen = _Chosen(logits, gate.renormalize, scales)
    second = _launch(weights, LayerInputs(row, logits, logits), candidate, output, chosen)
    return [first, replace(second, options={**second.options, "PDL": True, "launch_pdl": True})
            if dependent else second]  # fmt: skip


def _dependent_launches() -> bool:
    """Whether a launch may begin before the one ahead is done (from Hopper on).

    With it the two launches of a token took 17.6 us instead of 18.2 on one H200.
    """
    if triton.knobs.runtime.interpret:
        return False
    try:
        target = triton.runtime.driver.active.get_current_target()
    except RuntimeError:  # no GPU
        return False
    return bool(target.backend == "cuda" and int(target.arch) >= 90)


def _launch(
    weights: MoeWeights,
    inputs: LayerInputs,
    candidate: FusedDecodeCandidate,
    output: torch.Tensor,
    chosen: _Chosen | None = None,
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
    if chosen is not None:
        scales = chosen.scales
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
            counters(device, 2 + 2 * slots + inputs.tokens * down_tiles),
            ids if chosen is None else chosen.logits, pairs, 1 if chosen is None else int(chosen.renormalize),
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
            "CHOOSE": chosen is not None,
            "GATE_BINS": triton.next_power_of_2(problem.E),
            "PDL": False,
            "num_warps": candidate.num_warps,
        },
    )  # fmt: skip
