"""What a worker knows of its layers: which plan each follows, what its graphs hold, and the calls counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.vllm_plugin.route_plan import BASE, RoutePlan
from autotune.vllm_plugin.served import LayerReport, refused, served
from autotune.vocabulary.table import Miss, RoutingTable


@dataclass
class _Planned:
    table: RoutingTable
    plan: RoutePlan
    revision: int | None
    captured: Sequence[int] | None = None
    """The plan's array when the last graph had been captured."""
    before: set[str] = field(default_factory=set)
    """Backends that had left before the first graph was captured."""
    during: set[str] = field(default_factory=set)
    """Backends that left in between."""


class Ledger:
    """Filled by the router as vLLM builds the layers; one for each process.

    Args:
        mode: `route`, or `observe`, where nothing is routed and every entry counts as what would serve.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._planned: dict[tuple[str, str], _Planned] = {}
        self._refused: dict[tuple[str, str], tuple[str, Miss | None]] = {}

    def routed(self, table: RoutingTable, plan: RoutePlan, revision: int | None) -> None:
        """Note a kind of layer that follows a plan, also one of which nothing is left."""
        self._planned.setdefault((str(table.problem), plan.base), _Planned(table, plan, revision))

    def refused(self, layer: str, base: str, reason: str, miss: Miss | None) -> None:
        """Note a kind of layer whose calls are not routed; it counts only if no plan is known for it."""
        self._refused.setdefault((layer, base), (reason, miss))

    def capturing(self, capture: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Run vLLM's capture of its CUDA graphs, and note what they hold."""
        for layer in self._planned.values():
            layer.before = set[str](layer.plan.removed)
        try:
            return capture(*args, **named)
        finally:
            for layer in self._planned.values():
                layer.captured = layer.plan.serving
                layer.during = set[str](layer.plan.removed) - layer.before

    def ready(self) -> None:
        """From now on the calls that Python makes are counted: vLLM captures no graph any more."""
        for layer in self._planned.values():
            layer.plan.calls = {}

    def reports(self) -> list[LayerReport]:
        """One for each kind of layer and backend that vLLM chose."""
        found = [self._report(layer) for layer in self._planned.values()]
        for (problem, base), (_, miss) in self._refused.items():
            if (problem, base) not in self._planned:
                spans = refused(base, miss)
                found.append(LayerReport(problem, base, self.mode, None, spans, spans))
        return found

    def _report(self, layer: _Planned) -> LayerReport:
        plan = layer.plan
        if self.mode == "observe":
            eager = graphs = served(layer.table, plan, None)
        else:
            eager = served(layer.table, plan, plan.serving, plan.removed)
            captured = plan.serving if layer.captured is None else layer.captured
            graphs = served(layer.table, plan, captured, layer.before, layer.during)
        # A copy: the thread that serves goes on counting.
        counted = sorted((plan.calls or {}).copy().items())
        calls = tuple(
            (tokens, plan.base if index == BASE else plan.entries[index - 1].backend, count)
            for (tokens, index), count in counted
        )
        return LayerReport(str(plan.problem), plan.base, self.mode, layer.revision, eager, graphs, calls)

    def lines(self) -> list[str]:
        """One line for each route and each reason of each kind of layer, for the calls that Python made."""
        said = []
        for report in self.reports():
            sums: dict[str, int] = {}
            for tokens, backend, count in report.calls:
                now = report.at(tokens, graph=False)
                # A backend that has left since ran these.
                text = str(now) if now.backend == backend else f"{now.tokens} {backend}, until it left"
                sums[text] = sums.get(text, 0) + count
            said += [f"{report.problem}: {text}: {count} layer calls" for text, count in sums.items()]
        return said
