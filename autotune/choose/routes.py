"""From evidence to a routing table: a pure function. The same evidence gives the same table."""

from __future__ import annotations

import statistics as stats
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.choose.statistics import speedup
from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.canonical import significant
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import NotFoundError
from autotune.vocabulary.measurement import Checkpoint, Measurement, Stage, Status
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import (
    Alternative,
    Recording,
    Route,
    RoutingTable,
    Speedup,
    Timing,
    Verdict,
)

DEFAULT_MARGIN = 0.01
PROCESSES = 3
"""A win needs final measurements in at least this many processes."""


@dataclass(frozen=True)
class Summary:
    """One candidate at one token count, over all its measurements of one stage."""

    candidate: Candidate
    speedup: Speedup
    timing: Timing
    baseline_timing: Timing
    evidence: tuple[str, ...]
    processes: int
    final: bool


def summarize(measurements: Sequence[Measurement]) -> Summary | None:
    """Combine measurements of one candidate, one token count and one stage; None if one of them failed."""
    if not measurements or any(m.status is not Status.OK for m in measurements):
        return None
    ordered = sorted(measurements, key=lambda m: m.digest)
    units: dict[tuple[str, int], list[float]] = defaultdict(list)
    for m in ordered:
        assert m.times is not None
        units[m.run, m.process] += m.times.log_ratios()
    times = [m.times for m in ordered if m.times]

    def middle(values: list[float]) -> float:
        return significant(stats.median(values), 5)

    return Summary(
        candidate=ordered[0].candidate,
        speedup=speedup([units[key] for key in sorted(units)], "".join(m.digest for m in ordered)),
        timing=Timing(p50_us=middle([t.p50_us for t in times]), p95_us=middle([t.p95_us for t in times])),
        baseline_timing=Timing(
            p50_us=middle([t.baseline_p50_us for t in times]),
            p95_us=middle([t.baseline_p95_us for t in times]),
        ),
        evidence=tuple(sorted({m.digest for m in ordered})),
        processes=len(units),
        final=ordered[0].stage is Stage.FINAL,
    )


@dataclass(frozen=True)
class Point:
    """Everything known at one token count."""

    tokens: int
    baseline: Candidate
    finals: dict[str, Summary]
    screens: dict[str, Summary]
    """By candidate digest."""

    def winner(self, margin: float) -> Summary | None:
        """The fastest candidate whose bound clears the margin, if any."""
        wins = [
            s
            for s in self.finals.values()
            if s.processes >= PROCESSES
            and s.candidate.servable
            and s.candidate != self.baseline
            and s.speedup.low > 1 + margin
        ]
        return max(wins, key=lambda s: (s.speedup.median, s.candidate.digest), default=None)

    def best_of_backends(self) -> list[Summary]:
        """Each backend's best candidate: by its final measurements where it has any, else as screened.

        One that no server can run stands beside its backend's best, never in its place.
        """
        best: dict[tuple[str, bool], Summary] = {}
        for pool in (self.screens, self.finals):
            of_pool: dict[tuple[str, bool], Summary] = {}
            for summary in pool.values():
                place = (summary.candidate.backend, not summary.candidate.servable)
                current = of_pool.get(place)
                key = (summary.speedup.median, summary.candidate.digest)
                if current is None or key > (current.speedup.median, current.candidate.digest):
                    of_pool[place] = summary
            best.update(of_pool)
        return [best[place] for place in sorted(best)]


def points_of(measurements: Sequence[Measurement]) -> list[Point]:
    """Group evidence by token count. Only measurements against the newest baseline count.

    The newest is that of the newest finals: a screening alone makes no route, and must not take one away.
    """
    by_tokens: dict[int, list[Measurement]] = defaultdict(list)
    for m in measurements:
        by_tokens[m.tokens].append(m)
    points = []
    for tokens in sorted(by_tokens):
        newest = max(by_tokens[tokens], key=lambda m: (m.stage is Stage.FINAL, m.recorded_at, m.digest))
        grouped: dict[tuple[Stage, str], list[Measurement]] = defaultdict(list)
        for m in by_tokens[tokens]:
            if m.baseline == newest.baseline:
                grouped[m.stage, m.candidate.digest].append(m)
        summaries = {key: summary for key, found in grouped.items() if (summary := summarize(found))}
        points.append(
            Point(
                tokens,
                newest.baseline,
                {digest: s for (stage, digest), s in summaries.items() if stage is Stage.FINAL},
                {digest: s for (stage, digest), s in summaries.items() if stage is Stage.SCREEN},
            )
        )
    return points


def loses(point: Point, candidate: Candidate) -> bool | None:
    """Whether a candidate loses to the baseline there; None if it was not finally measured."""
    if candidate == point.baseline:
        return False
    found = point.finals.get(candidate.digest)
    return None if found is None else found.speedup.median < 1.0


def _lost_screening(point: Point, candidate: Candidate) -> bool:
    found = point.screens.get(candidate.digest)
    return candidate != point.baseline and found is not None and found.speedup.median < 1.0


def first_of_range(
    previous: Point | None, point: Point, candidate: Candidate, between: Sequence[Point] = ()
) -> int:
    """Where the range ending at `point` begins for a candidate (design: adjacent counts a < b).

    Counts in (a, b] take b's candidate if it was also measured at a and loses to the baseline at neither
    end; otherwise the range is b alone.

    Args:
        between: counts that were only screened; the candidate must have lost at none of them either.
    """
    if previous is None or any(_lost_screening(p, candidate) for p in between):
        return point.tokens
    if loses(previous, candidate) is False and loses(point, candidate) is False:
        return previous.tokens + 1
    return point.tokens


def build_table(
    measurements: Sequence[Measurement],
    *,
    problem: Problem,
    environment: Environment,
    checkpoint: Checkpoint,
    margin: float = DEFAULT_MARGIN,
    routing: str = "uniform",
) -> RoutingTable:
    """Turn evidence into a routing table.

    Args:
        measurements: those of other problems, environments, checkpoints or routings are left out.
        margin: how far the lower bound of a speed-up must clear 1.

    Raises:
        NotFoundError: if no token count has both a baseline and a final measurement.
    """
    fitting = [
        m
        for m in measurements
        if (m.problem, m.checkpoint, m.routing) == (problem, checkpoint, routing)
        and m.environment == environment
    ]
    points = points_of(fitting)
    if not any(p.finals for p in points):
        raise NotFoundError(
            f"There is no final evidence for {problem} in {environment}.",
            "A table is made of what a sweep re-times at its end: let one come to its end.",
        )
    routes: list[Route] = []
    previous: Point | None = None
    between: list[Point] = []
    for point in points:
        # A count that was only screened has no route, but stops the range of what it saw losing.
        if not point.finals:
            between.append(point)
            continue
        routes.append(_route(previous, point, margin, between))
        previous, between = point, []
    used = {
        digest for r in routes for digest in (*r.evidence, *(e for a in r.alternatives for e in a.evidence))
    }
    cited = [m for m in fitting if m.digest in used]
    uses_flashinfer = any(c.backend == "flashinfer_cutlass" for r in routes for c in (r.winner, r.baseline))
    if not uses_flashinfer:
        environment = environment.model_copy(update={"flashinfer": None})
    return RoutingTable(
        problem=problem,
        environment=environment,
        checkpoint=checkpoint,
        margin=margin,
        routing=routing,
        recording=Recording(
            first=min(m.recorded_at for m in cited),
            last=max(m.recorded_at for m in cited),
            driver=max(cited, key=lambda m: m.recorded_at).driver,
            runs=tuple(sorted({m.run for m in cited})),
            measurements=len(cited),
        ),
        routes=tuple(routes),
    )


def _route(previous: Point | None, point: Point, margin: float, between: Sequence[Point]) -> Route:
    won = point.winner(margin)
    any_final = max(point.finals.values(), key=lambda s: (s.processes, s.candidate.digest))
    chosen = won.candidate if won else point.baseline
    first = first_of_range(previous, point, chosen, between)
    alternatives = tuple(
        Alternative(
            candidate=s.candidate,
            first=max(first, first_of_range(previous, point, s.candidate, between)),
            timing=s.timing,
            speedup=s.speedup,
            final=s.final and s.processes >= PROCESSES,
            evidence=s.evidence,
        )
        for s in point.best_of_backends()
        if _worth_showing(s, chosen, point.baseline)
    )
    return Route(
        first=first,
        last=point.tokens,
        tokens=point.tokens,
        verdict=Verdict.WIN if won else Verdict.NO_BENEFIT,
        winner=chosen,
        baseline=point.baseline,
        speedup=won.speedup if won else None,
        winner_timing=won.timing if won else any_final.baseline_timing,
        baseline_timing=won.baseline_timing if won else any_final.baseline_timing,
        evidence=won.evidence if won else any_final.evidence,
        alternatives=alternatives,
    )


def _worth_showing(found: Summary, chosen: Candidate, baseline: Candidate) -> bool:
    if not found.candidate.servable:
        return found.candidate != baseline
    if found.candidate.backend == chosen.backend:
        return False
    # The baseline's own backend only with a candidate that beats what it runs by itself.
    return found.candidate.backend != baseline.backend or found.speedup.median > 1
