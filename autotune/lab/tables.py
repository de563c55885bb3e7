"""A table with only some candidates left: what would stand in it if there were no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from autotune.lab.plan import Restriction
from autotune.vocabulary.candidate import VLLM_BACKENDS, Candidate, Tile, TritonCandidate
from autotune.vocabulary.errors import TableError, UsageError
from autotune.vocabulary.files import read_given
from autotune.vocabulary.table import Alternative, Route, RoutingTable, Verdict

Allowed = Callable[[Candidate, Candidate], bool]
"""Of a candidate and the route's baseline: whether the candidate stays."""


def vllm_swaps(tile: Tile) -> bool:
    """vLLM's own rule for Swap-AB on Hopper with FP8 (`enable_swap_ab`, 0.25.1 to 0.33.0)."""
    return tile.block_m < 64 and tile.block_n >= 64


def _tiles(candidate: Candidate, _: Candidate) -> bool:
    return isinstance(candidate, TritonCandidate) and candidate.swap_ab == vllm_swaps(candidate.tile)


def _swap_ab(candidate: Candidate, _: Candidate) -> bool:
    return isinstance(candidate, TritonCandidate) and candidate.swap_ab != vllm_swaps(candidate.tile)


def _route(candidate: Candidate, baseline: Candidate) -> bool:
    return candidate.backend in VLLM_BACKENDS and candidate.backend != baseline.backend


RESTRICTIONS: dict[Restriction, Allowed] = {
    "tiles": _tiles,
    "swap_ab": _swap_ab,
    "swap_ab_off": _tiles,
    "route": _route,
    "fused_decode": lambda candidate, _: candidate.backend == "fused_decode",
    "fused_triton": lambda candidate, _: candidate.backend == "fused_triton",
    "nothing": lambda *_: False,
}


def restricted(table: RoutingTable, to: Restriction) -> RoutingTable:
    """The table decided again among the allowed candidates, by the rule of `autotune.choose.routes`.

    A win needs final measurements and a lower bound above the margin. A route without one keeps its baseline
    as `no_benefit`. Candidates that the table does not hold (each backend's best alone stands in it) cannot
    come back. `swap_ab_off` has the tiles of `tiles` with Swap-AB switched off, under the figures that they
    have with it. Made for experiments: such a table is nothing to publish.

    Raises:
        UsageError: if nothing would be left, unless nothing is what was asked for.
    """
    allowed = RESTRICTIONS[to]
    routes = tuple(_decided(route, allowed, table.margin) for route in table.routes)
    if to == "swap_ab_off":
        with_it, routes = routes, tuple(_without_swap_ab(route) for route in routes)
        if all(old.winner == new.winner for old, new in zip(with_it, routes, strict=True)):
            raise UsageError(
                f"The table of {table.problem} has no winning tile with Swap-AB for the arm {to!r}.",
                "Leave the arm out, or sweep again for a table that has one.",
            )
    if to != "nothing" and all(route.verdict is not Verdict.WIN for route in routes):
        raise UsageError(
            f"The table of {table.problem} has no winning route for the arm {to!r}.",
            "Leave the arm out, or sweep again for a table that has one.",
        )
    fields = {name: getattr(table, name) for name in RoutingTable.model_fields}
    return RoutingTable.model_validate({**fields, "routes": routes})


def _decided(route: Route, allowed: Allowed, margin: float) -> Route:
    kept = tuple(a for a in route.alternatives if allowed(a.candidate, route.baseline))
    if route.verdict is Verdict.WIN and allowed(route.winner, route.baseline):
        return route.model_copy(update={"alternatives": kept})
    wins = [
        a
        for a in kept
        if a.final and a.candidate.servable and a.candidate != route.baseline and a.speedup.low > 1 + margin
    ]
    best = max(wins, key=lambda a: (a.speedup.median, a.candidate.digest), default=None)
    if best is None:
        return _without_winner(route, kept)
    return Route(
        first=max(route.first, best.first),
        last=route.last,
        tokens=route.tokens,
        verdict=Verdict.WIN,
        winner=best.candidate,
        baseline=route.baseline,
        speedup=best.speedup,
        winner_timing=best.timing,
        baseline_timing=route.baseline_timing,
        evidence=best.evidence,
        alternatives=tuple(a for a in kept if a is not best),
    )


def _without_swap_ab(route: Route) -> Route:
    if route.verdict is not Verdict.WIN or not isinstance(route.winner, TritonCandidate):
        return route
    winner = TritonCandidate(tile=route.winner.tile)
    return route.model_copy(update={"winner": winner, "alternatives": ()})


def _without_winner(route: Route, kept: tuple[Alternative, ...]) -> Route:
    return Route(
        first=route.first,
        last=route.last,
        tokens=route.tokens,
        verdict=Verdict.NO_BENEFIT,
        winner=route.baseline,
        baseline=route.baseline,
        speedup=None,
        winner_timing=route.baseline_timing,
        baseline_timing=route.baseline_timing,
        evidence=route.evidence,
        alternatives=kept,
    )


def read_table(path: Path) -> RoutingTable:
    """A table file.

    Raises:
        UsageError: if it cannot be read.
        TableError: if it is broken.
    """
    content = read_given(path, "Name a table file; `autotune table export` writes one.")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path} is no table: {error}.", "Export one: `autotune table export`.") from error
    return RoutingTable.from_json_data(data)


def write_table(table: RoutingTable, path: Path) -> None:
    """Write a table file that `AUTOTUNE_TABLE` may name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table.to_json_data(), indent=1) + "\n")
