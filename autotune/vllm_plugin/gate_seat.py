"""The seat of our gate in one layer of vLLM: whether it may have one, its probe, and its launches."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from autotune.vllm_plugin.inner_experts import FUSED_MOE
from autotune.vllm_plugin.log import warn_once
from autotune.vllm_plugin.own_experts import OwnKernel
from autotune.vllm_plugin.route_plan import RoutePlan
from autotune.vllm_plugin.route_probe import SEED, compare
from autotune.vllm_plugin.router_rules import RefusedError

PROBES = 4
"""Made tokens that both ways must agree on."""
DRAWN = 64
APART = 2.0**-6
"""By how much, relative to them, the last expert chosen and the first one left out must differ in their
logits for a made token to count: four units of bfloat16, so that rounding cannot swap them."""


class Seat:
    """One layer whose single tokens our launches serve.

    Args:
        routed: the experts of the layer's kernel.
        index: of their plan's route at one token.
        kernel: what serves it.
    """

    def __init__(self, runner: Any, routed: Any, index: int, kernel: OwnKernel) -> None:
        self._runner, self._routed, self._index, self._kernel = runner, routed, index, kernel
        self.plan: RoutePlan = routed.plan
        self._hot = routed._hot

    def __str__(self) -> str:
        return str(self.plan.problem)

    def is_current(self) -> bool:
        """Whether the layer's kernel is still the one: vLLM builds another when weights are loaded again."""
        return _routed(self._runner) is self._routed

    def serves(self) -> bool:
        """Whether the route is still in, and nobody needs vLLM's own way: a tuner, who sees the choice."""
        plan, hot, router = self.plan, self._hot, self._runner.router
        return (
            plan.serving[1] == self._index
            and not plan.gate_wrong
            and hot.routes
            and (hot.tuner is None or not hot.tuner.is_tuning_mode)
            and router.capture_fn is None
            and getattr(router, "_routing_replay_out", None) is None
        )

    def run(self, hidden: Any) -> Any:
        """The layer's output `[1, K]`; None where it failed, which is the last time that it is tried."""
        plan = self.plan
        try:
            output = self.launch(hidden)
        except Exception as error:
            plan.gate_wrong = f"{type(error).__name__}: {error}"
            warn_once(f"a single token's gate goes back to vLLM: {plan.gate_wrong}")
            return None
        if plan.calls is not None:
            key = 1, self._index
            plan.calls[key] = plan.calls.get(key, 0) + 1
        return output

    def launch(self, hidden: Any) -> Any:
        """Run both launches.

        Raises:
            Exception: whatever they raise.
        """
        runner = self._runner
        experts = runner.routed_experts
        output = torch.empty_like(hidden, memory_format=torch.contiguous_format)
        # Plain: of vLLM's class of parameter each attribute takes 4 us to read, and Launch would look it up
        # the slow way.
        gate = runner.gate.weight.data
        self._kernel.apply_from_gate(
            output, hidden.contiguous(), experts.w13_weight, experts.w2_weight, gate,
            runner.router.renormalize,
        )  # fmt: skip
        return output


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_current_stream_capturing()


def take(runner: Any, original: Callable[..., Any]) -> Seat | None:
    """The seat of a layer, tried against vLLM's way once a shape; None while its route is still to be proved.

    Args:
        original: vLLM's forward pass of a layer.

    Raises:
        RefusedError: if its gate stays vLLM's.
        Exception: whatever this vLLM raises where it differs.
    """
    plan = _plan(runner)
    if plan.due(1):
        return None
    seat = _seat(runner, plan)
    if plan.gate_wrong is None:
        try:
            with _nobodys_tokens(runner):
                plan.gate_wrong = _wrong(runner, seat, original)
        except Exception as error:
            plan.gate_wrong = f"{type(error).__name__}: {error}"
    if plan.gate_wrong:
        raise RefusedError(f"{plan.problem}: its probe failed: {plan.gate_wrong}")
    seat.serves()  # what it reads in each call: if this vLLM has not got it, better here than there
    return seat


def _routed(runner: Any) -> Any:
    """The experts of a layer's kernel as it is now."""
    experts = getattr(runner, "routed_experts", None)
    kernel = getattr(getattr(experts, "quant_method", None), "moe_kernel", None)
    return getattr(getattr(kernel, "impl", None), "fused_experts", None)


@contextlib.contextmanager
def _nobodys_tokens(runner: Any) -> Iterator[None]:
    """Made tokens in the middle of a forward pass: none is padding, and whoever records choices sees none.

    vLLM chooses no experts for padding (from 0.28 on, and before if it is set). With the V2 runner, before
    0.30, all runs until graphs have been captured are padding: a layer that waited for another run would
    have its seat in no graph.
    """
    context = importlib.import_module("vllm.forward_context").get_forward_context()
    silenced = [
        (holder, name, getattr(holder, name))
        for holder, name in (
            (context, "is_padding"), (runner.router, "capture_fn"), (runner.router, "_routing_replay_out")
        )
        if getattr(holder, name, None) is not None
    ]  # fmt: skip
    try:
        for holder, name, _ in silenced:
            setattr(holder, name, None)
        yield
    finally:
        for holder, name, value in silenced:
            setattr(holder, name, value)


def _plan(runner: Any) -> RoutePlan:
    plan = getattr(_routed(runner), "plan", None)
    if not isinstance(plan, RoutePlan):
        raise RefusedError("the layer is not routed per call")
    return plan


def _seat(runner: Any, plan: RoutePlan) -> Seat:
    reason = refusal(runner, plan)
    if reason:
        raise RefusedError(f"{plan.problem}: {reason}")
    index = plan.chosen(1)
    routed = _routed(runner)
    kernel = routed.inners[index].own
    if index == 0 or kernel is None or kernel.candidate.backend != "fused_decode":
        raise RefusedError(f"{plan.problem}: one token is not served by fused_decode")
    return Seat(runner, routed, index, kernel)


def refusal(runner: Any, plan: RoutePlan) -> str:
    """Why a layer's gate is not taken over, by how vLLM set the layer up; empty if it may be.

    Raises:
        AttributeError: if this vLLM sets it up otherwise.
    """
    chooser = importlib.import_module(f"{FUSED_MOE}.router.fused_topk_router").FusedTopKRouter
    gate, router, experts, config = runner.gate, runner.router, runner.routed_experts, runner.moe_config
    problem = plan.problem
    own = _overridden(runner, experts)
    if own:
        return own
    if gate is None:
        return "vLLM calls its gate outside of the layer"
    if not _is_plain(gate):
        return f"its gate is {type(gate).__name__} with {type(getattr(gate, 'quant_method', None)).__name__}"
    if gate.bias is not None or gate._forward_hooks or gate._forward_pre_hooks:
        return "its gate has a bias or hooks"
    if (tuple(gate.weight.shape), gate.weight.dtype) != ((problem.E, problem.K), torch.bfloat16):
        return f"its gate is {tuple(gate.weight.shape)} in {gate.weight.dtype}"
    if type(router) is not chooser or router.scoring_func != "softmax" or router.top_k != problem.topk:
        scores = getattr(router, "scoring_func", "no")
        return f"its experts are chosen by {type(router).__name__} ({scores} scores)"
    if router.eplb_state is not None:
        return "experts are balanced while serving (EPLB)"
    if runner.shared_experts is not None or runner._fse_fuse_gate:
        return "it has shared experts"
    if config.tp_size * config.dp_size * config.ep_size * config.pcp_size > 1 or config.is_sequence_parallel:
        return "several ranks must choose alike, and each tries its kernels by itself"
    if runner.enable_dbo or runner.do_naive_dispatch_combine:
        return "batches are split or sent to other ranks"
    if experts.expert_map is not None or experts.global_num_experts != problem.E:
        return "not all experts are here"
    if experts.apply_router_weight_on_input:
        return "the router's weights go onto the input"
    return ""


def _overridden(runner: Any, experts: Any) -> str:
    """What a model does in its own way between the gate and the layer's kernel; empty if nothing.

    The probe would not tell: it is one for all layers of a shape.
    """
    runners = importlib.import_module(f"{FUSED_MOE}.runner.moe_runner").MoERunner
    modular = importlib.import_module(f"{FUSED_MOE}.routed_experts").RoutedExperts.forward_modular
    if type(runner) is not runners:
        return f"its runner is {type(runner).__name__}"
    if type(experts).forward_modular is not modular:
        return f"its experts are {type(experts).__name__}"
    return ""


def _is_plain(gate: Any) -> bool:
    """Whether a gate's logits are one unquantized product in the weight's own type."""
    linear = importlib.import_module("vllm.model_executor.layers.linear")
    gates = importlib.import_module(f"{FUSED_MOE}.router.gate_linear")
    if type(gate) is gates.GateLinear:
        # Qwen3's in 0.33. Logits in a type of their own are rounded otherwise, as are a special kernel's.
        special = getattr(gate, "allow_dsv3_router_gemm", False)
        if special or gate.out_dtype not in (None, gate.weight.dtype):
            return False
    elif type(gate) is not linear.ReplicatedLinear:
        return False
    return type(gate.quant_method) is linear.UnquantizedLinearMethod


def _wrong(runner: Any, seat: Seat, original: Callable[..., Any]) -> str:
    """What is wrong with a seat on made tokens, against vLLM's way; empty if nothing is."""
    gate, problem = runner.gate.weight, seat.plan.problem
    generator = torch.Generator(device=gate.device).manual_seed(SEED)
    drawn = torch.randn(DRAWN, problem.K, generator=generator, device=gate.device).to(torch.bfloat16)
    ordered = runner.gate(drawn)[0].float().sort(dim=1, descending=True).values
    apart = torch.ones(DRAWN, dtype=torch.bool, device=gate.device)
    if problem.topk < problem.E:
        last, left = ordered[:, problem.topk - 1], ordered[:, problem.topk]
        apart = last - left > APART * torch.maximum(last.abs(), left.abs())
    rows = drawn[apart][:PROBES]
    if rows.shape[0] < PROBES:
        return "made tokens do not tell which experts its gate prefers"
    for number in range(PROBES):
        row = rows[number : number + 1]
        expected = original(runner, row.clone(), row, None, None)
        wrong = compare(seat.launch(row), expected, problem.scheme)
        if wrong:
            return wrong
    return ""
