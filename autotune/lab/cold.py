"""The first token with cold compile caches beside that with warm ones."""

from __future__ import annotations

import statistics as stats
from dataclasses import dataclass

from autotune.lab.results import Folder
from autotune.vocabulary.errors import UsageError

METRIC = "p95_ttft_ms"


@dataclass(frozen=True)
class ColdOverWarm:
    """One arm at one point.

    Args:
        warm_ms, cold_ms: time to first token at p95, median over the rounds.
        ratio, lowest, highest: of two experiments the cold median over the warm one, and the least and
            greatest cold figure of a round over `warm_ms`; of one, the median, least and greatest ratio of a
            server's cold figure to its own of the same load right afterwards.
    """

    arm: str
    point: str
    warm_ms: float
    cold_ms: float
    ratio: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return (
            f"{self.arm}, {self.point}: first token p95 {self.warm_ms:.1f} ms warm, "
            f"{self.cold_ms:.1f} ms cold: {self.ratio:.2f} times ({self.lowest:.2f} to {self.highest:.2f})"
        )


def cold_over_again(cold: Folder) -> list[ColdOverWarm]:
    """Compare, on each server that started cold, its first load with the same load once more.

    Empty for an experiment with warm caches, and where the load was not repeated.

    Raises:
        NotFoundError, TableError: for a folder without an experiment that can be read.
    """
    plan = cold.plan()
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for pair in cold.pairs(plan):
        for arm, result in pair.results.items():
            if METRIC in result.again and METRIC in result.figures:
                figures = (result.again[METRIC], result.figures[METRIC])
                found.setdefault((arm, pair.point.name), []).append(figures)
    compared = []
    for (arm, point), twice in found.items():
        ratios = [first / again for again, first in twice]
        compared.append(
            ColdOverWarm(
                arm=arm,
                point=point,
                warm_ms=stats.median(again for again, _ in twice),
                cold_ms=stats.median(first for _, first in twice),
                ratio=stats.median(ratios),
                lowest=min(ratios),
                highest=max(ratios),
            )
        )
    return compared


def cold_over_warm(warm: Folder, cold: Folder) -> list[ColdOverWarm]:
    """Compare every arm and point that both experiments have measured in whole pairs.

    Raises:
        NotFoundError, TableError: for a folder without an experiment that can be read.
        UsageError: if they are not a warm and a cold experiment with the same model, or have no arm and point
            in common.
    """
    figures: dict[str, dict[tuple[str, str], list[float]]] = {}
    plans = {"warm": warm.plan(), "cold": cold.plan()}
    for state, folder in (("warm", warm), ("cold", cold)):
        plan = plans[state]
        if plan.cache != state:
            raise UsageError(f"{folder.path} was measured with {plan.cache} caches.", f"It must be {state}.")
        found = figures.setdefault(state, {})
        for pair in folder.pairs(plan):
            for arm, result in pair.results.items():
                if METRIC in result.figures:
                    found.setdefault((arm, pair.point.name), []).append(result.figures[METRIC])
    if (plans["warm"].scheme, plans["warm"].layers) != (plans["cold"].scheme, plans["cold"].layers):
        raise UsageError("The two experiments serve different models.", "Take two of one scheme and depth.")
    shared = [key for key in figures["warm"] if key in figures["cold"]]
    if not shared:
        raise UsageError(
            "The two experiments have no arm and point in common.", "Measure one point with both caches."
        )
    compared = []
    for arm, point in shared:
        middle = stats.median(figures["warm"][arm, point])
        values = figures["cold"][arm, point]
        compared.append(
            ColdOverWarm(
                arm=arm,
                point=point,
                warm_ms=middle,
                cold_ms=stats.median(values),
                ratio=stats.median(values) / middle,
                lowest=min(values) / middle,
                highest=max(values) / middle,
            )
        )
    return compared
