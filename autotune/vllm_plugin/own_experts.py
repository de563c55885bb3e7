"""Our own kernels as vLLM calls its experts."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune.kernels.layouts import Layout, layouts
from autotune.vllm_plugin.route_reach import RowOrder, row_order
from autotune.vocabulary.candidate import BackendName, Candidate
from autotune.vocabulary.problem import Problem, Scheme

_PLANS: dict[BackendName, str] = {
    "fused_triton": "autotune.kernels.fused_triton.op",
    "fused_decode": "autotune.kernels.fused_decode.op",
}


def kernel_plan(backend: BackendName) -> Any:
    """The function that lays out a kernel's launches.

    Raises:
        ImportError: without torch or Triton.
    """
    return importlib.import_module(_PLANS[backend]).plan


def gate_plan() -> Any:
    """The function that lays out a single token's layer from the gate on.

    Raises:
        ImportError: without torch or Triton.
    """
    return importlib.import_module(_PLANS["fused_decode"]).plan_from_gate


def tried_at(problem: Problem, candidate: Candidate, first: int, last: int) -> tuple[int, ...]:
    """The token counts at which a route is tried: its first, and the first of each further Triton variant.

    So whatever the route launches later has been compiled, and held against vLLM, before it serves.
    vLLM's Triton kernel is warmed up elsewhere (`warmup.py`).

    Raises:
        ImportError: for a kernel of ours without torch or Triton.
    """
    form = _form(problem, candidate.backend)
    starts: dict[Any, int] = {}
    for tokens in range(first, last + 1):
        starts.setdefault(form(tokens), tokens)
    return tuple(starts.values())


def _form(problem: Problem, backend: BackendName) -> Callable[[int], Any]:
    if backend in _PLANS:
        return partial(importlib.import_module(_PLANS[backend]).form, problem)
    if backend == "deep_gemm":
        # vLLM's Triton kernels around it take the count as an integer that Triton specializes.
        return lambda tokens: (tokens == 1, tokens % 16 == 0)
    return lambda tokens: None


def takes_up_first(backend: BackendName) -> bool:
    """Whether a kernel of ours can read up rows before gate rows."""
    return backend in layouts(Scheme.FP8_TENSOR)["w31"]


_prepared: dict[tuple[Problem, str, RowOrder], dict[tuple[int, int], Any]] = {}
"""Launches laid out for all layers alike (kernels/prepared.py), by kernel, then token count and device."""


@dataclass
class OwnKernel:
    """One candidate of ours on one layer; reads the input unquantized and allocates what it needs itself.

    Args:
        experts: vLLM's own experts of the layer, for the scales.
        order: of the first weight's rows.
    """

    problem: Problem
    candidate: Candidate
    experts: Any
    order: RowOrder

    def __post_init__(self) -> None:
        self._plan = kernel_plan(self.candidate.backend)
        self._weights: Any = None
        # `fused_decode` is one launch, and its counters belong to a stream: nothing to gain, more to hold.
        shared = (self.problem, self.candidate.digest, self.order)
        self._prepared = (
            _prepared.setdefault(shared, {}) if self.candidate.backend == "fused_triton" else None
        )

    def apply(
        self, output: Any, hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any,
        activation: Any, global_num_experts: int, expert_map: Any, a1q_scale: Any, a2_scale: Any,
        workspace13: Any, workspace2: Any, expert_tokens_meta: Any, apply_router_weight_on_input: bool,
    ) -> None:  # fmt: skip
        """Run the layer into `output`, `[M, K]` in bfloat16, with the router's weights applied and summed.

        Raises:
            ValueError: for what the kernels do not take.
        """
        import torch

        from autotune.kernels.prepared import MOST, prepare
        from autotune.kernels.weights import LayerInputs

        if expert_map is not None:
            raise ValueError("an expert map, which it is not given")
        if apply_router_weight_on_input:
            raise ValueError("the router's weights on the input, which it applies to the output")
        if hidden_states.dtype is not torch.bfloat16 or a1q_scale is not None:
            raise ValueError(f"input in {hidden_states.dtype}; it takes bfloat16 and quantizes by itself")
        if output.dtype is not torch.bfloat16 or not output.is_contiguous():
            raise ValueError(
                f"output in {output.dtype}, or not contiguous; it writes bfloat16, row after row"
            )
        if topk_ids.shape[1] != self.problem.topk:
            raise ValueError(f"{topk_ids.shape[1]} experts a token, not {self.problem.topk}")
        if topk_ids.dtype is not torch.int32:
            topk_ids = topk_ids.to(torch.int32)
        if topk_weights.dtype is not torch.float32:
            topk_weights = topk_weights.to(torch.float32)
        weights = self._of(w1, w2)
        # The kernels read row after row; what is so already is not copied.
        inputs = LayerInputs(hidden_states.contiguous(), topk_ids.contiguous(), topk_weights.contiguous())
        known = self._prepared
        if known is None:
            for launch in self._plan(weights, inputs, self.candidate, output):
                launch.run()
            return
        key = topk_ids.shape[0], topk_ids.get_device()
        ready = known.get(key)
        if ready is not None and ready.run(weights, inputs, output):
            return
        launches = self._plan(weights, inputs, self.candidate, output)
        runners = [launch.run() for launch in launches]
        if ready is None and key not in known and all(runners):
            if len(known) >= MOST:
                known.clear()
            known[key] = prepare(launches, runners, weights, inputs, output)

    def apply_from_gate(
        self, output: Any, hidden: Any, w1: Any, w2: Any, gate: Any, renormalize: bool
    ) -> None:
        """A single token's layer with the gate in front of it (`fused_decode` only).

        Args:
            output, hidden: `[1, K]` bfloat16.
            gate: `[E, K]` bfloat16.
            renormalize: whether the weights of a token's experts add up to one.

        Raises:
            ValueError: for what the kernels do not take.
        """
        for launch in self._from_gate(self._of(w1, w2), gate, renormalize, hidden, output):
            launch.run()

    def lay_out_from_gate(self, w1: Any, w2: Any) -> Any:
        """The launches of `apply_from_gate`, for compiling only; `renormalize` makes no other kernel of them.

        Raises:
            ValueError: for weights that the kernels do not read.
        """
        import torch

        from autotune.kernels.backends.fused import unfilled

        _, inputs = unfilled(self.problem, 1)
        gate = torch.empty(self.problem.E, self.problem.K, dtype=torch.bfloat16, device="cpu")
        return self._from_gate(self._read(w1, w2), gate, True, inputs.hidden, inputs.hidden)

    def _from_gate(self, weights: Any, gate: Any, renormalize: bool, hidden: Any, output: Any) -> Any:
        from autotune.kernels.fused_decode.op import Gate

        return gate_plan()(weights, Gate(gate, renormalize), hidden, self.candidate, output)

    def lay_out(self, tokens: int, w1: Any, w2: Any) -> Any:
        """The launches of a call of so many tokens, for compiling only: no memory of the GPU is taken.

        Raises:
            ValueError: for weights that the kernels do not read.
        """
        from autotune.kernels.backends.fused import unfilled

        _, inputs = unfilled(self.problem, tokens)
        return self._plan(self._read(w1, w2), inputs, self.candidate, inputs.hidden)

    def _of(self, w1: Any, w2: Any) -> Any:
        weights = self._weights
        if weights is None or weights.w13 is not w1 or weights.w2 is not w2:
            weights = self._read(w1, w2)
        return weights

    def _read(self, w1: Any, w2: Any) -> Any:
        self._weights = layer_weights(self.problem, self.experts, w1, w2, self.order)
        return self._weights


def layer_weights(problem: Problem, experts: Any, w1: Any, w2: Any, order: RowOrder = "gate_up") -> Any:
    """A vLLM layer's tensors in our kernels' terms; nothing is copied.

    Raises:
        ValueError: if vLLM holds them in other shapes than the kernels read.
    """
    import torch

    from autotune.kernels.weights import MoeWeights

    expected = ((problem.E, problem.gate_up_rows, problem.K), (problem.E, problem.K, problem.N))
    if (tuple(w1.shape), tuple(w2.shape)) != expected:
        raise ValueError(f"weights of {tuple(w1.shape)} and {tuple(w2.shape)}, not {expected}")
    if not (w1.is_contiguous() and w2.is_contiguous()):
        raise ValueError("weights that are not contiguous")
    kept = torch.float8_e4m3fn if problem.scheme.is_fp8 else torch.bfloat16
    if (w1.dtype, w2.dtype) != (kept, kept):
        raise ValueError(f"weights in {w1.dtype} and {w2.dtype}, not {kept}")
    layout: Layout = "w31" if order == "up_gate" else "w13"
    if not problem.scheme.is_fp8:
        return MoeWeights(problem, w1, w2, layout=layout)

    def scale(found: Any, rows: int, columns: int) -> Any:
        shape: tuple[int, ...] = {
            Scheme.FP8_TENSOR: (problem.E,),
            Scheme.FP8_CHANNEL: (problem.E, rows, 1),
            Scheme.FP8_BLOCK128: (problem.E, rows // 128, columns // 128),
        }[problem.scheme]
        if found is None or found.numel() != _product(shape) or not found.is_contiguous():
            raise ValueError(f"weight scales of {None if found is None else tuple(found.shape)}, not {shape}")
        if found.dtype is not torch.float32:
            raise ValueError(f"weight scales in {found.dtype}, not float32")
        return found.view(shape)

    static = problem.scheme is Scheme.FP8_TENSOR
    return MoeWeights(
        problem,
        w1,
        w2,
        scale(experts.w1_scale, problem.gate_up_rows, problem.K),
        scale(experts.w2_scale, problem.K, problem.N),
        _scalar(experts.a1_scale) if static else None,
        _scalar(experts.a2_scale) if static else None,
        layout=layout,
    )


def _scalar(scale: Any) -> Any:
    import torch

    if scale is None or scale.numel() != 1 or scale.dtype is not torch.float32:
        raise ValueError("static activation scales that are not one float32 number a layer")
    return scale.reshape(())


def layer_oracle(problem: Problem, base: BackendName, experts: Any, w1: Any, w2: Any) -> Any:
    """The layer in float32 as a function of its inputs; None where its tensors cannot be read so.

    Args:
        base: whose layout the tensors are in.
    """
    from autotune.kernels.reference import reference_moe

    try:
        weights = layer_weights(problem, experts, w1, w2, row_order(base, problem))
    except (ValueError, AttributeError, TypeError):
        return None
    return lambda inputs: reference_moe(weights, inputs)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
