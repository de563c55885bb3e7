"""A table's Triton tiles as files for vLLM's `VLLM_TUNED_CONFIG_FOLDER`, for those who want no plugin.

vLLM takes the key nearest to the token count and knows no outside. Each route is written at both ends of
its range, so that the nearest key lies in the same route; between routes, below the first and above the
last, keys with the baseline's tile keep a table's tile from reaching beyond where it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.vocabulary.candidate import Tile, TritonCandidate
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.problem import vllm_config_file_name
from autotune.vocabulary.table import Route, RoutingTable, Verdict


@dataclass(frozen=True)
class VllmFile:
    """One file to write.

    Args:
        lost: what the file cannot express, in sentences.
    """

    name: str
    text: str
    lost: tuple[str, ...]


def export_vllm(tables: Sequence[RoutingTable]) -> list[VllmFile]:
    """One file for each table.

    Raises:
        TableError: if two tables would share a file name (it tells neither K nor top-k), or a table
            holds no Triton tile at all.
    """
    by_name: dict[str, RoutingTable] = {}
    for table in tables:
        name = vllm_config_file_name(table.problem, table.environment.gpu)
        if name in by_name:
            raise TableError(
                f"{by_name[name].problem} ({by_name[name].checkpoint}) and {table.problem} "
                f"({table.checkpoint}) share the file name {name}.",
                "Export one of them with --model or --shape and --checkpoint.",
            )
        by_name[name] = table
    return [_file(name, table) for name, table in by_name.items()]


def _file(name: str, table: RoutingTable) -> VllmFile:
    keys, unknown, gaps = _keys(table)
    if not keys:
        raise TableError(
            f"The table of {table.problem} holds no Triton tile that a file could name.",
            "Use the plugin, or set vLLM's --moe-backend to what `autotune route` names.",
        )
    values: dict[str, object] = {}
    if table.environment.triton:
        values["triton_version"] = table.environment.triton
    values.update({str(count): keys[count].vllm_config() for count in sorted(keys)})
    return VllmFile(name, json.dumps(values, indent=4) + "\n", tuple(_lost(table, unknown, gaps)))


@dataclass(frozen=True)
class _Gap:
    """Token counts `first..last` that no route covers; `last` is None above the table."""

    first: int
    last: int | None
    filled: bool
    """A measured baseline's tile stands at both ends; otherwise a route's own tile reaches in."""

    def __str__(self) -> str:
        if self.last is None:
            return f"{self.first} and above"
        return f"{self.first}..{self.last}" if self.first != self.last else str(self.first)


def _keys(table: RoutingTable) -> tuple[dict[int, Tile], list[Route], list[_Gap]]:
    keys: dict[int, Tile] = {}
    unknown: list[Route] = []
    gaps: list[_Gap] = []
    for route in table.routes:
        found = _tile(route)
        if found is None:
            unknown.append(route)
            continue
        tile, first = found
        keys[first] = keys[route.last] = tile
        if first > route.first:
            known = isinstance(route.baseline, TritonCandidate)
            gaps.append(_Gap(route.first, first - 1, known))
            if isinstance(route.baseline, TritonCandidate):
                keys[route.first] = keys[first - 1] = route.baseline.tile
    for previous, following in zip((None, *table.routes), (*table.routes, None), strict=True):
        left = previous.last + 1 if previous else 1
        right = following.first - 1 if following else None
        if right is not None and left > right:
            continue
        # A gap: vLLM's own tile is known at measured counts only, so the nearest one stands for it.
        filled = True
        for count, source in ((left, previous or following), (right, following or previous)):
            own = source.baseline if source else None
            if count is not None and isinstance(own, TritonCandidate):
                keys.setdefault(count, own.tile)
            elif count is not None:
                filled = False
        gaps.append(_Gap(left, right, filled))
    return keys, unknown, sorted(gaps, key=lambda gap: gap.first)


def _tile(route: Route) -> tuple[Tile, int] | None:
    """The tile to run Triton with, and from which count on.

    The winner's, the kept baseline's, else Triton's best measured one.
    """
    options = [(route.winner, route.first), (route.baseline, route.first)]
    others = [(a.candidate, max(route.first, a.first)) for a in route.alternatives]
    if route.verdict is Verdict.WIN and isinstance(route.baseline, TritonCandidate):
        # Another backend wins, which a file cannot name: vLLM's own tile unless Triton's is proven.
        proven = [a.final and a.speedup.low > 1 for a in route.alternatives]
        options[1:1] = [option for option, good in zip(others, proven, strict=True) if good]
    options += others
    return next(((c.tile, first) for c, first in options if isinstance(c, TritonCandidate)), None)


def _lost(table: RoutingTable, unknown: Sequence[Route], gaps: Sequence[_Gap]) -> list[str]:
    lost: list[str] = []
    wins = [r for r in table.routes if r.verdict is Verdict.WIN]
    swapped = [r for r in wins if isinstance(r.winner, TritonCandidate) and not _default_swap(r, table)]
    others = [r for r in wins if not isinstance(r.winner, TritonCandidate)]
    if swapped:
        lost.append(f"swap_ab: vLLM derives it from the tile, against the table at {_ranges(swapped)}")
    if others:
        backends = ", ".join(sorted({r.winner.backend for r in others}))
        verb = "win" if "," in backends else "wins"
        where = f"{backends} {verb} at {_ranges(others)}"
        lost.append(f"other backends: {where}; the file has a Triton tile there")
    foreign = [r for r in table.routes if not isinstance(r.baseline, TritonCandidate)]
    if foreign:
        backends = ", ".join(sorted({r.baseline.backend for r in foreign}))
        lost.append(
            f"the choice of Triton: unaided vLLM runs {backends} at {_ranges(foreign)}; there the file "
            "counts only with --moe-backend triton"
        )
    if unknown:
        lost.append(
            f"a tile at {_ranges(unknown)}: none of Triton is known there, and the nearest key answers"
        )
    filled = ", ".join(str(gap) for gap in gaps if gap.filled)
    bare = ", ".join(str(gap) for gap in gaps if not gap.filled)
    if filled:
        lost.append(
            f"counts without a measured Triton tile: at {filled} the plugin leaves vLLM's own tile; the file "
            "gives the baseline's tile of the nearest measured count"
        )
    if bare:
        lost.append(
            f"counts without a measured Triton tile: at {bare} the plugin leaves vLLM's own tile, which is "
            "not known; the tile of the nearest range answers there, without evidence"
        )
    lost.append("top-k, K, and library versions: vLLM checks none of them against the file")
    return lost


def _default_swap(route: Route, table: RoutingTable) -> bool:
    """Whether vLLM derives the same Swap-AB choice as the table made."""
    assert isinstance(route.winner, TritonCandidate)
    tile = route.winner.tile
    derived = (
        table.environment.capability == "9.0"
        and table.problem.scheme.is_fp8
        and tile.block_m < 64
        and tile.block_n >= 64
    )
    return derived == route.winner.swap_ab


def _ranges(routes: Sequence[Route]) -> str:
    return ", ".join(f"{r.first}..{r.last}" if r.first != r.last else str(r.last) for r in routes)
