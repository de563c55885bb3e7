"""The chart of a table: the winner's speed-up at each token count, as SVG geometry."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.vocabulary.table import RoutingTable, Verdict
from autotune.vocabulary.text import counted

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 14, 34


@dataclass(frozen=True)
class Point:
    """One measured token count. Coordinates are SVG user units."""

    x: float
    y: float
    low_y: float
    first_x: float
    """Where the range of token counts begins for which the route holds."""
    win: bool
    label: str


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Everything that the template draws; `ones_y` is where the baseline stands."""

    points: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    ones_y: float
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def draw(table: RoutingTable) -> Chart:
    """Lay out a table: tokens on a log2 axis, speed-up over the baseline from just below 1.

    A route is drawn over its range, so that counts without a route stay empty.
    """
    tokens = [route.tokens for route in table.routes]
    medians = [route.speedup.median if route.speedup else 1.0 for route in table.routes]
    lows = [route.speedup.low if route.speedup else 1.0 for route in table.routes]
    bottom = min(1.0, *lows) - 0.02
    top = max(1.05, *medians)
    top += 0.05 * (top - bottom)
    first, last = math.log2(table.routes[0].first), math.log2(tokens[-1])
    span = last - first or 1.0

    def x(count: int) -> float:
        middle = 0.5 if last == first else (math.log2(count) - first) / span
        return _LEFT + 10 + middle * (WIDTH - _LEFT - _RIGHT - 20)

    def y(speedup: float) -> float:
        return HEIGHT - _BOTTOM - (speedup - bottom) / (top - bottom) * (HEIGHT - _TOP - _BOTTOM)

    points = tuple(
        Point(
            x=x(route.tokens),
            y=y(median),
            low_y=y(low),
            first_x=x(route.first),
            win=route.verdict is Verdict.WIN,
            label=f"{counted(route.tokens, 'token')}: {median:.3f}x, {route.winner}"
            if route.verdict is Verdict.WIN
            else f"{counted(route.tokens, 'token')}: no benefit, {route.winner} is kept",
        )
        for route, median, low in zip(table.routes, medians, lows, strict=True)
    )
    step = _step(top - bottom)
    marks = [1.0 + i * step for i in range(math.ceil((bottom - 1.0) / step), int((top - 1.0) / step) + 1)]
    return Chart(
        points=points,
        x_ticks=tuple(_x_ticks(tokens, [p.x for p in points])),
        y_ticks=tuple(Tick(y(mark), f"{mark:.2f}x") for mark in marks),
        ones_y=y(1.0),
    )


def _x_ticks(tokens: list[int], places: list[float]) -> list[Tick]:
    ticks: list[Tick] = []
    for count, place in zip(tokens, places, strict=True):
        if not ticks or place - ticks[-1].at >= 30:
            ticks.append(Tick(place, str(count)))
    return ticks


def _step(span: float) -> float:
    """Of 0.01, 0.02, 0.05, 0.1, ...: the smallest that gives at most six marks."""
    for exponent in range(-2, 4):
        for factor in (1, 2, 5):
            if span / (factor * 10.0**exponent) <= 6:
                return factor * 10.0**exponent
    return span
