"""Which backends can run on the one copy of weights that vLLM prepared for another, and what a table's
routes come to there. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from autotune.vocabulary.candidate import BackendName, Candidate
from autotune.vocabulary.problem import Problem, Scheme
from autotune.vocabulary.table import Route, RoutingTable, Verdict

RowOrder = Literal["gate_up", "up_gate"]
"""Order of the halves of the first weight's rows. Checkpoints have the gate's first; FlashInfer's CUTLASS
kernel wants the other ("W31"), and vLLM's oracles prepare it so."""

OWN_BACKENDS: frozenset[BackendName] = frozenset({"fused_triton", "fused_decode"})
TakesUpFirst = Callable[[BackendName], bool]
"""Whether a kernel of ours reads up rows before gate rows."""

_ADDED: dict[Scheme, tuple[BackendName, ...]] = {
    Scheme.BF16: ("triton", "fused_triton", "fused_decode"),
    Scheme.FP8_TENSOR: ("triton", "vllm_cutlass", "fused_triton", "fused_decode"),
    Scheme.FP8_CHANNEL: ("triton", "vllm_cutlass", "fused_triton"),
    Scheme.FP8_BLOCK128: ("triton", "deep_gemm", "fused_triton", "fused_decode"),
}
"""Backends that can be added to what vLLM chose. FlashInfer's is none: it alone wants its row order."""


def row_order(base: BackendName, problem: Problem) -> RowOrder:
    """The order in which vLLM prepares the first weight's rows for a backend."""
    return "up_gate" if base == "flashinfer_cutlass" and problem.gated else "gate_up"


def unreachable(
    problem: Problem, base: BackendName, backend: BackendName, takes_up_first: TakesUpFirst
) -> str:
    """Why a backend cannot run on the weights prepared for `base`; empty if it can."""
    if backend == base:
        return ""
    if backend not in _ADDED[problem.scheme]:
        return f"{backend} cannot run {problem.scheme.value} on the weights of {base}"
    if backend in OWN_BACKENDS and problem.ep > 1:
        return f"{backend} is not given the map of this rank's experts (ep={problem.ep})"
    if row_order(base, problem) == "gate_up":
        return ""
    if problem.act != "silu":
        return f"{backend} has no {problem.act} that takes up before gate, as {base} has its weights"
    if problem.scheme is Scheme.FP8_BLOCK128:
        return f"{backend} has no block-quantizing silu that takes up before gate, as {base} has its weights"
    if backend in OWN_BACKENDS and not takes_up_first(backend):
        return f"{backend} does not read up rows before gate rows, as {base} has its weights"
    return ""


@dataclass(frozen=True)
class Entry:
    """Token counts `first..last` that a backend other than vLLM's choice serves."""

    first: int
    last: int
    candidate: Candidate

    @property
    def backend(self) -> BackendName:
        return self.candidate.backend

    def __str__(self) -> str:
        return f"{span(self.first, self.last)} {self.candidate}"


@dataclass(frozen=True)
class Declined:
    """A winning route that stays with vLLM's choice, and why."""

    first: int
    last: int
    candidate: Candidate
    reason: str

    def __str__(self) -> str:
        return f"{span(self.first, self.last)} {self.candidate}: {self.reason}"


@dataclass(frozen=True)
class Outlook:
    """What routing per call comes to for one table on one base backend."""

    base: BackendName
    entries: tuple[Entry, ...]
    declined: tuple[Declined, ...]


def outlook(table: RoutingTable, base: BackendName, takes_up_first: TakesUpFirst) -> Outlook:
    """The winning routes that other backends than `base` serve, and those that cannot be had.

    Every other token count is the base's, with whatever tile the table has for it.
    """
    entries, declined = [], []
    for route in table.routes:
        if not wins_elsewhere(route, base):
            continue
        reason = unreachable(table.problem, base, route.winner.backend, takes_up_first)
        if reason:
            declined.append(Declined(route.first, route.last, route.winner, reason))
        else:
            entries.append(Entry(route.first, route.last, route.winner))
    return Outlook(base, tuple(entries), tuple(declined))


def wins_elsewhere(route: Route, base: BackendName) -> bool:
    """Whether a backend other than `base` won this route."""
    return route.verdict is Verdict.WIN and route.winner.backend != base


def span(first: int, last: int) -> str:
    """`8` or `9..16`."""
    return str(first) if first == last else f"{first}..{last}"
