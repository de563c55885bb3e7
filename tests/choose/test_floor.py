"""The floor that figures are compared with."""

from __future__ import annotations

import pytest

from autotune.choose.floor import CEILINGS, expected_experts, floor, floor_data, floor_us, floors_of
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import RoutingTable
from tests.factories import H200 as ENVIRONMENT
from tests.factories import make_table

PROBLEM = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=fp8_tensor")
H200 = CEILINGS["NVIDIA_H200"]


@pytest.mark.parametrize(("tokens", "us"), [(1, 8.8), (8, 56.6), (32, 122.6), (64, 138.1)])
def test_decode_is_bound_by_the_weights_of_the_experts_touched(tokens: int, us: float) -> None:
    """8 of 128 experts of 3 * 768 * 2048 bytes each at 4.3 TB/s are 8.8 us; more tokens touch more."""
    assert floor_us(PROBLEM, tokens, H200) == pytest.approx(us, rel=0.01)


def test_prefill_is_bound_by_arithmetic() -> None:
    operations = 2 * 16384 * 8 * 3 * 768 * 2048
    assert floor_us(PROBLEM, 16384, H200) == pytest.approx(1e6 * operations / 1.979e15)


def test_the_experts_touched_grow_to_all() -> None:
    assert expected_experts(PROBLEM, 1) == pytest.approx(8)
    assert expected_experts(PROBLEM, 10_000) == pytest.approx(128)
    shared = PROBLEM.model_copy(update={"E": 32, "ep": 4})
    assert expected_experts(shared, 1) == pytest.approx(2)


def test_bf16_doubles_both_bounds() -> None:
    wide = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=bf16")
    assert floor_us(wide, 1, H200) == pytest.approx(2 * floor_us(PROBLEM, 1, H200))
    assert floor_us(wide, 16384, H200) == pytest.approx(2 * floor_us(PROBLEM, 16384, H200), rel=0.01)


def test_the_bound_and_how_much_of_it_is_reached() -> None:
    decode, prefill = floor(PROBLEM, 8, H200), floor(PROBLEM, 16384, H200)
    assert (decode.bound, prefill.bound) == ("memory", "compute")
    assert decode.us == floor_us(PROBLEM, 8, H200)
    assert decode.reached(2 * decode.us) == pytest.approx(0.5)


def test_a_tables_floors_leave_its_digest_alone() -> None:
    table = make_table(environment=ENVIRONMENT)
    before = table.digest
    data = floor_data(table)
    assert data is not None
    assert [route["tokens"] for route in data["routes"]] == [route.tokens for route in table.routes]
    first, route = data["routes"][0], table.routes[0]
    assert first["reached"] == pytest.approx(first["floor_us"] / route.winner_timing.p50_us, rel=0.01)
    assert table.digest == RoutingTable.from_json_data(table.to_json_data()).digest == before
    assert "floor" not in table.content()
    other = make_table(environment=ENVIRONMENT.model_copy(update={"gpu": "NVIDIA_L4"}))
    assert floor_data(other) is None
    assert set(floors_of(other)) == {None}
