"""Routing inside a running vLLM: each call of a MoE layer goes to the backend of its token count."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from autotune.kernels.specs import fits
from autotune.vllm_plugin.deployment import Layer
from autotune.vllm_plugin.features import Context, DeclinedError, Feature
from autotune.vllm_plugin.inner_experts import FUSED_MOE, Inner, UnavailableError, base_backend, build
from autotune.vllm_plugin.inner_experts import Layer as InnerLayer
from autotune.vllm_plugin.ledger import Ledger
from autotune.vllm_plugin.log import first_time, info_once, warn_once
from autotune.vllm_plugin.observation import Observation
from autotune.vllm_plugin.own_experts import takes_up_first
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.route_ahead import begin_plan
from autotune.vllm_plugin.route_plan import RoutePlan
from autotune.vllm_plugin.route_reach import Declined, Outlook, outlook, row_order
from autotune.vllm_plugin.router_rules import RefusedError, kernel_refusal, scheme_of, would_do
from autotune.vllm_plugin.static_backend import current_checkpoint
from autotune.vllm_plugin.static_choice import explicit_choice
from autotune.vllm_plugin.surface import require_attribute, require_function, require_source
from autotune.vocabulary.candidate import BackendName
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import Miss, RoutingTable

_INIT = ("self", "prepare_finalize", "fused_experts")
APPLY = (
    "self", "output", "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation",
    "global_num_experts", "expert_map", "a1q_scale", "a2_scale", "workspace13", "workspace2",
    "expert_tokens_meta", "apply_router_weight_on_input",
)  # fmt: skip
"""Parameters of vLLM's `FusedMoEExpertsModular.apply`, in 0.25.1 to 0.33.0."""
WORKSPACES = (
    "self", "M", "N", "K", "topk", "global_num_experts", "local_num_experts", "expert_tokens_meta",
    "activation",
)  # fmt: skip
"""Parameters of its `workspace_shapes`."""


class Router(Feature):
    """Puts a router in the place of the experts with which vLLM builds a layer's kernel."""

    name = "router"
    title = "routing per call"
    module = f"{FUSED_MOE}.modular_kernel"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.plans: dict[tuple[Problem, BackendName, str], RoutePlan] = {}
        """By problem, base backend and table digest; shared by the layers of a shape."""
        self.observation = Observation()
        self.ledger = Ledger("observe" if context.observe else "route")

    def patches(self, module: ModuleType) -> list[Patch]:
        kernel = require_attribute(module, "FusedMoEKernel")
        require_function(kernel, "__init__", _INIT)
        experts = require_attribute(module, "FusedMoEExpertsModular")
        require_function(experts, "apply", APPLY)
        require_function(experts, "workspace_shapes", WORKSPACES)
        require_function(experts, "moe_problem_size", ("self", "a1", "w1", "w2", "topk_ids"))
        require_function(experts, "workspace_dtype", ("self", "act_dtype"))
        require_attribute(experts, "finalize_weight_and_reduce_impl")
        impl = require_attribute(module, "FusedMoEKernelModularImpl")
        require_source(impl, "_prepare", ("defer_input_quant=self.fused_experts.expects_unquantized_inputs",))
        require_source(impl, "_fused_experts", ("self.fused_experts.apply(",))
        if require_attribute(require_attribute(module, "envs"), "VLLM_BATCH_INVARIANT"):
            raise DeclinedError("VLLM_BATCH_INVARIANT asks for one kernel at all token counts")
        explicit = explicit_choice()
        if explicit:
            raise DeclinedError(f"{explicit} is set")
        return [Patch(kernel, "__init__", lambda original: self._building(module, original))]

    def refusal(self, layer: Layer) -> str:
        """Why a layer's calls are not routed, as far as its configuration tells; empty if they may be."""
        if self.state == "disabled":
            return self.reason
        if layer.config.moe_backend != "auto":
            return f"moe_backend is {layer.config.moe_backend}, as set"
        return layer.refusal()

    def _building(self, module: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(kernel: Any, prepare_finalize: Any, fused_experts: Any) -> None:
            try:
                fused_experts = self._routed(module, prepare_finalize, fused_experts)
            except RefusedError as refused:
                problem = self._problem(fused_experts)
                if problem is None or first_time(problem, str(refused)):
                    info_once(f"no routing per call for {self._label(fused_experts)}: {refused}")
                self._note_refusal(fused_experts, str(refused), refused.miss)
            except Exception as error:
                # While vLLM loads the model: a failure costs speed, never the server.
                warn_once(f"no routing per call: {type(error).__name__}: {error}")
                self._note_refusal(fused_experts, f"{type(error).__name__}: {error}")
            original(kernel, prepare_finalize, fused_experts)

        return __init__

    def _problem(self, experts: Any) -> Problem | None:
        try:
            return self.context.deployment.layer(experts.moe_config).problem()
        except Exception:
            return None  # only for the log; the reason beside it says more

    def _label(self, experts: Any) -> str:
        return f"{self._problem(experts) or 'a layer'} on {type(experts).__name__}"

    def _note_refusal(self, experts: Any, reason: str, miss: Miss | None = None) -> None:
        try:
            problem = self.context.deployment.layer(experts.moe_config).problem()
            base = base_backend(experts)
        except Exception:
            problem = base = None  # counted as a layer without a name
        self.ledger.refused(str(problem or type(experts).__name__), base or "", reason, miss)

    def _routed(self, module: Any, prepare_finalize: Any, experts: Any) -> Any:
        reason = kernel_refusal(module, prepare_finalize, experts)
        layer = self.context.deployment.layer(experts.moe_config)
        if self.context.observe:
            self._observe(experts, layer, reason)
            return experts
        if reason:
            raise RefusedError(reason)
        base = base_backend(experts)
        if base is None:
            raise RefusedError(f"no other backend is known to read the weights of {type(experts).__name__}")
        table = self._table(layer, experts)
        inner_layer = InnerLayer(table.problem, experts, row_order(base, table.problem))
        return self._wrap(module, inner_layer, base, table)

    def _table(self, layer: Layer, experts: Any) -> RoutingTable:
        scheme = scheme_of(experts)
        if scheme is None:
            raise RefusedError("the quantization is not one that is measured")
        if layer.scheme_known and layer.scheme is not scheme:
            raise RefusedError(f"vLLM chose for {layer.scheme} and runs {scheme.value}")
        if not layer.scheme_known:
            self.context.deployment.learn(layer.config, scheme)
        refusal = self.refusal(layer)
        problem = layer.problem()
        if refusal or problem is None:
            raise RefusedError(refusal or "its shape is not known")
        selection = self.context.client.select(problem, current_checkpoint(scheme))
        if selection.table is None:
            raise RefusedError(selection.detail, selection.miss)
        return selection.table

    def _wrap(self, module: Any, layer: InnerLayer, base: BackendName, table: RoutingTable) -> Any:
        from autotune.vllm_plugin.routed_experts import router_class

        key = (table.problem, base, table.digest)
        made: dict[BackendName, Any] = {}
        environment = self.context.client.environment or table.environment
        plan = self.plans.get(key)
        new = plan is None
        if plan is None:
            plan = self.plans[key] = self._plan(
                layer, outlook(table, base, takes_up_first), made, environment
            )
            plan.ahead_s = self.context.client.settings.warmup_s
            self._note_plan(table, plan)
        if not plan.entries:
            left = "; ".join(str(declined) for declined in plan.declined)
            raise RefusedError(left or f"the table's winners all run on {base}, which vLLM chose")
        inners = [
            Inner(
                layer.base.apply, bool(layer.base.expects_unquantized_inputs),
                layer.base.workspace_shapes, layer.base,
            ),
            *(build(layer, entry, made) for entry in plan.entries),
        ]  # fmt: skip
        if new:
            plan.ahead = begin_plan(plan, inners, self.context.client.settings.gate)
        return router_class(module)(plan, inners, _quantization(), _tuner(base))

    def _plan(
        self, layer: InnerLayer, found: Outlook, made: dict[BackendName, Any], environment: Environment
    ) -> RoutePlan:
        kept, declined = [], list(found.declined)
        for entry in found.entries:
            fit = fits(entry.candidate, layer.problem, environment)
            if not fit.ok:
                declined.append(Declined(entry.first, entry.last, entry.candidate, fit.reason))
                continue
            try:
                build(layer, entry, made)
                kept.append(entry)
            except UnavailableError as error:
                declined.append(Declined(entry.first, entry.last, entry.candidate, str(error)))
        for left in declined:
            info_once(f"{layer.problem}: M in {left}; {found.base} serves it")
        return RoutePlan(layer.problem, Outlook(found.base, tuple(kept), tuple(declined)))

    def _note_plan(self, table: RoutingTable, plan: RoutePlan) -> None:
        selection = self.context.client.select(table.problem, current_checkpoint(table.problem.scheme))
        revision = selection.published.revision if selection.published else None
        self.ledger.routed(table, plan, revision)

    def _observe(self, experts: Any, layer: Layer, reason: str) -> None:
        scheme = scheme_of(experts)
        if scheme is not None and not layer.scheme_known:
            self.context.deployment.learn(layer.config, scheme)
        problem, base = layer.problem(), base_backend(experts)
        reason = reason or self.refusal(layer) or ("" if problem else "its shape is not known")
        if reason or problem is None or scheme is None:
            self.observation.watch(experts, self._label(experts), lambda tokens: f"not routed: {reason}")
            self._note_refusal(experts, reason)
            return
        checkpoint, client = current_checkpoint(scheme), self.context.client
        selection = client.select(problem, checkpoint)
        if selection.table is None or base is None:
            detail = selection.detail or "vLLM's choice shares its weights with no other backend"
            self._note_refusal(experts, detail, selection.miss)
        else:
            plan = RoutePlan(problem, outlook(selection.table, base, takes_up_first))
            self._note_plan(selection.table, plan)
        self.observation.watch(
            experts,
            str(problem),
            lambda tokens: would_do(client.route(problem, tokens, checkpoint=checkpoint), base),
        )


def _quantization() -> Any:
    """vLLM's own quantization of a layer's input."""
    module = importlib.import_module(f"{FUSED_MOE}.prepare_finalize.no_dp_ep")
    return require_function(module, "_quantize_input", ("a1", "quant_config", "defer_input_quant"))


def _tuner(base: BackendName) -> Any:
    """FlashInfer's autotuner where FlashInfer is what vLLM chose.

    Raises:
        RefusedError: if it cannot be seen when FlashInfer tunes: the router could keep it from being tuned.
    """
    if base != "flashinfer_cutlass":
        return None
    try:
        instance = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
        _ = instance.is_tuning_mode
    except (ImportError, AttributeError) as error:
        raise RefusedError(f"FlashInfer's autotuner cannot be watched: {error}") from error
    return instance
