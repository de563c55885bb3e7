"""From whole pairs to ratios with intervals, and one verdict for each point and metric."""

from __future__ import annotations

import math
import statistics as stats
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from autotune.choose.statistics import speedup
from autotune.lab import metrics
from autotune.lab.plan import MIN_ROUNDS, Plan, Point
from autotune.lab.results import LEAST, Folder, Pair, Start

MARGIN = 0.01
"""A ratio counts as different only beyond it, as a candidate of a table wins only beyond its margin."""


@dataclass(frozen=True)
class Metric:
    """A figure of `vllm bench serve` and which way is better."""

    name: str
    label: str
    more_is_better: bool = False


METRICS = (
    Metric("output_throughput", "output tokens/s", more_is_better=True),
    *(
        Metric(f"p{percentile}_{short}_ms", f"{long} p{percentile}, ms")
        for short, long in (
            ("ttft", "time to first token"),
            ("itl", "between tokens"),
            ("tpot", "per output token"),
            ("e2el", "end to end"),
        )
        for percentile in (50, 95, 99)
    ),
)


class Outcome(StrEnum):
    BETTER = "better"
    NO_DIFFERENCE = "no difference"
    WORSE = "worse"
    TOO_FEW = "too few rounds"


@dataclass(frozen=True)
class Comparison:
    """One arm against its reference at one point, by one metric.

    Args:
        reference, treatment: medians over the rounds.
        ratio: median over the rounds of treatment / reference; None without any round.
        low, high: one-sided 95% bounds of it, each.
        rounds: whole pairs that went in.
    """

    arm: str
    against: str
    point: str
    concurrency: int
    metric: str
    label: str
    reference: float | None
    treatment: float | None
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    outcome: Outcome


@dataclass(frozen=True)
class ArmFacts:
    """What is known of an arm's servers.

    Args:
        ready_s: start-up times of servers that started alone, by the state of their caches; seconds.
        starts_beside_others: starts that give no start-up time.
        memory_mib: GPU memory of a server when it is ready; median.
        memory: GiB as vLLM logs them; medians.
        compiles: kernels compiled while measured, over all whole pairs, by name.
        steps: engine steps of its last server by what served them, rehearsals and warm-ups included; empty
            without the plugin's counts.
    """

    arm: str
    note: str
    ready_s: dict[str, list[float]]
    starts_beside_others: int
    memory_mib: float | None
    memory: dict[str, float]
    compiles: dict[str, int]
    steps: dict[str, int]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Everything that an experiment's folder says so far."""

    plan: Plan
    pairs: int
    comparisons: tuple[Comparison, ...]
    arms: tuple[ArmFacts, ...]
    places: tuple[str, ...]
    unusable: tuple[str, ...] = ()
    """Files in results' places that are none of them."""

    @property
    def wanted(self) -> int:
        """Pairs that the plan asks for."""
        return self.plan.rounds * len(self.plan.points)

    def conclusions(self) -> list[str]:
        """A sentence for each arm and point: what is better or worse, or that there is no benefit."""
        sentences = []
        for arm in self.plan.arms:
            if arm.against is None:
                continue
            for point in self.plan.points:
                here = [c for c in self.comparisons if (c.arm, c.point) == (arm.name, point.name)]
                sentences.append(f"{arm.name} against {arm.against} at {point}: {_conclusion(here)}")
        return sentences

    def to_json_data(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "plan": self.plan.model_dump(mode="json"),
            "plan_digest": self.plan.digest,
            "pairs": self.pairs,
            "pairs_wanted": self.wanted,
            "places": list(self.places),
            "unusable": list(self.unusable),
            "comparisons": [asdict(c) for c in self.comparisons],
            "arms": [asdict(arm) for arm in self.arms],
            "conclusions": self.conclusions(),
        }


def _conclusion(comparisons: list[Comparison]) -> str:
    named = {
        outcome: [c.label for c in comparisons if c.outcome is outcome]
        for outcome in (Outcome.BETTER, Outcome.WORSE)
    }
    if any(c.outcome is Outcome.TOO_FEW for c in comparisons):
        return f"{comparisons[0].rounds} of at least {MIN_ROUNDS} rounds measured, nothing to conclude yet."
    parts = []
    if named[Outcome.BETTER]:
        parts.append(f"better in {', '.join(named[Outcome.BETTER])}")
    else:
        parts.append("no benefit")
    if named[Outcome.WORSE]:
        parts.append(f"worse in {', '.join(named[Outcome.WORSE])}")
    return "; ".join(parts) + "."


def make_report(folder: Folder, margin: float = MARGIN) -> Report:
    """Read a folder and compare every arm with its reference.

    Raises:
        NotFoundError, TableError: if it holds no experiment that can be read.
    """
    plan = folder.plan()
    pairs = folder.pairs(plan)
    comparisons = [
        compare(plan, pairs, arm.name, arm.against, point, metric, margin)
        for arm in plan.arms
        if arm.against is not None
        for point in plan.points
        for metric in METRICS
    ]
    starts = folder.starts()
    return Report(
        plan=plan,
        pairs=len(pairs),
        comparisons=tuple(comparisons),
        arms=tuple(_facts(folder, plan, arm.name, pairs, starts) for arm in plan.arms),
        places=tuple(dict.fromkeys(str(next(iter(pair.results.values())).place) for pair in pairs)),
        unusable=tuple(folder.unusable(plan)),
    )


def compare(
    plan: Plan, pairs: list[Pair], arm: str, against: str, point: Point, metric: Metric, margin: float
) -> Comparison:
    """Ratio of an arm to its reference over the rounds of one point.

    The interval is the two-level bootstrap of `autotune.choose.statistics` with rounds as units. A unit holds
    one ratio, so with three rounds it is no narrower than the range of the three, and servers that do not
    differ come out on one side of 1 in one of four figures: `margin` is asked for on top, and more rounds
    say more.
    """
    here = [pair.results for pair in pairs if pair.point.name == point.name]
    values = [
        (results[against].figures[metric.name], results[arm].figures[metric.name])
        for results in here
        if metric.name in results[arm].figures and metric.name in results[against].figures
    ]
    # Times between tokens that came together: 0, or what the clock says by chance.
    usable = [pair for pair in values if min(pair) >= LEAST]
    ratio = low = high = None
    outcome = Outcome.TOO_FEW
    if usable:
        logs = [[math.log(treatment / reference)] for reference, treatment in usable]
        seed = f"{plan.digest} {arm} {point.name} {metric.name}"
        up = speedup(logs, seed)
        down = speedup([[-value for value in unit] for unit in logs], seed)
        ratio, low, high = up.median, up.low, 1 / down.low
        if len(usable) >= MIN_ROUNDS:
            outcome = _outcome(low, high, metric, margin)
    return Comparison(
        arm=arm,
        against=against,
        point=point.name,
        concurrency=point.concurrency,
        metric=metric.name,
        label=metric.label,
        reference=stats.median(reference for reference, _ in usable) if usable else None,
        treatment=stats.median(treatment for _, treatment in usable) if usable else None,
        ratio=ratio,
        low=low,
        high=high,
        rounds=len(usable),
        outcome=outcome,
    )


def _outcome(low: float, high: float, metric: Metric, margin: float) -> Outcome:
    if low > 1 + margin:
        return Outcome.BETTER if metric.more_is_better else Outcome.WORSE
    if high < 1 / (1 + margin):
        return Outcome.WORSE if metric.more_is_better else Outcome.BETTER
    return Outcome.NO_DIFFERENCE


def _facts(folder: Folder, plan: Plan, arm: str, pairs: list[Pair], starts: list[Start]) -> ArmFacts:
    mine = [start for start in starts if start.arm == arm]
    ready: dict[str, list[float]] = {}
    for start in mine:
        if start.alone:
            ready.setdefault(start.cache, []).append(start.ready_s)
    compiled: dict[str, int] = {}
    for pair in pairs:
        for kernel in pair.results[arm].compiles:
            compiled[kernel] = compiled.get(kernel, 0) + 1
    memory = [start.memory_mib for start in mine if start.memory_mib is not None]
    names = sorted({name for start in mine for name in start.memory})
    return ArmFacts(
        arm=arm,
        note=plan.arm(arm).note,
        ready_s=ready,
        starts_beside_others=sum(not start.alone for start in mine),
        memory_mib=stats.median(memory) if memory else None,
        memory={name: stats.median(s.memory[name] for s in mine if name in s.memory) for name in names},
        compiles=compiled,
        steps=metrics.steps(folder.metrics_of(mine[-1].log)) if mine else {},
        lines=mine[-1].lines if mine else (),
    )
