"""What a backend must offer to be measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from autotune.kernels.layouts import readable
from autotune.kernels.specs import Support
from autotune.kernels.weights import LayerInputs, MoeWeights
from autotune.vocabulary.candidate import BackendName, Candidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import AutotuneError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem

Prepared = Any
"""Weights in a backend's own layout: only the backend that made it looks inside."""


def require_layout(name: BackendName, weights: MoeWeights) -> None:
    """Refuse weights in an order that a backend would read the wrong way round.

    Raises:
        AutotuneError: naming the layouts that it reads.
    """
    problem = weights.problem
    reads = readable(problem.scheme, name, problem.act)
    if problem.gated and not isinstance(reads, Support) and weights.layout not in reads:
        raise AutotuneError(
            f"{name} with {problem.act} does not read weights in the layout {weights.layout}.",
            f"Give it a copy in {' or '.join(reads)} (autotune.kernels.weights.in_layout).",
        )


class Backend(Protocol):
    """One way to run the layer. Instances hold no weights, so that one serves many problems."""

    name: BackendName

    def supports(self, problem: Problem, environment: Environment) -> Support:
        """Whether the problem can run here, and if not, why."""
        ...

    def prepare(self, weights: MoeWeights) -> Prepared:
        """Lay out the weights; shares the tensors with `weights` wherever the layout allows it.

        Raises:
            AutotuneError: if it cannot run from weights in that layout (see `autotune.kernels.layouts`).
        """
        ...

    def tune(self, prepared: Prepared, inputs: LayerInputs) -> float:
        """Let the backend's own tuner run, if it has one; returns its seconds, without those of loading."""
        ...

    def tactic(self, prepared: Prepared, candidate: Candidate, inputs: LayerInputs) -> str | None:
        """What the backend's own tuner has a call of this size run with, in its words; None without one."""
        ...

    def bind(self, prepared: Prepared, candidate: Candidate) -> Callable[[LayerInputs], torch.Tensor]:
        """A function that runs the layer and returns `[M, K]` bfloat16; safe to capture in a CUDA graph."""
        ...

    def power_of_two_scales(self, problem: Problem) -> bool:
        """Whether it rounds block scales of activations up to powers of two here."""
        ...

    def scratch(self) -> list[torch.Tensor]:
        """Byte buffers that it keeps between calls: poisoned before a check, kept alive while a graph is."""
        ...

    def scratch_bytes(self, prepared: Prepared, inputs: LayerInputs) -> int:
        """How much of such scratch memory a call of this size needs."""
        ...

    def compile_ahead(self, problem: Problem, tokens: int, candidate: Candidate) -> None:
        """Compile what `bind` will launch, touching the GPU with nothing; a no-op without Triton kernels."""
        ...


class Baseline(Protocol):
    """Answers what an unaided vLLM would run."""

    def __call__(
        self, problem: Problem, checkpoint: Checkpoint, tokens: int, environment: Environment
    ) -> Candidate: ...
