"""Which Triton tile a table gives for a token count; vLLM's own where it gives none."""

from __future__ import annotations

from collections.abc import Collection

from autotune.kernels.specs import fits
from autotune.vocabulary.candidate import TritonCandidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.table import Alternative, Miss, Route, RoutingTable, Verdict


def tile_at(table: RoutingTable, tokens: int, moved_to_triton: bool) -> TritonCandidate | None:
    """The tile to run with, given that Triton runs; None leaves vLLM's own configuration.

    Args:
        moved_to_triton: the static choice put Triton in place of the baseline's backend.
    """
    found = table.lookup(tokens)
    if isinstance(found, Miss):
        return None
    tile, first = tile_of(found, moved_to_triton)
    return tile if tokens >= first else None


def tile_of(route: Route, moved_to_triton: bool) -> tuple[TritonCandidate | None, int]:
    """The tile that one route gives, and the token count from which on it holds.

    Where another backend wins but Triton runs, the table's Triton tile counts only against a known
    Triton baseline (re-timed, and faster at the lower bound), or where the deployment was moved to
    Triton for that very tile. Against a baseline of another backend nothing is known of vLLM's own tile.
    """
    if route.verdict is Verdict.WIN and isinstance(route.winner, TritonCandidate):
        return route.winner, route.first
    alternative = triton_alternative(route)
    if alternative is None or not isinstance(alternative.candidate, TritonCandidate):
        return None, route.first
    if isinstance(route.baseline, TritonCandidate):
        proven = route.verdict is Verdict.WIN and alternative.final and alternative.speedup.low > 1
    else:
        proven = moved_to_triton
    return (alternative.candidate if proven else None), max(route.first, alternative.first)


def triton_alternative(route: Route) -> Alternative | None:
    """The route's best Triton candidate, where another won."""
    return next((a for a in route.alternatives if isinstance(a.candidate, TritonCandidate)), None)


def unlaunchable(
    table: RoutingTable, environment: Environment, moved_to_triton: bool
) -> dict[TritonCandidate, str]:
    """Tiles of a table that a GPU cannot launch (too much shared memory, say), with the reasons."""
    tiles = dict.fromkeys(tile_of(route, moved_to_triton)[0] for route in table.routes)
    support = {tile: fits(tile, table.problem, environment) for tile in tiles if tile is not None}
    return {tile: answer.reason for tile, answer in support.items() if not answer.ok}


def covered(table: RoutingTable, moved_to_triton: bool, without: Collection[TritonCandidate] = ()) -> str:
    """The token counts that get a tile of the table, as text: `1..8, 64`.

    Args:
        without: tiles that are not used.
    """
    spans: list[list[int]] = []
    for route in table.routes:
        tile, first = tile_of(route, moved_to_triton)
        if tile is None or tile in without:
            continue
        if spans and spans[-1][1] + 1 == first:
            spans[-1][1] = route.last
        else:
            spans.append([first, route.last])
    return ", ".join(f"{first}..{last}" if first != last else str(first) for first, last in spans)
