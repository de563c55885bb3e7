"""What serves which token count of a layer, as plain data that a worker hands to the front end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from autotune.vllm_plugin.route_plan import RoutePlan
from autotune.vllm_plugin.route_reach import span
from autotune.vocabulary.table import Kept, Miss, RoutingTable, Verdict

Answer = Literal["route", "fallback", "unknown"]
NO_BENEFIT = Verdict.NO_BENEFIT.value
LEFT_IN_CAPTURE = "left_during_capture"
RANKS_DIFFER = "ranks_differ"


@dataclass(frozen=True)
class Served:
    """Token counts `first..last` (None: and all above) and the backend that runs them.

    `reason` is empty for a winner of the table, `no_benefit` where the table keeps vLLM's choice, a `Miss` or
    `Kept` for a fallback, and says what is not known where `answer` is `unknown`.
    """

    first: int
    last: int | None
    backend: str
    answer: Answer
    reason: str = ""

    @property
    def tokens(self) -> str:
        """`8`, `9..16`, or `65..` without an end."""
        return f"{self.first}.." if self.last is None else span(self.first, self.last)

    def __str__(self) -> str:
        what = self.backend if not self.reason else f"{self.answer} ({self.reason}), {self.backend} serves"
        return f"{self.tokens} {what}"


@dataclass(frozen=True)
class LayerReport:
    """One kind of layer in one worker.

    Args:
        problem: its text form, or another name for a layer that is none.
        base: the backend that vLLM chose; empty if it has no name here.
        mode: `route`, or `observe`, where `eager` and `graphs` are what would have served.
        revision: of the table that decides.
        eager: what serves calls outside CUDA graphs now; covers all token counts from 1.
        graphs: what was serving when the CUDA graphs were captured.
        calls: (token count, backend, number) of the layer calls that Python made since the worker was ready.
    """

    problem: str
    base: str
    mode: str
    revision: int | None
    eager: tuple[Served, ...]
    graphs: tuple[Served, ...]
    calls: tuple[tuple[int, str, int], ...] = ()

    def at(self, tokens: int, graph: bool) -> Served:
        """What serves a token count, at least 1."""
        spans = self.graphs if graph else self.eager
        return next(s for s in reversed(spans) if s.first <= tokens)

    def to_json_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json_data(cls, data: dict[str, Any]) -> LayerReport:
        """Raises `KeyError` or `TypeError` for what `to_json_data` did not make."""
        return cls(
            **{
                **data,
                "eager": tuple(Served(**each) for each in data["eager"]),
                "graphs": tuple(Served(**each) for each in data["graphs"]),
                "calls": tuple((tokens, backend, count) for tokens, backend, count in data["calls"]),
            }
        )


def refused(base: str, miss: Miss | None) -> tuple[Served, ...]:
    """All token counts of a layer whose calls are not routed."""
    return (Served(1, None, base or "vllm", "fallback", (miss or Kept.NOT_ROUTED).value),)


def served(
    table: RoutingTable,
    plan: RoutePlan,
    serving: Sequence[int] | None,
    removed: Collection[str] = (),
    unsure: Collection[str] = (),
) -> tuple[Served, ...]:
    """All token counts of a layer, in order, without gaps.

    Args:
        serving: the plan's array at the time that is meant; None takes every entry as serving.
        removed: backends that had left by then.
        unsure: backends that left while graphs were captured: which graph holds which is not known.
    """
    spans: list[Served] = []
    following = 1
    entries = {(entry.first, entry.last): index for index, entry in enumerate(plan.entries, 1)}
    declined = {(entry.first, entry.last) for entry in plan.declined}
    for route in table.routes:
        _gap(spans, table, plan, following, route.first)
        following = route.last + 1
        where = (route.first, route.last)
        winner = route.winner.backend
        if route.verdict is Verdict.NO_BENEFIT:
            spans.append(Served(*where, plan.base, "route", NO_BENEFIT))
        elif winner == plan.base:
            spans.append(Served(*where, plan.base, "route"))
        elif winner in unsure:
            spans.append(Served(*where, "unknown", "unknown", LEFT_IN_CAPTURE))
        elif where in entries and (serving is None or serving[route.first] == entries[where]):
            spans.append(Served(*where, winner, "route"))
        else:
            kept = Kept.DECLINED if where in declined else Kept.NOT_TRIED
            kept = Kept.REMOVED if winner in removed else kept
            spans.append(Served(*where, plan.base, "fallback", kept.value))
    spans.append(Served(following, None, plan.base, "fallback", Miss.ABOVE_RANGE.value))
    return tuple(spans)


def _gap(spans: list[Served], table: RoutingTable, plan: RoutePlan, first: int, end: int) -> None:
    if first < end:
        miss = table.lookup(first)
        assert isinstance(miss, Miss)
        spans.append(Served(first, end - 1, plan.base, "fallback", miss.value))
