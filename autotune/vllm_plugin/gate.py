"""A single token's layer from the gate on: two launches of ours for vLLM's gate, choice and experts.

At one token the gate's GEMM and the choice of the experts take half as long as `fused_decode` itself
(benchmarks/gate.py). Where the table gives one token to that kernel, it takes over both.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from autotune.vllm_plugin.features import DeclinedError, Feature
from autotune.vllm_plugin.inner_experts import FUSED_MOE
from autotune.vllm_plugin.log import info_once, warn_once
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.router_rules import RefusedError
from autotune.vllm_plugin.surface import require_attribute, require_function, require_source

_FORWARD = ("self", "hidden_states", "router_logits", "shared_experts_input", "input_ids")
_SEAT = "_autotune_gate"
"""In a runner's `__dict__`: its seat, or False once it is refused."""


class FusedGate(Feature):
    """Puts our gate and `fused_decode` in the place of a layer's whole forward pass of one token.

    `AUTOTUNE_GATE=0` leaves vLLM's gate and choice, as does everything that `refusal` names.
    """

    name = "gate"
    title = "a single token's gate together with its layer"
    module = f"{FUSED_MOE}.runner.moe_runner"

    def patches(self, module: ModuleType) -> Sequence[Patch]:
        runner = require_attribute(module, "MoERunner")
        require_function(runner, "_forward_impl", _FORWARD)
        require_source(
            runner, "_forward_impl",
            ("router_logits, _ = self.gate(hidden_states)", "hidden_states = self._apply_quant_method("),
        )  # fmt: skip
        require_source(
            runner, "_apply_quant_method",
            ("topk_weights, topk_ids = self.router.select_experts(", "self.routed_experts.forward_modular("),
        )  # fmt: skip
        require_attribute(runner, "do_naive_dispatch_combine")
        chooser = importlib.import_module(f"{FUSED_MOE}.router.fused_topk_router")
        require_source(
            require_attribute(chooser, "FusedTopKRouter"), "_compute_routing",
            ("gating_output=router_logits", "renormalize=self.renormalize", "scoring_func=self.scoring_func"),
        )  # fmt: skip
        if importlib.import_module("vllm.envs").VLLM_BATCH_INVARIANT:
            raise DeclinedError("VLLM_BATCH_INVARIANT asks for vLLM's own kernels")
        return [Patch(runner, "_forward_impl", self._forwarding)]

    def _forwarding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _forward_impl(
            runner: Any, hidden_states: Any, router_logits: Any, shared_experts_input: Any,
            input_ids: Any = None,
        ) -> Any:  # fmt: skip
            seat = runner.__dict__.get(_SEAT)
            if seat and hidden_states.shape[0] == 1:
                if not seat.is_current():
                    seat = runner.__dict__[_SEAT] = None
                elif seat.serves():
                    output = seat.run(hidden_states)
                    if output is not None:
                        return output
            result = original(runner, hidden_states, router_logits, shared_experts_input, input_ids)
            if seat is None:
                self._look(runner, original, hidden_states.is_cuda)
            return result

        return _forward_impl

    def _look(self, runner: Any, original: Callable[..., Any], on_gpu: bool) -> None:
        """After a layer's call: give it its seat, or say why not. Nothing is tried in a capture."""
        from autotune.vllm_plugin.gate_seat import capturing, take

        if on_gpu and capturing():
            return
        try:
            seat = take(runner, original)
            if seat is not None:
                runner.__dict__[_SEAT] = seat
                info_once(f"{seat}: a single token's gate, choice and layer are two launches")
        except RefusedError as refused:
            runner.__dict__[_SEAT] = False
            info_once(f"a single token's gate stays vLLM's: {refused}")
        except Exception as error:
            # In the middle of a forward pass: a failure costs speed, never the server.
            runner.__dict__[_SEAT] = False
            warn_once(f"a single token's gate stays vLLM's: {type(error).__name__}: {error}")
