"""vLLM experts that hand each call to the backend of its token count, over one copy of the weights.

The shape is that of vLLM's `experts/fallback.py`, with any number of inner experts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch

from autotune.kernels.weights import LayerInputs
from autotune.vllm_plugin.inner_experts import Inner
from autotune.vllm_plugin.log import info_once
from autotune.vllm_plugin.own_experts import layer_oracle, tried_at
from autotune.vllm_plugin.route_ahead import compile_ahead
from autotune.vllm_plugin.route_plan import BASE, RoutePlan, Shapes
from autotune.vllm_plugin.route_probe import Prober
from autotune.vllm_plugin.route_reach import Entry

Quantize = Callable[[torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor | None]]
"""vLLM's own quantization of a layer's input, as its prepare step does it: input and quant_config."""


def router_class(modular: Any) -> type[Any]:
    """The class of routed experts over this vLLM's base class (`modular_kernel.FusedMoEExpertsModular`)."""
    cached = _classes.get(modular.FusedMoEExpertsModular)
    if cached is None:
        cached = _classes[modular.FusedMoEExpertsModular] = _make(modular.FusedMoEExpertsModular)
    return cached


_classes: dict[Any, type[Any]] = {}


@dataclass(slots=True)
class _Hot:
    """What every call reads. On the router itself, whose `__getattr__` slows each attribute, it costs more.

    Args:
        applies: of the inner experts, by index.
        quantizes: whether the input is still to be quantized for them.
        routes: whether calls are routed at all.
    """

    plan: RoutePlan
    applies: tuple[Callable[..., Any], ...]
    quantizes: tuple[bool, ...]
    tuner: Any
    routes: bool = True


def _make(parent: Any) -> type[Any]:
    class RouterExperts(parent):  # type: ignore[misc]
        """See the module. `inners[0]` is what vLLM chose; `inners[i]` serves the plan's index i.

        Args:
            plan: shared by all layers of the same shape.
            quantize: vLLM's quantization of the input, used where the layers' inputs arrive unquantized.
            tuner: FlashInfer's autotuner, if what vLLM chose is FlashInfer: its dummy batch must reach
                FlashInfer whatever the table says.
        """

        def __init__(self, plan: RoutePlan, inners: Sequence[Inner], quantize: Quantize, tuner: Any) -> None:
            self.base = inners[BASE].experts
            super().__init__(moe_config=self.base.moe_config, quant_config=self.base.quant_config)
            self.plan = plan
            self.inners = tuple(inners)
            self._quantize = quantize
            # Only if some experts read it unquantized is the input left so by vLLM's prepare step.
            self._defers = any(inner.raw_input for inner in inners)
            self._hot = _Hot(
                plan,
                tuple(inner.apply for inner in inners),
                tuple(self._defers and not inner.raw_input for inner in inners),
                tuner,
            )
            # Asked in every call: bound here, so that it takes no call more.
            self.moe_problem_size = self.base.moe_problem_size
            self.workspace_dtype = self.base.workspace_dtype
            self._reduce = self.base.finalize_weight_and_reduce_impl()

        # What vLLM asks of experts.

        _lora_context = None
        """vLLM asks for it in every call. Layers with LoRA are refused; `__getattr__` would take 1.5 us."""

        @staticmethod
        def activation_format() -> Any:
            return parent_format

        @property
        def expects_unquantized_inputs(self) -> bool:
            return self._defers

        @property
        def consumes_expert_mask(self) -> bool:
            return bool(getattr(self.base, "consumes_expert_mask", False))

        @property
        def post_gemm2_hook(self) -> Any:
            return getattr(self.base, "post_gemm2_hook", None)

        @post_gemm2_hook.setter
        def post_gemm2_hook(self, hook: Any) -> None:
            # A model that fuses its own reduction sets it after the kernel was built: vLLM's choice stays.
            self.base.post_gemm2_hook = hook
            self._hot.routes = hook is None

        def __getattr__(self, name: str) -> Any:
            if name == "base":
                raise AttributeError(name)
            return getattr(self.base, name)

        def finalize_weight_and_reduce_impl(self) -> Any:
            return self._reduce

        def process_weights_after_loading(self, layer: Any) -> None:
            self.base.process_weights_after_loading(layer)

        def workspace_shapes(
            self, M: int, N: int, K: int, topk: int, global_num_experts: int, local_num_experts: int,
            expert_tokens_meta: Any, activation: Any,
        ) -> Shapes:  # fmt: skip
            known = self._hot.plan.shapes.get(M)
            if (
                known is not None and expert_tokens_meta is None
                and known[0] == (N, K, topk, local_num_experts)
            ):  # fmt: skip
                return known[1]
            arguments = (
                M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
            )  # fmt: skip
            largest = self._largest(arguments)
            if expert_tokens_meta is None:
                self.plan.remember(M, (N, K, topk, local_num_experts), largest)
            return largest

        def _largest(self, arguments: tuple[Any, ...]) -> Shapes:
            first, second, output = self.base.workspace_shapes(*arguments)
            for index, inner in enumerate(self.inners[1:], 1):
                backend = self.plan.entries[index - 1].backend
                if inner.workspaces is None or backend in self.plan.removed:
                    continue
                try:
                    theirs = inner.workspaces(*arguments)
                except Exception as error:
                    self.plan.remove(backend, f"its workspaces: {type(error).__name__}: {error}")
                    continue
                if tuple(theirs[2]) != tuple(output):
                    self.plan.remove(backend, f"its output is {theirs[2]}, not {output}")
                    continue
                first, second = max(first, theirs[0], key=prod), max(second, theirs[1], key=prod)
            return first, second, output

        def apply(
            self, output: Any, hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any,
            activation: Any, global_num_experts: int, expert_map: Any, a1q_scale: Any, a2_scale: Any,
            workspace13: Any, workspace2: Any, expert_tokens_meta: Any, apply_router_weight_on_input: bool,
        ) -> Any:  # fmt: skip
            hot = self._hot
            plan, tuner = hot.plan, hot.tuner
            tokens = topk_ids.shape[0]
            index = BASE
            if hot.routes and (tuner is None or not tuner.is_tuning_mode):
                if tokens >= plan.next_first:
                    self._probe(
                        tokens, hidden_states, w1, w2, activation, global_num_experts, expert_map, a2_scale,
                        workspace13, workspace2, apply_router_weight_on_input,
                    )  # fmt: skip
                if tokens < plan.size:
                    index = plan.serving[tokens]
            hidden, scale = hidden_states, a1q_scale
            if index != BASE:
                if hot.quantizes[index]:
                    hidden, scale = self._quantize(hidden_states, self.quant_config)
                try:
                    result = hot.applies[index](
                        output, hidden, w1, w2, topk_weights, topk_ids, activation, global_num_experts,
                        expert_map, scale, a2_scale, workspace13, workspace2, expert_tokens_meta,
                        apply_router_weight_on_input,
                    )  # fmt: skip
                    calls = plan.calls
                    if calls is not None:
                        key = tokens, index
                        calls[key] = calls.get(key, 0) + 1
                    return result
                except Exception as error:
                    plan.remove(
                        plan.entries[index - 1].backend,
                        f"it failed at {tokens} tokens: {type(error).__name__}: {error}",
                    )
                    hidden, scale = hidden_states, a1q_scale
            calls = plan.calls
            if calls is not None:
                key = tokens, BASE
                calls[key] = calls.get(key, 0) + 1
            if hot.quantizes[BASE]:
                hidden, scale = self._quantize(hidden_states, self.quant_config)
            return hot.applies[BASE](
                output, hidden, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map,
                scale, a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input,
            )  # fmt: skip

        def _probe(
            self, tokens: int, hidden_states: Any, w1: Any, w2: Any, activation: Any,
            global_num_experts: int, expert_map: Any, a2_scale: Any, workspace13: Any, workspace2: Any,
            apply_router_weight_on_input: bool,
        ) -> None:  # fmt: skip
            """Try the routes that this call's workspaces have room for, on made inputs; not in a capture."""
            due = self.plan.due(tokens)
            if not due or (hidden_states.is_cuda and torch.cuda.is_current_stream_capturing()):
                return

            def runner(index: int) -> Callable[[LayerInputs, torch.Tensor], None]:
                def run(inputs: LayerInputs, output: torch.Tensor) -> None:
                    hidden: torch.Tensor = inputs.hidden
                    scale = None
                    if not self.inners[index].raw_input:
                        hidden, scale = self._quantize(hidden, self.quant_config)
                    self._hot.applies[index](
                        output, hidden, w1, w2, inputs.topk_weights, inputs.topk_ids, activation,
                        global_num_experts, expert_map, scale, a2_scale, workspace13, workspace2, None,
                        apply_router_weight_on_input,
                    )  # fmt: skip

                return run

            def counts(entry: Entry) -> list[int]:
                # vLLM's first call is its largest batch: what is larger than this one never comes.
                tried = tried_at(self.plan.problem, entry.candidate, entry.first, entry.last)
                return [count for count in tried if count <= tokens]

            self._compile_ahead(due, counts, w1, w2, hidden_states.is_cuda)
            try:
                # Activations enter as the model computes; what arrives here may be quantized already.
                dtype = self.base.moe_config.in_dtype
                prober = Prober(
                    self.plan.problem, runner(BASE), hidden_states.device, dtype,
                    layer_oracle(self.plan.problem, self.plan.base, self.base, w1, w2),
                )  # fmt: skip
                self.plan.prove(due, lambda index, count: prober.difference(count, runner(index)), counts)
            except Exception as error:
                # In the middle of a forward pass: a failure costs speed, never the server.
                for backend in self.plan.backends:
                    self.plan.remove(backend, f"it cannot be tried: {type(error).__name__}: {error}")

        def _compile_ahead(
            self, due: Sequence[int], counts: Callable[[Entry], Sequence[int]], w1: Any, w2: Any, on_gpu: bool
        ) -> None:
            """Compile what the probes of these routes would compile one after another; once for a plan."""
            limit_s, self.plan.ahead_s = self.plan.ahead_s, 0.0
            begun, self.plan.ahead = self.plan.ahead, None
            if not on_gpu or limit_s <= 0:
                return
            calls = [
                partial(lay_out, count, w1, w2)
                for index in due
                if (lay_out := self.inners[index].lay_out) is not None
                for count in counts(self.plan.entries[index - 1])
            ]
            try:
                # Nothing is left beside what is begun, but where the plan could not tell all of it then.
                compile_ahead(str(self.plan.problem), calls, limit_s, begun)
            except Exception as error:
                # The probes compile what is missing: a failure costs time only.
                info_once(f"our kernels are compiled one by one: {type(error).__name__}: {error}")

    parent_format = _standard_format(parent)
    for name in list(getattr(RouterExperts, "__abstractmethods__", ())):
        # What only vLLM's selection asks of a class, long before a router exists.
        setattr(RouterExperts, name, _asked_of_the_base(name))
    RouterExperts.__abstractmethods__ = frozenset()
    return RouterExperts


def _standard_format(parent: Any) -> Any:
    return sys.modules[parent.__module__].FusedMoEActivationFormat.Standard


def _asked_of_the_base(name: str) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.base, name)(*args, **kwargs)

    return forward
