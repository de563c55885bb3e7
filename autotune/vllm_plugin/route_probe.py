"""Trying a backend on inputs of the layer's real shape against the experts that vLLM chose.

Where the layer's weights can be read, both are held against the float32 reference, by the rule of the
measurements: backends may round differently (vLLM's block scales are powers of two, ours are not) and differ
from each other by more than either from the truth. Else the two are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from autotune.kernels.reference import relative_l2
from autotune.kernels.weights import LayerInputs, make_inputs
from autotune.vocabulary.problem import Problem, Scheme

LIMIT = {Scheme.BF16: 1e-2}
FP8_LIMIT = 3e-2
"""Largest relative L2 error against the reference, or 1.25 times that of vLLM's own experts if that is more.
Two outputs that are each within it may differ by twice as much."""
ORACLE_ROWS = 64
"""Rows of a probe that are held against the reference: it takes float32 copies of them."""
FAINT = 1e-6
"""A root mean square below which outputs are taken as equal: such weights (those of a dummy load) leave
nothing of the product after its quantization."""
SEED = 20_251

Run = Callable[[LayerInputs, torch.Tensor], None]
"""Runs one layer call: inputs, and the output to write."""
Oracle = Callable[[LayerInputs], torch.Tensor]
"""The layer in float32."""


@dataclass
class Prober:
    """Probes of one layer. The reference output of a token count is made once.

    Args:
        reference: the experts that vLLM chose.
        device: where the weights are.
        dtype: the layer's activations.
        oracle: the layer in float32, where its weights can be read.
    """

    problem: Problem
    reference: Run
    device: torch.device
    dtype: torch.dtype
    oracle: Oracle | None = None
    _known: tuple[int, LayerInputs, torch.Tensor] | None = None

    def difference(self, tokens: int, run: Run) -> str:
        """What is wrong with `run` at this many tokens, or an empty string.

        Raises:
            Exception: whatever either side raises.
        """
        inputs, expected = self._reference(tokens)
        found = torch.full_like(expected, float("nan"))
        run(inputs, found)
        if self.oracle is None:
            return compare(found, expected, self.problem.scheme)
        few = slice(0, ORACLE_ROWS)
        truth = self.oracle(
            LayerInputs(inputs.hidden[few].to(torch.bfloat16), inputs.topk_ids[few], inputs.topk_weights[few])
        )
        wrong = compare(found[few], expected[few], self.problem.scheme, truth)
        # The other rows have no truth at hand, but must be numbers.
        return wrong or ("" if bool(torch.isfinite(found).all()) else "numbers that are not finite")

    def _reference(self, tokens: int) -> tuple[LayerInputs, torch.Tensor]:
        if self._known is None or self._known[0] != tokens:
            made = make_inputs(self.problem, tokens, SEED, device=str(self.device))
            inputs = LayerInputs(made.hidden.to(self.dtype), made.topk_ids, made.topk_weights)
            expected = torch.full_like(inputs.hidden, float("nan"))
            self.reference(inputs, expected)
            self._known = tokens, inputs, expected
        return self._known[1], self._known[2]


def compare(
    found: torch.Tensor, expected: torch.Tensor, scheme: Scheme, truth: torch.Tensor | None = None
) -> str:
    """What is wrong with an output, or an empty string.

    Args:
        expected: of vLLM's own experts.
        truth: float32; without it the two outputs are compared.
    """
    if not bool(torch.isfinite(expected).all()):
        return "vLLM's own experts give numbers that are not finite here, so nothing can be compared"
    if not bool(torch.isfinite(found).all()):
        return "numbers that are not finite"
    if float(found.float().square().mean().sqrt()) < FAINT > float(expected.float().square().mean().sqrt()):
        return ""
    limit = LIMIT.get(scheme, FP8_LIMIT)
    if truth is None:
        error, limit = relative_l2(found, expected.float()), 2 * limit
        against = "vLLM's own experts"
    else:
        error, own = relative_l2(found, truth), relative_l2(expected, truth)
        limit = max(limit, 1.25 * own)
        against = f"the float32 reference, vLLM's own experts by {own:.3g}"
    if error <= limit:
        return ""
    return f"it differs by {error:.3g} (relative L2, at most {limit:.3g}) from {against}"
