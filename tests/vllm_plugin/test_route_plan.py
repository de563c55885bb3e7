"""Which backends share a layer's weights, and the plan that all layers of a shape share; no vLLM."""

from __future__ import annotations

import pytest

from autotune.vllm_plugin.route_plan import BASE, RoutePlan
from autotune.vllm_plugin.route_reach import Entry, Outlook, outlook, row_order, unreachable
from autotune.vocabulary.candidate import (
    BackendName,
    Candidate,
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    FusedDecodeCandidate,
    VllmCutlassCandidate,
)
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import RoutingTable
from tests.factories import make_table, triton

TENSOR = Problem.parse("E=8,N=128,K=128,topk=2,scheme=fp8_tensor")
DECODE = FusedDecodeCandidate(
    block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=64
)


def table_of(problem: Problem, *winners: Candidate | None, baseline: Candidate) -> RoutingTable:
    """Routes 1..10, 11..20 and so on with these winners; None keeps the baseline."""
    counts = [10 * (i + 1) for i in range(len(winners))]
    wins = {count: 1.3 for count, winner in zip(counts, winners, strict=True) if winner}
    table = make_table(problem=problem, tokens=counts, wins=wins, baseline=baseline, firsts={10: 1})
    routes = tuple(
        route.model_copy(update={"winner": winner} if winner else {})
        for route, winner in zip(table.routes, winners, strict=True)
    )
    return RoutingTable.model_validate({**dict(table), "routes": routes})


@pytest.mark.parametrize(
    ("scheme", "base", "backend", "reason"),
    [
        ("fp8_tensor", "flashinfer_cutlass", "triton", ""),
        ("fp8_tensor", "flashinfer_cutlass", "vllm_cutlass", ""),
        ("fp8_tensor", "flashinfer_cutlass", "fused_decode", "does not read up rows before gate rows"),
        ("fp8_tensor", "triton", "fused_decode", ""),
        ("fp8_tensor", "triton", "flashinfer_cutlass", "cannot run fp8_tensor on the weights of triton"),
        ("fp8_tensor", "triton", "deep_gemm", "cannot run fp8_tensor"),
        ("bf16", "triton", "vllm_cutlass", "cannot run bf16"),
        ("bf16", "flashinfer_cutlass", "triton", ""),
        ("fp8_block128", "triton", "deep_gemm", ""),
        ("fp8_block128", "deep_gemm", "triton", ""),
        ("fp8_block128", "flashinfer_cutlass", "triton", "no block-quantizing silu"),
        ("fp8_channel", "vllm_cutlass", "triton", ""),
        ("fp8_channel", "vllm_cutlass", "fused_decode", "cannot run fp8_channel"),
    ],
)
def test_who_can_run_on_whose_weights(
    scheme: str, base: BackendName, backend: BackendName, reason: str
) -> None:
    problem = Problem.parse(f"E=8,N=128,K=128,topk=2,scheme={scheme}")
    found = unreachable(problem, base, backend, lambda kernel: False)
    assert (reason in found) if reason else found == ""


def test_other_activations_have_no_swapped_form() -> None:
    gelu = TENSOR.model_copy(update={"act": "gelu_tanh"})
    assert "no gelu_tanh that takes up before gate" in unreachable(
        gelu, "flashinfer_cutlass", "triton", lambda kernel: True
    )
    assert unreachable(gelu, "vllm_cutlass", "triton", lambda kernel: True) == ""
    ungated = TENSOR.model_copy(update={"act": "relu2_no_mul"})
    assert row_order("flashinfer_cutlass", ungated) == "gate_up"


def test_our_kernels_take_all_experts_on_one_gpu() -> None:
    parallel = TENSOR.model_copy(update={"ep": 2})
    assert "ep=2" in unreachable(parallel, "triton", "fused_triton", lambda kernel: True)
    assert unreachable(parallel, "triton", "vllm_cutlass", lambda kernel: True) == ""


def test_a_table_over_a_base_serves_what_it_can_and_says_what_not() -> None:
    table = table_of(
        TENSOR, DECODE, triton(), VllmCutlassCandidate(), None, baseline=FlashinferCutlassCandidate()
    )
    found = outlook(table, "flashinfer_cutlass", lambda backend: False)
    assert [str(entry) for entry in found.entries] == [f"11..20 {triton()}", "21..30 vllm_cutlass"]
    (left,) = found.declined
    assert (left.first, left.last) == (1, 10)
    assert outlook(table, "triton", lambda backend: False).entries[1].backend == "vllm_cutlass"
    everything = outlook(table, "flashinfer_cutlass", lambda backend: True)
    assert (everything.entries[0].first, everything.entries[0].backend) == (1, "fused_decode")
    assert not everything.declined


def plan() -> RoutePlan:
    entries = (
        Entry(1, 4, DECODE), Entry(7, 8, DeepGemmCandidate()), Entry(9, 16, VllmCutlassCandidate()),
        Entry(30, 40, DeepGemmCandidate()),
    )  # fmt: skip
    return RoutePlan(TENSOR, Outlook("flashinfer_cutlass", entries, ()))


def chosen(made: RoutePlan) -> dict[int, int]:
    return {tokens: made.chosen(tokens) for tokens in (1, 4, 5, 6, 7, 8, 9, 16, 17, 29, 30, 40, 41, 10**6)}


def test_the_base_serves_until_a_route_is_proved() -> None:
    made = plan()
    assert set(chosen(made).values()) == {BASE}
    assert made.due(6) == [1]
    assert made.due(1000) == [1, 2, 3, 4]
    assert made.next_first == 1
    made.prove(made.due(8), lambda index, tokens: "")
    assert made.due(1000) == [3, 4]
    assert made.next_first == 9, "calls below it have nothing to try"
    made.prove(made.due(1000), lambda index, tokens: "")
    assert chosen(made) == {
        1: 1, 4: 1, 5: 0, 6: 0, 7: 2, 8: 2, 9: 3, 16: 3, 17: 0, 29: 0, 30: 4, 40: 4, 41: 0, 10**6: 0
    }  # fmt: skip
    assert not made.pending
    assert made.next_first > 10**9


@pytest.mark.parametrize("raises", [True, False])
def test_a_backend_that_fails_once_leaves_with_all_its_routes(raises: bool) -> None:
    made = plan()
    tried: list[int] = []

    def check(index: int, tokens: int) -> str:
        tried.append(index)
        if index == 2 and raises:
            raise RuntimeError("no kernel image")
        return "other numbers" if index == 2 else ""

    made.prove(made.due(1000), check)
    assert tried == [1, 2, 3], "the other route of a backend that has left is not tried"
    assert made.backends == ("fused_decode", "vllm_cutlass")
    said = "RuntimeError: no kernel image" if raises else "other numbers"
    assert made.removed == {"deep_gemm": f"its probe at 7 tokens failed: {said}"}
    assert {made.chosen(tokens) for tokens in (7, 8, 30, 40)} == {BASE}
    assert made.chosen(9) == 3


def test_a_route_serves_only_if_all_counts_at_which_it_is_tried_pass() -> None:
    counts = {1: (1, 3), 9: (9,)}
    tried: list[tuple[int, int]] = []

    def check(index: int, tokens: int) -> str:
        tried.append((index, tokens))
        return "other numbers" if tokens == 3 else ""

    made = plan()
    made.prove([1, 3], check, lambda entry: counts[entry.first])
    assert tried == [(1, 1), (1, 3), (3, 9)]
    assert made.removed == {"fused_decode": "its probe at 3 tokens failed: other numbers"}
    assert (made.chosen(1), made.chosen(9)) == (BASE, 3)


def test_a_removed_backend_stays_away() -> None:
    made = plan()
    made.prove(made.due(1000), lambda index, tokens: "")
    before = made.serving
    made.remove("vllm_cutlass", "first")
    made.remove("vllm_cutlass", "second")
    assert made.removed == {"vllm_cutlass": "first"}
    assert made.chosen(9) == BASE
    assert made.chosen(7) == 2
    assert before[9] == 3, "a reader in another thread keeps a whole array"
    made.prove([3], lambda index, tokens: "")
    assert made.chosen(9) == BASE
