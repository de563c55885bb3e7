"""Runs our Triton kernels under Triton's interpreter, in a process that test_interpreter.py starts.

    TRITON_INTERPRET=1 python interpreted.py layer fp8_tensor      prints one JSON line per case
    TRITON_INTERPRET=1 python interpreted.py decode fp8_tensor
    TRITON_INTERPRET=1 python interpreted.py gate fp8_tensor
    TRITON_INTERPRET=1 python interpreted.py choose
    TRITON_INTERPRET=1 python interpreted.py sort

The interpreter is chosen when triton is imported, so no test process can switch to it later.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime.interpreter import _convert_float

import autotune.kernels.weights as weights_module
from autotune.kernels.fused_decode import op as fused_decode
from autotune.kernels.fused_decode._gate import choose
from autotune.kernels.fused_triton.op import SORT_CHUNK, max_padded_rows, plan
from autotune.kernels.launch import Launch, run_layer
from autotune.kernels.reference import reference_moe, relative_l2
from autotune.kernels.rope_fp8.op import rope_fp8, rope_fp8_reference, rotary_table
from autotune.kernels.weights import LayerInputs, MoeWeights, in_layout, make_inputs, make_weights
from autotune.vocabulary.candidate import FusedDecodeCandidate, FusedTritonCandidate, Tile
from autotune.vocabulary.problem import Problem, Scheme


def interpreters_cast(values: torch.Tensor) -> torch.Tensor:
    """float32 to FP8 as the interpreter does it, which truncates where a GPU rounds."""
    clamped = values.clamp(-448, 448).contiguous().numpy()
    bits = _convert_float(clamped, tl.float32, tl.float8e4nv, ir.ROUNDING_MODE.RTNE)
    return torch.from_numpy(bits.reshape(clamped.shape).copy()).view(torch.float8_e4m3fn)


def tiles(gate_n: int, swap: bool) -> FusedTritonCandidate:
    return FusedTritonCandidate(
        gate_up=Tile(block_m=16, block_n=gate_n, block_k=64, group_m=1),
        down=Tile(block_m=16, block_n=64, block_k=128, group_m=2),
        swap_ab=swap,
    )


def cases(scheme: Scheme) -> list[tuple[Problem, int, FusedTritonCandidate, str]]:
    """(problem, tokens, candidate, routing) of one scheme."""

    def problem(n: int, k: int, *, topk: int = 2, ep: int = 1) -> Problem:
        return Problem(E=6, N=n, K=k, topk=topk, scheme=scheme, ep=ep)

    aligned = problem(128, 256)
    listed = [(aligned, 5, tiles(n, swap), "uniform") for n in (64, 128) for swap in (False, True)]
    listed.append((aligned, 1, tiles(128, True), "uniform"))
    listed.append((problem(128, 128, topk=3, ep=2), 40, tiles(128, True), "zipf:1.2"))
    if scheme is not Scheme.FP8_BLOCK128:  # its scale blocks need multiples of 128
        listed += [(problem(96, 144), 5, tiles(64, swap), "uniform") for swap in (False, True)]
    if scheme is Scheme.BF16:  # counting in a launch of its own
        listed.append((problem(32, 32, topk=6), 360, tiles(32, True), "zipf:1.2"))
    return listed


def layer(scheme: Scheme) -> None:
    weights_module._to_fp8 = interpreters_cast
    for problem, tokens, candidate, routing in cases(scheme):
        weights = make_weights(problem, 1, "cpu")
        inputs = make_inputs(problem, tokens, 2, routing, device="cpu")
        output = run_layer(plan, weights, inputs, candidate, torch.full_like(inputs.hidden, float("nan")))
        other = None
        if problem.N == 128 and tokens == 5:
            other = run_layer(plan, in_layout(weights, "w31"), inputs, candidate)
        answer: dict[str, Any] = {
            "problem": str(problem),
            "tokens": tokens,
            "candidate": str(candidate),
            "error": relative_l2(output, reference_moe(weights, inputs)),
            "same_up_first": None if other is None else torch.equal(output, other),
            "swapped": candidate.swap_ab,
            "gate_n": candidate.gate_up.block_n,
            "chunks": triton.cdiv(tokens * problem.topk, SORT_CHUNK),
            "remote": int((inputs.topk_ids >= problem.E).sum()),
        }
        print(json.dumps(answer), flush=True)


def sort_launches(launches: list[Launch]) -> tuple[list[Launch], torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sorting launches of a plan, with sorted_pairs, block_expert and padded_rows."""
    names = [launch.kernel.fn.__name__ for launch in launches]
    last = names.index("place_kernel")
    sorted_pairs, block_expert, padded_rows = launches[last].arguments[2:5]
    return launches[: last + 1], sorted_pairs, block_expert, padded_rows


def sort() -> None:
    """Print what the sorting kernels made of several routings."""
    for experts, ep, topk, tokens, block_m, routing in (
        (6, 1, 2, 1, 16, "uniform"),
        (6, 1, 2, 150, 16, "uniform"),
        (5, 3, 4, 97, 32, "zipf:1.5"),
        (8, 1, 8, 300, 64, "zipf:2"),
        (128, 1, 8, 8, 16, "uniform"),
    ):
        problem = Problem(E=experts, N=32, K=32, topk=topk, scheme=Scheme.BF16, ep=ep)
        tile = Tile(block_m=block_m, block_n=32, block_k=32)
        inputs = make_inputs(problem, tokens, 3, routing, device="cpu")
        weights = make_weights(problem, 1, "cpu")
        launches = plan(
            weights, inputs, FusedTritonCandidate(gate_up=tile, down=tile), torch.empty_like(inputs.hidden)
        )
        chosen, sorted_pairs, block_expert, padded_rows = sort_launches(launches)
        sorted_pairs.fill_(-7)
        block_expert.fill_(-7)
        for launch in chosen:
            launch.run()
        answer = {
            "experts": experts,
            "block_m": block_m,
            "ids": inputs.topk_ids.flatten().tolist(),
            "launches": len(chosen),
            "room": max_padded_rows(problem, tokens, block_m),
            "sorted_pairs": sorted_pairs.tolist(),
            "block_expert": block_expert.tolist(),
            "padded_rows": padded_rows.item(),
        }
        print(json.dumps(answer), flush=True)


def decode(scheme: Scheme) -> None:
    """Print how close `fused_decode` comes: few and many rows an expert, split and unsplit, ragged sizes."""
    weights_module._to_fp8 = interpreters_cast
    for n, k, tokens, split, routing, first, stages, crowded in (
        (128, 256, 1, 1, "uniform", True, 3, 0),
        (384, 128, 2, 3, "uniform", False, 3, 0),
        (384, 128, 3, 2, "uniform", True, 0, 0),
        (128, 256, 9, 2, "zipf:1", True, 3, 0),
        (128, 128, 40, 1, "zipf:1", False, 0, 0),
        (128, 128, 60, 2, "zipf:1", True, 3, 32),
        (128, 128, 60, 1, "zipf:1", True, 0, 32),
        (96, 144, 5, 1, "uniform", True, 3, 32),
    ):
        if scheme is Scheme.FP8_BLOCK128 and n % 128:
            continue
        problem = Problem(E=6, N=n, K=k, topk=2, scheme=scheme)
        weights = make_weights(problem, 1, "cpu")
        inputs = make_inputs(problem, tokens, 2, routing, device="cpu")
        candidate = FusedDecodeCandidate(
            block_m=16,
            crowded_block_m=crowded,
            gate_up_block_n=64 if n % 64 == 0 else 32,
            gate_up_block_k=128,
            down_block_n=128 if k % 128 == 0 else 64,
            down_block_k=128,
            down_stages=stages,
            down_split_k=split,
            quantize_first=first,
        )
        outputs = [
            run_layer(
                fused_decode.plan, weights, inputs, candidate, torch.full_like(inputs.hidden, float("nan"))
            )
            for _ in range(2)
        ]
        answer = {
            "problem": str(problem),
            "tokens": tokens,
            "split": split,
            "held": stages == 0,
            "crowded": crowded,
            "error": relative_l2(outputs[0], reference_moe(weights, inputs)),
            "same_bits": torch.equal(outputs[0].view(torch.int16), outputs[1].view(torch.int16)),
            "most_rows": int(torch.bincount(inputs.topk_ids.flatten().long()).max()),
            "listed": tokens * problem.topk > fused_decode.SCANNED_PAIRS,
        }
        if tokens in (2, 9):  # once finding rows itself, once from the list
            other = run_layer(fused_decode.plan, in_layout(weights, "w31"), inputs, candidate)
            answer["other_order"] = torch.equal(outputs[0], other)
            nobody, weightless = inputs.topk_ids.clone(), inputs.topk_weights.clone()
            nobody[0, 0], weightless[0, 0] = -1, 0.0
            padded = run_layer(fused_decode.plan, weights, replace(inputs, topk_ids=nobody), candidate)
            nobody[0, 0] = 0
            as_if = replace(inputs, topk_ids=nobody, topk_weights=weightless)
            # Whole tokens of padding, as a captured batch has them: more rows of one expert than tokens.
            left, empty = tokens // 2, inputs.topk_ids.clone()
            empty[left:] = -1
            filled = run_layer(fused_decode.plan, weights, replace(inputs, topk_ids=empty), candidate)
            answer["real_rows"] = torch.equal(filled[:left], outputs[0][:left])
            answer["padded"] = torch.equal(padded, run_layer(fused_decode.plan, weights, as_if, candidate))
        if scheme is Scheme.FP8_TENSOR and tokens in (2, 9):
            given = replace(inputs, hidden=interpreters_cast(inputs.hidden.float() / weights.a1_scale))
            output = torch.full_like(inputs.hidden, float("nan"))
            run_layer(fused_decode.plan, weights, given, candidate, output)
            answer["given_fp8"] = torch.equal(outputs[0], output)
        print(json.dumps(answer), flush=True)


@triton.jit
def choose_kernel(
    logits_ptr, ids_ptr, again_ptr, weights_ptr, renormalize,
    EXPERTS: tl.constexpr, BINS: tl.constexpr, TOPK: tl.constexpr,
):  # fmt: skip
    """What a block of the first GEMM chooses, and one of the second (grid: slots)."""
    slot = tl.program_id(0)
    expert, _ = choose(logits_ptr, slot, renormalize, EXPERTS, BINS, TOPK, False)
    again, weight = choose(logits_ptr, slot, renormalize, EXPERTS, BINS, TOPK, True)
    tl.store(ids_ptr + slot, expert)
    tl.store(again_ptr + slot, again)
    tl.store(weights_ptr + slot, weight)


def softmax_topk(logits: torch.Tensor, topk: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights of one token by torch; of equal logits the lower expert first, as vLLM's op."""
    ids = logits.float().argsort(descending=True, stable=True)[:topk]
    weights = logits.float().softmax(0)[ids]
    return ids, weights / weights.sum() if renormalize else weights


def choices() -> None:
    """Print what `choose` makes of logits with ties, infinities and NaN."""
    inf = float("inf")
    above, below = torch.tensor([0x7FC0, 0xFFC0 - 65536], dtype=torch.int16).view(torch.bfloat16).unbind()
    """NaN of either sign; which one a conversion makes is up to the machine."""
    generator = torch.Generator().manual_seed(3)
    some = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 3.0, inf, -inf]).to(torch.bfloat16)
    some[1], some[3], some[4] = above, below, above
    for name, logits, topk in (
        ("random", torch.randn(128, generator=generator), 8),
        ("no power of two", torch.randn(60, generator=generator), 4),
        ("all negative", -torch.rand(100, generator=generator) - 1, 16),
        ("few values", torch.randint(-2, 3, (70,), generator=generator).float(), 8),
        ("all equal", torch.full((6,), -0.25), 6),
        ("far apart", torch.tensor([-300.0, 200.0, 0.0, 300.0, -1e30, 1e30]), 3),
        ("one infinite below", torch.tensor([1.0, -inf, 3.0, 2.0, -inf]), 4),
        ("all NaN", above.expand(10), 4),
        ("all NaN of the other sign", below.expand(10), 4),
        ("some NaN", some, 7),
        ("only infinities below", torch.full((9,), -inf), 3),
    ):
        for renormalize in (True, False):
            given = logits.to(torch.bfloat16).contiguous()
            ids, again = torch.full((2, topk), -7).unbind()
            weights = torch.full((topk,), -7.0)
            choose_kernel[(topk,)](
                given, ids, again, weights, int(renormalize), len(given),
                triton.next_power_of_2(len(given)), topk,
            )  # fmt: skip
            wanted_ids, wanted = softmax_topk(given, topk, renormalize)
            answer = {
                "name": name,
                "experts": len(given),
                "renormalize": renormalize,
                "ids": ids.tolist(),
                "again": again.tolist(),
                "weights": weights.tolist(),
                "wanted_ids": wanted_ids.tolist(),
                "wanted": wanted.tolist(),
            }
            print(json.dumps(answer), flush=True)


def from_gate(
    weights: MoeWeights, chooser: fused_decode.Gate, hidden: torch.Tensor, candidate: FusedDecodeCandidate
) -> tuple[torch.Tensor, list[Launch]]:
    """The output, and the launches that made it."""
    output = torch.full_like(hidden, 7.0)
    launches = fused_decode.plan_from_gate(weights, chooser, hidden, candidate, output)
    for launch in launches:
        launch.run()
    return output, launches


def gate(scheme: Scheme) -> None:
    """Print how `fused_decode` from the gate on compares with itself on torch's choice among its logits."""
    weights_module._to_fp8 = interpreters_cast
    for experts, n, k, topk, split, stages, kind, renormalizations in (
        (6, 128, 256, 2, 1, 3, "random", (True, False)),
        (10, 256, 128, 3, 2, 0, "random", (True,)),
        (6, 128, 128, 4, 1, 3, "ties", (False,)),
        (6, 128, 128, 2, 1, 3, "nan", (True,)),
        (12, 96, 144, 3, 1, 3, "random", (True,)),
    ):
        if scheme is Scheme.FP8_BLOCK128 and n % 128:
            continue
        problem = Problem(E=experts, N=n, K=k, topk=topk, scheme=scheme)
        weights = make_weights(problem, 1, "cpu")
        hidden = make_inputs(problem, 1, 2, device="cpu").hidden
        rows = torch.randn(experts, k, generator=torch.Generator().manual_seed(4)) * k**-0.5
        if kind == "ties":
            rows[[2, 5]], rows[4] = rows[0].clone(), rows[1]
        if kind == "nan":
            hidden[0, 3] = float("nan")
        matrix = rows.to(torch.bfloat16)
        candidate = FusedDecodeCandidate(
            block_m=16,
            gate_up_block_n=64 if n % 64 == 0 else 32,
            gate_up_block_k=128,
            down_block_n=128 if k % 128 == 0 else 64,
            down_block_k=128,
            down_stages=stages,
            down_split_k=split,
            quantize_first=True,
        )
        exact = hidden.double()[0] @ matrix.double().T
        for renormalize in renormalizations:
            chooser = fused_decode.Gate(matrix, renormalize)
            output, launches = from_gate(weights, chooser, hidden, candidate)
            logits = launches[0].arguments[2]
            ids, chosen = softmax_topk(logits, topk, renormalize)
            given = LayerInputs(hidden, ids[None].int(), chosen[None])
            wanted = run_layer(fused_decode.plan, weights, given, candidate)
            answer = {
                "problem": str(problem),
                "kind": kind,
                "renormalize": renormalize,
                "split": split,
                "held": stages == 0,
                "ids": ids.tolist(),
                "logits": len(logits.unique()),
                "error": relative_l2(output, wanted.float()),
                "all_nan": bool(output.isnan().all()),
                # How far from the exact sum, in units of a bfloat16's last place.
                "logits_ulps": float(((logits - exact).abs() / 2 ** (exact.abs().log2().floor() - 7)).max()),
                "counters": launches[1].arguments[15].abs().sum().item(),
            }
            if kind == "ties":
                other, _ = from_gate(in_layout(weights, "w31"), chooser, hidden, candidate)
                answer["other_order"] = torch.equal(output, other)
            print(json.dumps(answer), flush=True)


def rope() -> None:
    """Print how close the fused rotation and quantization comes, for ragged token counts."""
    for tokens, heads, dim, naive in ((1, 2, 16, False), (7, 3, 64, False), (9, 1, 128, True)):
        generator = torch.Generator().manual_seed(tokens)
        x = torch.randn(tokens, heads, dim, generator=generator).to(torch.bfloat16)
        positions = torch.randint(0, 50, (tokens,), generator=generator)
        table = rotary_table(50, dim)
        out, scale = rope_fp8(x, positions, table, naive)
        rotated, scales = rope_fp8_reference(x, positions, table)
        # The same cast on both sides: the interpreter's own.
        expected = interpreters_cast(rotated / scales[..., None]).float() * scales[..., None]
        answer = {
            "tokens": tokens,
            "naive": naive,
            "error": relative_l2(out.float() * scale[..., None], expected),
            "scale_error": relative_l2(scale, scales),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "sort":
        sort()
    elif sys.argv[1] == "rope":
        rope()
    elif sys.argv[1] == "decode":
        decode(Scheme(sys.argv[2]))
    elif sys.argv[1] == "choose":
        choices()
    elif sys.argv[1] == "gate":
        gate(Scheme(sys.argv[2]))
    else:
        layer(Scheme(sys.argv[2]))
