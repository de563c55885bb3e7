"""Trying a backend on inputs of the layer's real shape against the experts that vLLM chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from autotune.kernels.reference import relative_l2
from autotune.kernels.weights import LayerInputs, make_inputs
from autotune.vocabulary.problem import Problem, Scheme

LIMIT = {Scheme.BF16: 2e-2}
FP8_LIMIT = 6e-2
"""Largest relative L2 difference. Both sides are held to half of it against a float32 reference when they
are measured (1e-2 for bf16, 3e-2 for FP8)."""
FAINT = 1e-6
"""A root mean square below which outputs are taken as equal: such weights (those of a dummy load) leave
nothing of the product after its quantization."""
SEED = 20_251

Run = Callable[[LayerInputs, torch.Tensor], None]
"""Runs one layer call: inputs, and the output to write."""


@dataclass
class Prober:
    """Probes of one layer. The reference output of a token count is made once.

    Args:
        reference: the experts that vLLM chose.
        device: where the weights are.
        dtype: the layer's activations.
    """

    problem: Problem
    reference: Run
    device: torch.device
    dtype: torch.dtype
    _known: tuple[int, LayerInputs, torch.Tensor] | None = None

    def difference(self, tokens: int, run: Run) -> str:
        """What is wrong with `run` at this many tokens, or an empty string.

        Raises:
            Exception: whatever either side raises.
        """
        inputs, expected = self._reference(tokens)
        found = torch.full_like(expected, float("nan"))
        run(inputs, found)
        return compare(found, expected, self.problem.scheme)

    def _reference(self, tokens: int) -> tuple[LayerInputs, torch.Tensor]:
        if self._known is None or self._known[0] != tokens:
            made = make_inputs(self.problem, tokens, SEED, device=str(self.device))
            inputs = LayerInputs(made.hidden.to(self.dtype), made.topk_ids, made.topk_weights)
            expected = torch.full_like(inputs.hidden, float("nan"))
            self.reference(inputs, expected)
            self._known = tokens, inputs, expected
        return self._known[1], self._known[2]


def compare(found: torch.Tensor, expected: torch.Tensor, scheme: Scheme) -> str:
    """What is wrong with an output, or an empty string."""
    if not bool(torch.isfinite(expected).all()):
        return "vLLM's own experts give numbers that are not finite here, so nothing can be compared"
    if not bool(torch.isfinite(found).all()):
        return "numbers that are not finite"
    if float(found.float().square().mean().sqrt()) < FAINT > float(expected.float().square().mean().sqrt()):
        return ""
    error, limit = relative_l2(found, expected), LIMIT.get(scheme, FP8_LIMIT)
    if error <= limit:
        return ""
    return f"it differs from vLLM's own experts by {error:.3g} (relative L2, at most {limit:g})"
