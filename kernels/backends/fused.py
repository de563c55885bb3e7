"""Our own kernels behind the backend protocol."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autotune.kernels.backends.base import require_layout
from autotune.kernels.launch import Plan, run_layer
from autotune.kernels.specs import Support, backend_spec
from autotune.kernels.weights import LayerInputs, MoeWeights
from autotune.vocabulary.candidate import BackendName, Candidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.problem import Problem, Scheme


class OwnBackend:
    """A kernel of ours. It reads the weights as they are; nothing is prepared.

    Args:
        plan: lays out the launches of one call.
    """

    def __init__(self, name: BackendName, plan: Plan) -> None:
        self.name: BackendName = name
        self._plan = plan

    def supports(self, problem: Problem, environment: Environment) -> Support:
        return backend_spec(self.name).supports(problem, environment)

    def prepare(self, weights: MoeWeights) -> MoeWeights:
        require_layout(self.name, weights)
        return weights

    def tune(self, prepared: MoeWeights, inputs: LayerInputs) -> float:
        return 0.0

    def tactic(self, prepared: MoeWeights, candidate: Candidate, inputs: LayerInputs) -> str | None:
        return None

    def bind(self, prepared: MoeWeights, candidate: Candidate) -> Callable[[LayerInputs], torch.Tensor]:
        return lambda inputs: run_layer(self._plan, prepared, inputs, candidate)

    def power_of_two_scales(self, problem: Problem) -> bool:
        return False

    def scratch(self) -> list[torch.Tensor]:
        return []

    def scratch_bytes(self, prepared: MoeWeights, inputs: LayerInputs) -> int:
        return 0

    def compile_ahead(self, problem: Problem, tokens: int, candidate: Candidate) -> None:
        weights, inputs = unfilled(problem, tokens)
        for launch in self._plan(weights, inputs, candidate, torch.empty_like(inputs.hidden)):
            launch.compile()


def unfilled(problem: Problem, tokens: int) -> tuple[MoeWeights, LayerInputs]:
    """CPU tensors of the right shapes and types, never written, for compiling only.

    The operating system maps their pages on first touch, so even a large layer takes no memory.
    """
    fp8 = problem.scheme.is_fp8
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16

    def scale(rows: int, columns: int) -> torch.Tensor | None:
        shapes = {
            Scheme.FP8_TENSOR: (problem.E,),
            Scheme.FP8_CHANNEL: (problem.E, rows, 1),
            Scheme.FP8_BLOCK128: (problem.E, rows // 128, columns // 128),
        }
        return torch.empty(shapes[problem.scheme], device="cpu") if fp8 else None

    def static() -> torch.Tensor | None:
        return torch.empty((), device="cpu") if problem.scheme is Scheme.FP8_TENSOR else None

    weights = MoeWeights(
        problem,
        torch.empty(problem.E, problem.gate_up_rows, problem.K, dtype=dtype, device="cpu"),
        torch.empty(problem.E, problem.K, problem.N, dtype=dtype, device="cpu"),
        scale(problem.gate_up_rows, problem.K),
        scale(problem.K, problem.N),
        static(),
        static(),
    )
    inputs = LayerInputs(
        torch.empty(tokens, problem.K, dtype=torch.bfloat16, device="cpu"),
        torch.empty(tokens, problem.topk, dtype=torch.int32, device="cpu"),
        torch.empty(tokens, problem.topk, device="cpu"),
    )
    return weights, inputs
