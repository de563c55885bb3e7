"""The speed-up and its bound, checked by simulation with fixed seeds."""

from __future__ import annotations

import math
import random

import pytest

from autotune.choose.statistics import speedup


def draw(
    dice: random.Random, true: float, lengths: list[int], between: float, within: float
) -> list[list[float]]:
    """Log ratios: each process has an offset of its own, each block noise on top."""
    units = []
    for length in lengths:
        offset = math.log(true) + dice.gauss(0, between)
        units.append([offset + dice.gauss(0, within) for _ in range(length)])
    return units


def coverage(true: float, lengths: list[int], between: float, within: float, runs: int = 300) -> float:
    dice = random.Random(1)
    below = sum(
        speedup(draw(dice, true, lengths, between, within), str(run)).low <= true for run in range(runs)
    )
    return below / runs


def test_the_bound_lies_below_the_truth_as_often_as_it_says() -> None:
    assert coverage(1.1, [10, 10, 10], between=0.0, within=0.01) >= 0.93
    # Many processes: differences between them are in the bound too.
    assert coverage(1.1, [10] * 12, between=0.01, within=0.01) >= 0.92


def test_three_processes_that_differ_still_bound_most_of_the_time() -> None:
    """Three units cannot show their own spread well; this states how well the bound holds there."""
    assert coverage(1.1, [10, 10, 10], between=0.01, within=0.01) >= 0.8


def test_noise_alone_seldom_clears_the_margin() -> None:
    dice = random.Random(2)
    wins = sum(speedup(draw(dice, 1.0, [10] * 3, 0.003, 0.01), str(i)).low > 1.01 for i in range(300))
    assert wins <= 3


def test_the_same_evidence_gives_the_same_bound() -> None:
    units = draw(random.Random(3), 1.2, [10, 10, 10], 0.005, 0.01)
    assert speedup(units, "a") == speedup(units, "a")
    assert speedup(units, "a").median == speedup(units, "b").median
    assert speedup(units, "a").median == pytest.approx(1.2, rel=0.02)


def test_more_spread_lowers_the_bound() -> None:
    calm = speedup(draw(random.Random(4), 1.2, [10] * 3, 0.0, 0.002), "x")
    wild = speedup(draw(random.Random(4), 1.2, [10] * 3, 0.0, 0.05), "x")
    assert wild.low < calm.low <= calm.median


@pytest.mark.parametrize("lengths", [[10, 3, 7], [1, 1, 1], [1, 40], [5]])
def test_processes_may_have_different_numbers_of_blocks(lengths: list[int]) -> None:
    found = speedup(draw(random.Random(5), 1.1, lengths, 0.0, 0.001), "x")
    assert found.low <= found.median
    assert found.low == pytest.approx(1.1, rel=0.01)
    assert found.median == pytest.approx(1.1, rel=0.01)


def test_empty_processes_are_left_out_and_no_evidence_is_an_error() -> None:
    assert speedup([[0.1, 0.1], []], "x").median == pytest.approx(math.exp(0.1), rel=1e-4)
    with pytest.raises(ValueError, match="no blocks"):
        speedup([[], []], "x")
