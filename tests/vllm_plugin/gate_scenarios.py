"""Our gate in a process with vLLM's real source: its runner, router, gate and kernels, on a CPU.

Run by `inside.py`, each in a fork of its own; see `scenarios.py`.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cpu_kernels
import torch
from router_scenarios import SMALL, Setup, own_kernels
from scenarios import features, module, moe_config, register

from autotune.kernels.reference import reference_moe, relative_l2
from autotune.kernels.weights import LayerInputs

chose: list[list[int]] = []
"""What vLLM's own choice of experts came to, call by call."""


class Experts(torch.nn.Module):
    """What vLLM's runner asks of a layer's experts, over a real kernel."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.w13_weight = torch.nn.Parameter(setup.w1, requires_grad=False)
        self.w2_weight = torch.nn.Parameter(setup.weights.w2, requires_grad=False)
        self.expert_map, self.global_num_experts = None, setup.weights.problem.E
        self.apply_router_weight_on_input = False
        self.quant_method = SimpleNamespace(
            moe_kernel=setup.kernel(), is_monolithic=False, topk_indices_dtype=None,
            mk_can_overlap_shared_experts=False, apply=self.apply_kernel,
        )  # fmt: skip

    def _ensure_moe_quant_config_init(self) -> None:
        pass

    def forward_modular(self, *args: Any, **named: Any) -> Any:
        raise AssertionError("vLLM's own is put here")

    def apply_kernel(self, layer: Any, x: Any, topk_weights: Any, topk_ids: Any, **_: Any) -> Any:
        return self.quant_method.moe_kernel.apply(
            x, self.w13_weight, self.w2_weight, topk_weights, topk_ids,
            module("activation").MoEActivation.SILU, self.global_num_experts, None, False,
        )  # fmt: skip


def choosing_on_cpu() -> None:
    """vLLM's compiled choice of experts."""

    def choose(weights: Any, ids: Any, scores: Any, renormalize: bool) -> None:
        best, which = scores.topk(ids.shape[1], dim=1)
        weights.copy_(best / best.sum(1, keepdim=True) if renormalize else best)
        ids.copy_(which)
        chose.append(which.flatten().tolist())

    def topk_softmax(
        w: Any, ids: Any, indices: Any, logits: Any, renormalize: bool, *_: Any, is_padding: Any = None
    ) -> None:
        choose(w, ids, torch.softmax(logits.float(), 1), renormalize)
        if is_padding is not None:
            w[is_padding] = 0
            ids[is_padding] = -1

    def topk_sigmoid(
        w: Any, ids: Any, indices: Any, logits: Any, renormalize: bool, *_: Any, **__: Any
    ) -> None:
        choose(w, ids, torch.sigmoid(logits.float()), renormalize)

    ops = importlib.import_module("vllm._custom_ops")
    ops.topk_softmax, ops.topk_sigmoid = topk_softmax, topk_sigmoid


plain: set[bool] = set()
"""Whether our launches got the gate as a tensor of no class of vLLM's."""


def from_gate(seen: list[float], wrong: list[float]) -> None:
    """Put the reference in the place of our launches from the gate on."""
    from autotune.vllm_plugin import own_experts

    def plan(w: Any, gate: Any, hidden: Any, candidate: Any, out: Any) -> list[Any]:
        plain.add(type(gate.weight) is torch.Tensor)

        def run() -> None:
            logits = torch.nn.functional.linear(hidden, gate.weight).float()
            best, ids = torch.softmax(logits, 1).topk(w.problem.topk, dim=1)
            weights = best / best.sum(1, keepdim=True) if gate.renormalize else best
            inputs = LayerInputs(hidden, ids.to(torch.int32), weights)
            (launch,) = own_experts.kernel_plan("fused_decode")(w, inputs, candidate, out)
            launch.run()
            cpu_kernels.ran[-1] = "gate"
            if wrong:
                if wrong[0] != wrong[0]:
                    raise RuntimeError("misaligned address")
                out.mul_(wrong[0])
            seen.append(float(gate.renormalize))

        return [SimpleNamespace(run=run)]

    own_experts.gate_plan = lambda: plan


def on_cpu() -> Any:
    config = importlib.import_module("vllm.config")
    return config.VllmConfig(device_config=config.DeviceConfig(device="cpu"))


class Layer:
    """A runner of vLLM's with a linear gate in front of its experts."""

    def __init__(self, name: str = "layers.0.experts", **changes: Any) -> None:
        config = importlib.import_module("vllm.config")
        linear = importlib.import_module("vllm.model_executor.layers.linear")
        self.setup = changes.pop("setup", None) or Setup("fp8_tensor", "triton")
        Experts.forward_modular = module("routed_experts").RoutedExperts.forward_modular  # type: ignore[method-assign]
        problem = self.setup.weights.problem
        torch.manual_seed(3)
        # One rank, and nothing to exchange.
        alone = SimpleNamespace(rank_in_group=0, world_size=1)
        importlib.import_module("vllm.distributed.parallel_state")._TP = alone
        with config.set_current_vllm_config(on_cpu()):
            given = {"bias": changes.pop("bias", False), "params_dtype": torch.bfloat16}
            if changes.pop("gate_linear", False):  # Qwen3's from 0.33 on
                gate = module("router.gate_linear").GateLinear(problem.K, problem.E, **given)
            else:
                gate = linear.ReplicatedLinear(problem.K, problem.E, disable_tp=True, **given)
            gate.weight.data.copy_(torch.randn(problem.E, problem.K) * problem.K**-0.5)
            router = changes.pop("router", None) or module("router.fused_topk_router").FusedTopKRouter(
                problem.topk, problem.E, renormalize=changes.pop("renormalize", True)
            )
            sizes = {**SMALL, "intermediate_size": problem.N, **changes.pop("sizes", {})}
            kind = changes.pop("kind", None) or module("runner.moe_runner").MoERunner
            self.runner = kind(
                layer_name=name, moe_config=moe_config(**sizes), router=router,
                routed_experts=changes.pop("experts", Experts)(self.setup), gate=gate, **changes,
            )  # fmt: skip

    def call(self, tokens: int, seed: int = 0, padding: bool = False) -> dict[str, Any]:
        """One forward pass: what ran, and how far it is from the float32 reference.

        Args:
            padding: whether all of its rows are marked as padding.
        """
        problem = self.setup.weights.problem
        hidden = torch.randn(tokens, problem.K, generator=torch.Generator().manual_seed(seed)).bfloat16()
        before, chosen = len(cpu_kernels.ran), len(chose)
        context = importlib.import_module("vllm.forward_context")
        with context.set_forward_context(None, on_cpu()):
            marked = torch.ones(tokens, dtype=torch.bool) if padding else None
            context.get_forward_context().is_padding = marked
            out = self.runner._forward_impl(hidden, hidden, None, None)
            assert context.get_forward_context().is_padding is marked
        logits = torch.nn.functional.linear(hidden, self.runner.gate.weight).float()
        best, ids = torch.softmax(logits, 1).topk(problem.topk, dim=1)
        weights = best / best.sum(1, keepdim=True) if self.runner.router.renormalize else best
        truth = reference_moe(self.setup.weights, LayerInputs(hidden, ids.to(torch.int32), weights))
        return {
            "ran": cpu_kernels.ran[before:], "error": relative_l2(out, truth),
            "vllm_chose": len(chose) > chosen, "chose": [ids[: problem.topk] for ids in chose[chosen:]],
            "took": bool(self.runner.__dict__.get("_autotune_gate")),
        }  # fmt: skip


def prepared() -> tuple[Any, list[str], list[float], list[float]]:
    seen: list[float] = []
    wrong: list[float] = []
    own_kernels(True)
    from_gate(seen, wrong)
    choosing_on_cpu()
    plugin, lines = register()
    return plugin, lines, seen, wrong


def taken(renormalize: bool = True, **_: Any) -> Any:
    """A layer whose single tokens are taken from the gate on, and one beside it."""
    plugin, lines, seen, _wrong = prepared()
    layer = Layer(renormalize=renormalize)
    first = layer.call(64)
    layer.setup.workspaces.lock()
    calls = {str(n): layer.call(n, n) for n in (1, 2, 5, 1)}
    other = Layer("layers.1.experts", setup=layer.setup, renormalize=renormalize)
    before = len(seen)
    beside = [other.call(64), len(seen) - before, other.call(1)]
    layer.runner.router.capture_fn = lambda ids: None
    asked = layer.call(1)
    layer.runner.router.capture_fn = None
    layer.runner.router._routing_replay_out = torch.zeros(64, 2, dtype=torch.int16)
    replayed = layer.call(1)
    layer.runner.router._routing_replay_out = None
    found = {
        "first": first, "calls": calls, "beside": beside, "asked": asked, "replayed": replayed,
        "seen": seen, "plain": sorted(plain), "lines": lines, "features": features(plugin),
    }  # fmt: skip
    plan = layer.runner.routed_experts.quant_method.moe_kernel.impl.fused_experts.plan
    plan.remove("fused_decode", "a test took it away")
    found["removed"] = layer.call(1)
    plugin.unapply()
    found["after"] = other.call(1)
    return found


def fails(how: str, **_: Any) -> Any:
    """Our launches are wrong or raise, when they are tried or later: vLLM's gate, said once."""
    _plugin, lines, _seen, wrong = prepared()
    layer = Layer()
    value = {"wrong": 1.5, "raises": float("nan"), "later": float("nan")}[how]
    if how != "later":
        wrong.append(value)
    first = layer.call(64)
    wrong[:] = [value]
    return {"first": first, "calls": [layer.call(1), layer.call(1)], "lines": lines}


def refused(**_: Any) -> Any:
    """Layers whose gate stays vLLM's, each with what the log said."""
    _plugin, lines, _seen, _wrong = prepared()
    found: dict[str, Any] = {}
    setup = Setup("fp8_tensor", "triton")
    chooser = module("router.fused_topk_router").FusedTopKRouter

    class Own(chooser):  # type: ignore[misc]
        pass

    def build(name: str, change: Any = None, **given: Any) -> None:
        before = len(lines)
        layer = Layer(f"{name}.experts", setup=setup, **given)
        if change is not None:
            change(layer.runner)
        layer.call(64)
        found[name] = {**layer.call(1), "lines": lines[before:]}

    class Runner(module("runner.moe_runner").MoERunner):  # type: ignore[misc]
        pass

    class Doubling(Experts):
        def forward_modular(self, *args: Any, **named: Any) -> Any:
            return super().forward_modular(*args, **named)

    build("taken")
    build("own_runner", kind=Runner)
    build("own_experts", experts=Doubling)
    build("gate_linear", gate_linear=True)
    build("wide_logits", lambda runner: setattr(runner.gate, "out_dtype", torch.float32), gate_linear=True)
    build("sigmoid", router=chooser(2, 8, scoring_func="sigmoid"))
    build("own_router", router=Own(2, 8))
    build("bias", bias=True)
    build("dbo", enable_dbo=True)
    build("hooked", lambda runner: runner.gate.register_forward_hook(lambda *_: None))
    build("on_input", lambda runner: setattr(runner.routed_experts, "apply_router_weight_on_input", True))
    build("ranks", lambda runner: setattr(runner.moe_config.moe_parallel_config, "tp_size", 2))
    return found


def reloaded(**_: Any) -> Any:
    """vLLM builds the layer's kernel again, over other scales, as it does when weights are loaded again."""
    _plugin, lines, _seen, _wrong = prepared()
    layer = Layer()
    layer.call(64)
    before = layer.call(1)
    w = layer.setup.weights
    assert w.w13_scale is not None
    layer.setup.weights = replace(w, w13_scale=w.w13_scale * 3)
    layer.runner.routed_experts.quant_method.moe_kernel = layer.setup.kernel()
    return {"calls": [before, layer.call(1), layer.call(1)], "lines": lines}


def padded(**_: Any) -> Any:
    """The first forward pass is of padding only, and the choices of its tokens are recorded."""
    _plugin, lines, _seen, _wrong = prepared()
    layer = Layer()
    router = layer.runner.router
    recorded: list[int] = []
    router.capture_fn = lambda ids: recorded.append(len(ids))
    router._routing_replay_out = replay = torch.full((64, 2), -7, dtype=torch.int16)
    first = layer.call(64, padding=True)
    kept = router._routing_replay_out is replay
    first_row = replay[0].tolist()
    listened = layer.call(1)
    router.capture_fn = router._routing_replay_out = None
    return {
        "first": first, "first_row": first_row, "recorded": recorded, "kept": kept, "listened": listened,
        "call": layer.call(1), "lines": lines,
    }  # fmt: skip


def declined(**_: Any) -> Any:
    """What the feature says of itself under the environment."""
    plugin, lines, _seen, _wrong = prepared()
    layer = Layer()
    layer.call(64)
    return {"features": features(plugin), "call": layer.call(1), "lines": lines}


def changed(what: str, **_: Any) -> Any:
    """A vLLM whose runner differs: the feature disables itself, the router works."""
    runner = module("runner.moe_runner").MoERunner
    if what == "signature":
        original = runner._forward_impl

        def _forward_impl(self: Any, hidden_states: Any, router_logits: Any, more: Any = None) -> Any:
            return original(self, hidden_states, router_logits, None, None)

        runner._forward_impl = _forward_impl
    else:
        runner._apply_quant_method = lambda self, **kwargs: None
    plugin, lines = register()
    return {"features": features(plugin), "lines": lines}
