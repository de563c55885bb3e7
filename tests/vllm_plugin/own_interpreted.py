"""Our kernels as vLLM's router calls them, under Triton's interpreter; started by test_own_experts.py.

TRITON_INTERPRET=1 python own_interpreted.py fp8_tensor      prints one JSON line per case
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch

import autotune.kernels.weights as weights_module
from autotune.kernels.reference import reference_moe, relative_l2
from autotune.kernels.weights import LayerInputs, MoeWeights, in_layout, make_inputs, make_weights
from autotune.vllm_plugin.own_experts import OwnKernel, takes_up_first
from autotune.vocabulary.candidate import Candidate, FusedDecodeCandidate, FusedTritonCandidate, Tile
from autotune.vocabulary.problem import Problem, Scheme
from tests.kernels.interpreted import interpreters_cast, softmax_topk

CANDIDATES: tuple[Candidate, ...] = (
    FusedTritonCandidate(
        gate_up=Tile(block_m=16, block_n=64, block_k=64), down=Tile(block_m=16, block_n=64, block_k=64)
    ),
    FusedDecodeCandidate(
        block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=128
    ),
)


def vllms_experts(weights: MoeWeights) -> Any:
    """The scales as vLLM's experts hold them: 0-D static scales reshaped to one element, as 0.30 does."""
    static = [None if s is None else s.reshape(1) for s in (weights.a1_scale, weights.a2_scale)]
    return SimpleNamespace(
        w1_scale=weights.w13_scale, w2_scale=weights.w2_scale, a1_scale=static[0], a2_scale=static[1]
    )


def from_gate(kernel: OwnKernel, held: MoeWeights, weights: MoeWeights, renormalize: bool) -> float:
    """The error of a single token from the gate on; the interpreter truncates logits to bfloat16."""
    problem = weights.problem
    hidden = make_inputs(problem, 1, 2, device="cpu").hidden
    rows = torch.randn(problem.E, problem.K, generator=torch.Generator().manual_seed(4)) * problem.K**-0.5
    gate = rows.to(torch.bfloat16)
    output = torch.full_like(hidden, float("nan"))
    kernel.apply_from_gate(output, hidden, held.w13, held.w2, gate, renormalize)
    logits = (hidden[0].float() @ gate.float().T).view(torch.int32).bitwise_and(-65536).view(torch.float32)
    ids, chosen = softmax_topk(logits, problem.topk, renormalize)
    return relative_l2(output, reference_moe(weights, LayerInputs(hidden, ids[None].int(), chosen[None])))


def main() -> None:
    problem = Problem(E=6, N=128, K=256, topk=2, scheme=Scheme(sys.argv[1]))
    weights_module._to_fp8 = interpreters_cast
    weights = make_weights(problem, 1, "cpu")
    for candidate in CANDIDATES:
        for order in ("gate_up", "up_gate"):
            if order == "up_gate" and not takes_up_first(candidate.backend):
                continue
            held = in_layout(weights, "w31" if order == "up_gate" else "w13")
            kernel = OwnKernel(problem, candidate, vllms_experts(held), order)  # type: ignore[arg-type]
            for tokens in (1, 5):
                inputs = make_inputs(problem, tokens, 2, device="cpu")
                output = torch.full_like(inputs.hidden, float("nan"))
                kernel.apply(
                    output, inputs.hidden, held.w13, held.w2, inputs.topk_weights, inputs.topk_ids.long(),
                    None, problem.E, None, None, None, None, None, None, False,
                )  # fmt: skip
                error = relative_l2(output, reference_moe(weights, inputs))
                answer = {"backend": candidate.backend, "order": order, "tokens": tokens, "error": error}
                print(json.dumps(answer), flush=True)
            if candidate.backend == "fused_decode":
                for renormalize in (True, False):
                    error = from_gate(kernel, held, weights, renormalize)
                    answer = {"backend": "gate", "order": order, "renormalize": renormalize, "error": error}
                    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
