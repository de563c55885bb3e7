"""The least time that a layer can take on a GPU: reading its weights, or multiplying, whichever is longer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from autotune.vocabulary.canonical import significant
from autotune.vocabulary.problem import Problem, Scheme
from autotune.vocabulary.table import RoutingTable


@dataclass(frozen=True)
class Ceilings:
    """What a GPU can do.

    Args:
        bytes_per_s: memory bandwidth that a copy reaches, not the datasheet's.
        flops_per_s: dense matrix rate by element width in bytes (1: FP8, 2: bf16).
        source: where the figures come from.
    """

    bytes_per_s: float
    flops_per_s: dict[int, float]
    source: str


CEILINGS: dict[str, Ceilings] = {
    "NVIDIA_H200": Ceilings(
        4.3e12,
        {1: 1.979e15, 2: 9.89e14},
        "4.3 TB/s: device-to-device copy on one H200, bytes read and written; "
        "dense FP8 and bf16 rates: NVIDIA H200 datasheet",
    ),
}


def expected_experts(problem: Problem, tokens: int) -> float:
    """How many of this rank's experts at least one token chooses, on average, with uniform routing.

    Each token picks `topk` of all experts without replacement, so it misses a given one with probability
    1 - topk/experts, and all tokens miss it with that to the power of `tokens`.
    """
    return problem.E * (1.0 - (1.0 - problem.topk / problem.global_experts) ** tokens)


@dataclass(frozen=True)
class Floor:
    """The least time of a layer call, microseconds, and what sets it."""

    us: float
    bound: Literal["memory", "compute"]

    def reached(self, time_us: float) -> float:
        """Which fraction of the floor's rate a time reaches; 1.0 is the floor itself."""
        return self.us / time_us


def floor(problem: Problem, tokens: int, ceilings: Ceilings) -> Floor:
    """The larger of the memory and the compute floor, with uniform routing.

    Memory: the weights of the experts that are touched, once. Compute: two operations per weight and routed
    row. Activations, scales and launches are left out, so no kernel reaches it at few tokens.
    """
    bytes_read = expected_experts(problem, tokens) * problem.weight_bytes_per_expert
    rows = tokens * problem.topk / problem.ep
    operations = 2.0 * rows * (problem.gate_up_rows + problem.N) * problem.K
    width = 1 if problem.scheme is not Scheme.BF16 else 2
    memory = 1e6 * bytes_read / ceilings.bytes_per_s
    compute = 1e6 * operations / ceilings.flops_per_s[width]
    return Floor(memory, "memory") if memory >= compute else Floor(compute, "compute")


def floor_us(problem: Problem, tokens: int, ceilings: Ceilings) -> float:
    """The floor in microseconds (see `floor`)."""
    return floor(problem, tokens, ceilings).us


def floors_of(table: RoutingTable) -> list[Floor | None]:
    """The floor of each route at its measured count; None on a GPU whose ceilings are not known.

    Worked out when a table is shown and never stored in it, so that no digest depends on these figures.
    """
    ceilings = CEILINGS.get(table.environment.gpu)
    return [floor(table.problem, route.tokens, ceilings) if ceilings else None for route in table.routes]


def floor_data(table: RoutingTable) -> dict[str, Any] | None:
    """The floors of a table as plain JSON data, with their source; None where they are not known."""
    ceilings = CEILINGS.get(table.environment.gpu)
    if ceilings is None:
        return None
    routes = [
        {
            "tokens": route.tokens,
            "floor_us": significant(found.us),
            "bound": found.bound,
            "reached": significant(found.reached(route.winner_timing.p50_us), 3),
            "baseline_reached": significant(found.reached(route.baseline_timing.p50_us), 3),
        }
        for route, found in zip(table.routes, floors_of(table), strict=True)
        if found is not None
    ]
    return {"routing": "uniform", "source": ceilings.source, "routes": routes}
