"""The least time that a layer can take on a GPU: reading its weights, or multiplying, whichever is longer."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.vocabulary.problem import Problem, Scheme


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


def floor_us(problem: Problem, tokens: int, ceilings: Ceilings) -> float:
    """The larger of the memory and the compute floor, microseconds, with uniform routing.

    Memory: the weights of the experts that are touched, once. Compute: two operations per weight and routed
    row. Activations, scales and launches are left out, so no kernel reaches it at few tokens.
    """
    bytes_read = expected_experts(problem, tokens) * problem.weight_bytes_per_expert
    rows = tokens * problem.topk / problem.ep
    operations = 2.0 * rows * (problem.gate_up_rows + problem.N) * problem.K
    width = 1 if problem.scheme is not Scheme.BF16 else 2
    return 1e6 * max(bytes_read / ceilings.bytes_per_s, operations / ceilings.flops_per_s[width])
