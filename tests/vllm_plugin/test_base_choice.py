"""Which backend the weights are prepared for, where calls are routed; no vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.client import RoutingClient
from autotune.client.snapshot import Snapshot
from autotune.vllm_plugin import base_choice
from autotune.vllm_plugin.base_choice import choose_base, total_us
from autotune.vocabulary.candidate import Candidate, FlashinferCutlassCandidate, VllmCutlassCandidate
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import Alternative, RoutingTable, Speedup, Timing
from autotune.vocabulary.traffic import TrafficProfile
from tests.factories import H200, make_published, make_table, triton

TENSOR = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=fp8_tensor")
FLASHINFER = FlashinferCutlassCandidate()


def client(table: RoutingTable, **settings: Any) -> RoutingClient:
    snapshot = Snapshot(tables=(make_published(table),), source="test")
    return RoutingClient(Settings(**settings), H200, snapshot=snapshot)


def table(winner: Candidate, baseline: Candidate, **changes: Any) -> RoutingTable:
    return make_table(**{
        "problem": TENSOR, "tokens": (8, 8192), "winner": winner, "baseline": baseline,
        "wins": {8: 1.3, 8192: 1.2}, **changes,
    })  # fmt: skip


def with_alternative(made: RoutingTable, candidate: Candidate, slower: float) -> RoutingTable:
    """The same table, in which `candidate` was measured at every count, slower than the baseline."""
    routes = []
    for route in made.routes:
        time_us = route.baseline_timing.p50_us * slower
        other = Alternative(
            candidate=candidate, first=route.first, timing=Timing(p50_us=time_us, p95_us=time_us),
            speedup=Speedup(median=1 / slower, low=1 / slower), final=False, evidence=("e" * 64,),
        )  # fmt: skip
        routes.append(route.model_copy(update={"alternatives": (other,)}))
    return RoutingTable.model_validate({**dict(made), "routes": tuple(routes)})


def test_vllms_choice_stays_where_every_winner_runs_on_its_weights() -> None:
    chosen = choose_base(client(table(triton(), FLASHINFER)), TENSOR, "fp8")
    assert chosen.backend is None
    assert chosen.detail == "every winner of the table runs on the weights of flashinfer_cutlass"
    assert choose_base(client(table(VllmCutlassCandidate(), triton(64))), TENSOR, "fp8").backend is None


def test_it_moves_where_the_winners_weights_are_others() -> None:
    chosen = choose_base(client(table(FLASHINFER, triton(64))), TENSOR, "fp8")
    assert chosen.backend == "flashinfer_cutlass"
    # 256 steps of 8 tokens at 32 us and one of 8,192 at 12,308: 20,500 against 8,192/1.3 + 12,308/1.2.
    assert "1.24x triton at concurrency=8, which keeps out flashinfer_cutlass" in chosen.detail


def test_it_stays_where_moving_gains_less_than_the_margin() -> None:
    made = with_alternative(table(FLASHINFER, triton(64), wins={8192: 1.01}), FLASHINFER, 1.0)
    chosen = choose_base(client(made), TENSOR, "fp8")
    assert chosen.backend is None
    assert "within the margin" in chosen.detail


def test_a_base_that_is_slow_where_it_does_not_win_is_not_taken() -> None:
    made = with_alternative(table(FLASHINFER, triton(64), wins={8192: 1.2}), FLASHINFER, 1.5)
    assert choose_base(client(made), TENSOR, "fp8").backend is None


def test_a_base_that_was_not_measured_everywhere_is_not_taken() -> None:
    made = table(FLASHINFER, triton(64), wins={8192: 1.5})
    profile = TrafficProfile.concurrency(8)
    assert total_us(made, profile, "flashinfer_cutlass", "triton", lambda backend: True) is None
    assert choose_base(client(made), TENSOR, "fp8").backend is None


def test_a_backend_that_never_ran_the_layer_is_no_base_although_others_win_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.vllm_plugin.test_route_plan import DECODE

    monkeypatch.setattr(base_choice, "takes_up_first", lambda backend: False)
    everywhere = RoutingTable.model_validate({
        **dict(table(DECODE, FLASHINFER)),
        "routes": tuple(r.model_copy(update={"alternatives": ()}) for r in table(DECODE, FLASHINFER).routes),
    })  # fmt: skip
    assert choose_base(client(everywhere), TENSOR, "fp8").backend is None


def test_traffic_outside_the_table_moves_nothing() -> None:
    chosen = choose_base(client(table(FLASHINFER, triton(64)), concurrency=10_000), TENSOR, "fp8")
    assert chosen.backend is None


@pytest.mark.parametrize(("takes", "moved"), [(True, None), (False, "triton")])
def test_a_kernel_of_ours_that_reads_one_order_counts(
    monkeypatch: pytest.MonkeyPatch, takes: bool, moved: str | None
) -> None:
    from tests.vllm_plugin.test_route_plan import DECODE

    monkeypatch.setattr(base_choice, "takes_up_first", lambda backend: takes)
    made = with_alternative(table(DECODE, FLASHINFER, wins={8: 1.5}), triton(), 1.05)
    # Over Triton's weights: fused_decode where it wins, Triton (5% slower) elsewhere.
    assert choose_base(client(made), TENSOR, "fp8").backend == moved
