"""Host side of `fused_triton`: plans the launches of one layer call and runs them."""

from __future__ import annotations

import torch
import triton

from autotune.kernels.fused_triton import _op, _sort
from autotune.kernels.launch import SCHEME_CODES, Launch, or_else
from autotune.kernels.weights import LayerInputs, MoeWeights
from autotune.vocabulary.candidate import FusedTritonCandidate, Tile
from autotune.vocabulary.problem import Problem, Scheme

SORT_CHUNK = 128
"""Pairs ranked by one program. Its rank matrix is SORT_CHUNK squared: 128 keeps it in registers."""
COUNT_APART = 16
"""From this many chunks on, counting them once in a launch of its own is cheaper than in every program."""


def quantizes_in_gate_up(scheme: Scheme, gate_up: Tile) -> bool:
    """Whether the first GEMM's epilogue stores FP8: not where a scale spans more than its tile."""
    if scheme is Scheme.FP8_TENSOR:
        return True
    return scheme is Scheme.FP8_BLOCK128 and gate_up.block_n % 128 == 0


def max_padded_rows(problem: Problem, tokens: int, block_m: int) -> int:
    """An upper bound of the padded rows, known on the host: each touched expert pads less than one block."""
    pairs = tokens * problem.topk
    experts = min(problem.E, pairs)
    bound = pairs + experts * (block_m - 1)
    return int(triton.cdiv(bound, block_m)) * block_m


def form(problem: Problem, tokens: int) -> bool:
    """What of the launches' compile-time constants follows from the token count: whether pairs are counted
    in a launch of their own."""
    return bool(triton.cdiv(tokens * problem.topk, SORT_CHUNK) >= COUNT_APART)


def plan(
    weights: MoeWeights, inputs: LayerInputs, candidate: FusedTritonCandidate, output: torch.Tensor
) -> list[Launch]:
    """Allocate the workspaces of one call and lay out its launches, in order.

    Args:
        output: `[M, K]` bfloat16, written whole.
    """
    problem, scheme = weights.problem, weights.problem.scheme
    code = SCHEME_CODES[scheme]
    tokens, device = inputs.tokens, inputs.hidden.device
    pairs = tokens * problem.topk
    block_m = candidate.gate_up.block_m
    padded = max_padded_rows(problem, tokens, block_m)
    blocks = padded // block_m

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    launches: list[Launch] = []
    sorted_pairs = empty((padded,), torch.int32)
    block_expert = empty((blocks,), torch.int32)
    padded_rows = empty((1,), torch.int32)
    chunks = triton.cdiv(pairs, SORT_CHUNK)
    bins = triton.next_power_of_2(problem.E + 1)
    counted = form(problem, tokens)
    counts = empty((chunks, bins), torch.int32) if counted else padded_rows
    sort_shape = {"EXPERTS": problem.E, "BINS": bins, "CHUNK": SORT_CHUNK}
    if counted:
        launches.append(
            Launch(
                _sort.count_kernel,
                (chunks,),
                (inputs.topk_ids, counts, pairs),
                {**sort_shape, "num_warps": 4},
            )
        )
    launches.append(
        Launch(
            _sort.place_kernel,
            (chunks,),
            (inputs.topk_ids, counts, sorted_pairs, block_expert, padded_rows, pairs, chunks, blocks),
            {**sort_shape, "BLOCK_M": block_m, "COUNTED": counted, "num_warps": 4},
        )
    )

    def quantize(rows: torch.Tensor, static: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        columns = rows.shape[1]
        quantized = empty(tuple(rows.shape), torch.float8_e4m3fn)
        if scheme is Scheme.FP8_TENSOR:
            assert static is not None
            scale = static
        elif scheme is Scheme.FP8_CHANNEL:
            scale = empty((rows.shape[0],), torch.float32)
        else:
            scale = empty((rows.shape[0], columns // 128), torch.float32)
        width = max(triton.next_power_of_2(columns), 128)
        launches.append(
            Launch(
                _op.quantize_kernel,
                (rows.shape[0],),
                (rows, quantized, scale, scale),
                {"COLUMNS": columns, "WIDTH": width, "SCHEME": code, "num_warps": 4 if width <= 2048 else 8},
            )
        )
        return quantized, scale

    x, x_scale = inputs.hidden, inputs.hidden
    if scheme.is_fp8:
        x, x_scale = quantize(inputs.hidden, weights.a1_scale)
    no_scale = padded_rows
    quantize_out = quantizes_in_gate_up(scheme, candidate.gate_up)
    inner = empty((padded, problem.N), torch.float8_e4m3fn if quantize_out else torch.bfloat16)
    inner_scale: torch.Tensor = no_scale
    if quantize_out:
        if scheme is Scheme.FP8_TENSOR:
            assert weights.a2_scale is not None
            inner_scale = weights.a2_scale
        else:
            inner_scale = empty((padded, problem.N // 128), torch.float32)
    widen = triton.knobs.runtime.interpret and scheme is Scheme.BF16
    common = {"SCHEME": code, "SWAP_AB": candidate.swap_ab, "WIDEN": widen}
    sizes = {"N": problem.N, "K": problem.K}
    launches.append(
        Launch(
            _op.gate_up_kernel,
            (blocks * triton.cdiv(problem.N, candidate.gate_up.block_n),),
            (
                x, x_scale, weights.w13, or_else(weights.w13_scale, no_scale), inner, inner_scale,
                inner_scale, sorted_pairs, block_expert, padded_rows, pairs,
            ),
            {
                **sizes, "TOPK": problem.topk, "QUANTIZE_OUT": quantize_out, "UP_FIRST": weights.up_first,
                **common, **_tile(candidate.gate_up),
            },
        )
    )  # fmt: skip
    if scheme.is_fp8 and not quantize_out:
        inner, inner_scale = quantize(inner, None)
    partial = empty((pairs, problem.K), torch.bfloat16)
    launches.append(
        Launch(
            _op.down_kernel,
            (blocks * triton.cdiv(problem.K, candidate.down.block_n),),
            (
                inner, inner_scale, weights.w2, or_else(weights.w2_scale, no_scale), inputs.topk_weights,
                partial, sorted_pairs, block_expert, padded_rows, pairs,
            ),
            {**sizes, **common, **_tile(candidate.down)},
        )
    )  # fmt: skip
    block = 512 if problem.K >= 512 else triton.next_power_of_2(problem.K)
    launches.append(
        Launch(
            _op.sum_kernel,
            (tokens, triton.cdiv(problem.K, block)),
            (partial, inputs.topk_ids, output),
            {
                "K": problem.K,
                "TOPK": problem.topk,
                "EXPERTS": problem.E,
                "SPARSE": problem.ep > 1,
                "BLOCK": block,
                "num_warps": 2,
            },
        )
    )
    return launches


def _tile(tile: Tile) -> dict[str, int]:
    return {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "GROUP_M": tile.group_m,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
