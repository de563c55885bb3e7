"""Which tile a route gives when Triton runs, though another backend may have won."""

from __future__ import annotations

import pytest

from autotune.vllm_plugin.tile_choice import covered, tile_at
from autotune.vocabulary.candidate import Candidate, DeepGemmCandidate, FlashinferCutlassCandidate
from autotune.vocabulary.table import Alternative, RoutingTable, Speedup, Timing
from tests.factories import make_table, triton

TILE = triton(32)
FLASHINFER = FlashinferCutlassCandidate()


def table(low: float, final: bool, *, first: int = 5, **given: object) -> RoutingTable:
    """One route, 5..8, with a Triton alternative beside what is given."""
    made = make_table(tokens=(8,), firsts={8: 5}, **given)  # type: ignore[arg-type]
    other = Alternative(
        candidate=TILE, first=first, timing=Timing(p50_us=30, p95_us=31),
        speedup=Speedup(median=low + 0.01, low=low), final=final, evidence=("e" * 64,),
    )  # fmt: skip
    route = made.routes[0].model_copy(update={"alternatives": (other,)})
    return made.model_copy(update={"routes": (route,)})


def test_a_triton_winner_is_used_and_a_kept_baseline_is_not() -> None:
    assert tile_at(make_table(winner=TILE), 8, False) == TILE
    assert tile_at(make_table(winner=TILE, wins={}), 8, True) is None
    assert tile_at(make_table(winner=TILE), 65, True) is None


@pytest.mark.parametrize(
    ("low", "final", "used"),
    [(1.02, True, True), (1.02, False, False), (1.0, True, False), (0.9, True, False)],
)
def test_another_winner_against_a_triton_baseline(low: float, final: bool, used: bool) -> None:
    made = table(low, final, winner=DeepGemmCandidate())
    assert tile_at(made, 8, False) == (TILE if used else None)
    assert tile_at(made, 8, True) == (TILE if used else None)


@pytest.mark.parametrize("winner", [DeepGemmCandidate(), None])
def test_a_baseline_of_another_backend_needs_the_move(winner: Candidate | None) -> None:
    made = table(0.99, False, winner=winner, wins={8: 1.2} if winner else {}, baseline=FLASHINFER)
    assert tile_at(made, 8, False) is None
    assert tile_at(made, 8, True) == TILE


def test_an_alternative_holds_only_from_where_it_was_measured() -> None:
    made = table(1.1, True, first=7, winner=DeepGemmCandidate())
    assert tile_at(made, 6, False) is None
    assert tile_at(made, 7, False) == TILE
    assert covered(made, False) == "7..8"


def test_covered_joins_neighbours() -> None:
    assert covered(make_table(winner=TILE, wins={1: 1.1, 2: 1.1, 8: 1.1}), False) == "1..2, 5..8"
    assert covered(make_table(winner=TILE, wins={1: 1.1}), False) == "1"
    assert covered(make_table(wins={}), False) == ""
