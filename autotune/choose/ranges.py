"""What a sweep measures so that a winner's range reaches back to the count before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autotune.choose.routes import Point, first_of_range, loses
from autotune.vocabulary.candidate import Candidate

Wanted = dict[int, list[Candidate]]
"""Candidates to be timed, by token count."""


def range_ends(points: Sequence[Point], margin: float) -> Wanted:
    """Each count's winner, and each backend's best, at the count before: a range needs both ends.

    Args:
        points: final evidence, by ascending token count.
    """
    wanted: Wanted = {}
    for previous, point in pairwise(points):
        if point.tokens - previous.tokens < 2:
            continue  # nothing lies between them
        for candidate in _of(point, margin):
            if first_of_range(previous, point, candidate) == point.tokens and (
                candidate.digest not in previous.finals and candidate != previous.baseline
            ):
                _add(wanted, previous.tokens, candidate)
    return wanted


def steps(points: Sequence[Point], margin: float) -> Wanted:
    """The count above each one at which the next count's winner loses, with what won around it.

    A baseline may get worse from one count to the next: FlashInfer's tuner keeps one tactic for a range of
    counts, and at 1,024 tokens it took twice as long as at 512 (README). What wins at the upper end then
    holds from the step on, once it was measured there.
    """
    wanted: Wanted = {}
    for previous, point in pairwise(points):
        won = point.winner(margin)
        if won is None or point.tokens - previous.tokens < 2 or not loses(previous, won.candidate):
            continue
        for candidate in (*_of(point, margin), *_of(previous, margin)):
            if candidate != point.baseline:
                _add(wanted, previous.tokens + 1, candidate)
    return wanted


def _of(point: Point, margin: float) -> list[Candidate]:
    """The winner and each backend's best, of what was finally measured."""
    won = point.winner(margin)
    found = [won.candidate] if won else []
    return found + [s.candidate for s in point.best_of_backends() if s.final]


def _add(wanted: Wanted, tokens: int, candidate: Candidate) -> None:
    batch = wanted.setdefault(tokens, [])
    if candidate not in batch:
        batch.append(candidate)
