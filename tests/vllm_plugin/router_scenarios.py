"""The router in a process with vLLM's real source: real kernels, prepare steps and workspaces on a CPU.

Run by `inside.py`, each in a fork of its own; see `scenarios.py`.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cpu_kernels
import scenarios
import torch
from scenarios import features, module, register

from autotune.kernels.reference import reference_moe, relative_l2
from autotune.kernels.weights import LayerInputs, MoeWeights, make_inputs, make_weights
from autotune.vocabulary.problem import Problem, Scheme

SMALL = {
    "num_experts": 8, "experts_per_token": 2, "hidden_dim": 128, "intermediate_size": 64,
    "num_local_experts": 8, "num_logical_experts": 8, "max_num_tokens": 64,
}  # fmt: skip


def problem(scheme: str = "fp8_tensor") -> Problem:
    n = 128 if scheme == "fp8_block128" else 64
    return Problem(E=8, N=n, K=128, topk=2, scheme=Scheme(scheme))


class Setup:
    """One layer's weights and the kernels that vLLM builds for it."""

    def __init__(self, scheme: str = "fp8_tensor", base: str = "flashinfer") -> None:
        cpu_kernels.install()
        workspace = importlib.import_module("vllm.v1.worker.workspace")
        workspace.init_workspace_manager(torch.device("cpu"))
        self.workspaces = workspace.current_workspace_manager()
        self.weights = make_weights(problem(scheme), 1, "cpu")
        self.base = base
        gate, up = self.weights.w13.chunk(2, dim=1)
        self.w1 = torch.cat([up, gate], dim=1) if base == "flashinfer" else self.weights.w13

    def quant_config(self) -> Any:
        config, w = module("config"), self.weights
        if w.problem.scheme is Scheme.BF16:
            return config.FUSED_MOE_UNQUANTIZED_CONFIG
        extra: dict[str, Any] = {}
        if self.base == "flashinfer":
            extra = {
                "a1_gscale": 1.0 / w.a1_scale, "a2_gscale": 1.0 / w.a2_scale,
                "g1_alphas": w.w13_scale * w.a1_scale, "g2_alphas": w.w2_scale * w.a2_scale,
            }  # fmt: skip
        return config.fp8_w8a8_moe_quant_config(
            w1_scale=w.w13_scale, w2_scale=w.w2_scale, a1_scale=w.a1_scale, a2_scale=w.a2_scale,
            block_shape=[128, 128] if w.problem.scheme is Scheme.FP8_BLOCK128 else None, **extra,
        )  # fmt: skip

    def experts(self, **changes: Any) -> Any:
        name, cls = {
            "flashinfer": ("flashinfer_cutlass_moe", "FlashInferExperts"),
            "triton": ("triton_moe", "TritonExperts"),
        }[self.base]
        kind = getattr(module(f"experts.{name}"), cls)
        sizes = {**SMALL, "intermediate_size": self.weights.problem.N, **changes}
        return kind(moe_config=scenarios.moe_config(**sizes), quant_config=self.quant_config())

    def kernel(self, experts: Any = None, prepare: Any = None) -> Any:
        prepare = prepare or module("prepare_finalize.no_dp_ep").MoEPrepareAndFinalizeNoDPEPModular()
        return module("modular_kernel").FusedMoEKernel(prepare, experts or self.experts())

    def call(self, kernel: Any, tokens: int) -> dict[str, Any]:
        """One layer call: what ran, and how far it is from the float32 reference."""
        inputs = make_inputs(self.weights.problem, tokens, tokens, device="cpu")
        before = len(cpu_kernels.ran)
        out = kernel.apply(
            inputs.hidden, self.w1, self.weights.w2, inputs.topk_weights, inputs.topk_ids,
            module("activation").MoEActivation.SILU, self.weights.problem.E, None, False,
        )  # fmt: skip
        error = relative_l2(out, reference_moe(self.weights, inputs))
        return {"ran": cpu_kernels.ran[before:], "error": error}

    def calls(self, kernel: Any, counts: list[int]) -> dict[str, Any]:
        return {str(count): self.call(kernel, count) for count in counts}


def own_kernels(up_first: bool) -> None:
    """Put the reference in the place of our kernels, which need a GPU; the adapter around it is real."""
    from autotune.vllm_plugin import own_experts

    def run(weights: MoeWeights, inputs: LayerInputs, output: torch.Tensor, swapped: bool) -> None:
        w13 = weights.w13
        if swapped:
            up, gate = w13.chunk(2, dim=1)
            w13 = torch.cat([gate, up], dim=1)
        w = weights  # made anew, so that no mark of the order is left
        plain = MoeWeights(w.problem, w13, w.w2, w.w13_scale, w.w2_scale, w.a1_scale, w.a2_scale)
        cpu_kernels.ran.append("own")
        output.copy_(reference_moe(plain, inputs))

    def plan(w: Any, x: Any, candidate: Any, out: Any) -> list[Any]:
        return [SimpleNamespace(run=lambda: run(w, x, out, w.up_first))]

    own_experts.kernel_plan = lambda backend: plan
    if not up_first:
        router = importlib.import_module("autotune.vllm_plugin.router")
        router.takes_up_first = lambda backend: False


def warmed(setup: Setup, kernel: Any) -> dict[str, Any]:
    """The profiling run with the largest batch, after which vLLM locks its workspaces."""
    first = setup.call(kernel, 64)
    setup.workspaces.lock()
    return first


def routed(scheme: str, base: str, counts: list[int], up_first: bool = True, **_: Any) -> Any:
    """A layer whose table names several backends."""
    own_kernels(up_first)
    plugin, lines = register()
    setup = Setup(scheme, base)
    kernel = setup.kernel()
    first = warmed(setup, kernel)
    answer = {
        "experts": type(kernel.fused_experts).__name__,
        "first": first,
        "calls": setup.calls(kernel, counts),
        "lines": lines,
        "features": features(plugin),
    }
    again = setup.kernel()
    answer["second_layer"] = setup.call(again, 6)
    if base == "triton":
        cpu_kernels.ran.clear()
        setup.call(kernel, 60)
        answer["own_tile"] = cpu_kernels.ran[-1]
    before = module("modular_kernel").FusedMoEKernel.__init__
    plugin.unapply()
    answer["after"] = type(setup.kernel().fused_experts).__name__
    answer["restored"] = module("modular_kernel").FusedMoEKernel.__init__ is not before
    return answer


def workspaces(**_: Any) -> Any:
    """What the router asks for against what each of its experts does."""
    own_kernels(True)
    register()
    setup = Setup()
    router = setup.kernel().fused_experts
    silu = module("activation").MoEActivation.SILU
    found = {}
    for tokens in (1, 6, 33, 64):
        arguments = (tokens, 128, 128, 2, 8, 8, None, silu)
        found[str(tokens)] = {
            "router": router.workspace_shapes(*arguments),
            "again": router.workspace_shapes(*arguments),
            "inners": [i.workspaces(*arguments) for i in router.inners if i.workspaces is not None],
        }
    return {"shapes": found, "expects_unquantized": router.expects_unquantized_inputs}


def asked_in_a_call(**_: Any) -> Any:
    """What vLLM asks of the router in one call that the router does not have itself: each costs 1.5 us."""
    own_kernels(True)
    register()
    setup = Setup()
    kernel = setup.kernel()
    warmed(setup, kernel)
    router_class, names = type(kernel.fused_experts), []
    forward = router_class.__getattr__

    def noting(self: Any, name: str) -> Any:
        names.append(name)
        return forward(self, name)

    router_class.__getattr__ = noting
    return {"ran": [setup.call(kernel, count)["ran"] for count in (2, 12, 40)], "forwarded": names}


def probe_fails(how: str, **_: Any) -> Any:
    """One backend computes something else, or raises, when it is probed: the rest serves."""
    own_kernels(True)
    plugin, lines = register()
    setup = Setup()
    if how == "wrong":
        cpu_kernels.wrong["cutlass"] = 1.5
    elif how == "nan":
        cpu_kernels.wrong["cutlass"] = float("nan")
    else:
        module("experts.cutlass_moe").ops.cutlass_moe_mm = lambda *args: 1 / 0
    kernel = setup.kernel()
    warmed(setup, kernel)
    return {"calls": setup.calls(kernel, [2, 6, 12, 40]), "lines": lines, "features": features(plugin)}


def raises_later(**_: Any) -> Any:
    """A backend that passed its probe raises in a call: vLLM's choice from then on, said once."""
    own_kernels(True)
    _, lines = register()
    setup = Setup()
    kernel, other = setup.kernel(), setup.kernel()
    warmed(setup, kernel)
    good = setup.call(kernel, 12)
    ops = module("experts.cutlass_moe").ops
    working = ops.cutlass_moe_mm

    def broken(*_: Any) -> None:
        raise RuntimeError("misaligned address")

    ops.cutlass_moe_mm = broken
    failing = setup.call(kernel, 12)
    ops.cutlass_moe_mm = working
    return {
        "good": good, "failing": failing, "after": setup.call(kernel, 12),
        "other_layer": setup.call(other, 12), "triton": setup.call(kernel, 6), "lines": lines,
    }  # fmt: skip


def small_first(**_: Any) -> Any:
    """Routes are proved as calls come for which there is room; until then vLLM's choice serves."""
    own_kernels(True)
    register()
    setup = Setup()
    kernel = setup.kernel()
    return {"calls": [setup.call(kernel, count)["ran"][-1] for count in (1, 6, 1, 12, 6, 12)]}


def tried(**_: Any) -> Any:
    """At which token counts a kernel of ours ran in the profiling run; its route needs two variants."""
    from autotune.vllm_plugin import own_experts

    own_kernels(True)
    reference, seen = own_experts.kernel_plan, []

    def recording(backend: Any) -> Any:
        plan = reference(backend)

        def noting(weights: Any, inputs: Any, candidate: Any, output: Any) -> Any:
            seen.append(inputs.tokens)
            return plan(weights, inputs, candidate, output)

        return noting

    own_experts.kernel_plan = recording
    register()
    setup = Setup()
    warmed(setup, setup.kernel())
    return seen


def tuning(**_: Any) -> Any:
    """FlashInfer's tuner must get its calls although the table routes them elsewhere."""
    own_kernels(True)
    register()
    setup = Setup()
    kernel = setup.kernel()
    warmed(setup, kernel)
    before = setup.call(kernel, 12)
    cpu_kernels.tuner.is_tuning_mode = True
    during = setup.calls(kernel, [2, 6, 12])
    cpu_kernels.tuner.is_tuning_mode = False
    return {"before": before, "during": during, "after": setup.call(kernel, 12)}


def unwatchable_tuner(**_: Any) -> Any:
    own_kernels(True)
    _, lines = register()
    setup = Setup()
    cpu_kernels.AutoTuner.get = classmethod(lambda cls: SimpleNamespace())
    return {"experts": type(setup.kernel().fused_experts).__name__, "lines": lines}


def refusals(**_: Any) -> Any:
    """Layers that are not routed, each with what the log said."""
    own_kernels(True)
    _, lines = register()
    setup = Setup()
    found: dict[str, Any] = {}

    def build(name: str, experts: Any, prepare: Any = None) -> None:
        before = len(lines)
        kernel = setup.kernel(experts, prepare)
        found[name] = {"experts": type(kernel.fused_experts).__name__, "lines": lines[before:]}

    build("routed", setup.experts())
    build("lora", setup.experts(is_lora_enabled=True))
    build("moe_backend", setup.experts(moe_backend="flashinfer_cutlass"))
    build("biases", setup.experts(has_bias=True))
    build("another_k", setup.experts(hidden_dim=256))
    hooked = setup.experts()
    hooked.post_gemm2_hook = print
    build("hook", hooked)
    dynamic = setup.experts()
    dynamic.quant_config = module("config").fp8_w8a8_moe_quant_config(
        w1_scale=setup.weights.w13_scale, w2_scale=setup.weights.w2_scale
    )
    build("dynamic", dynamic)

    class Unknown(type(hooked)):  # type: ignore[misc]
        pass

    build("unknown", Unknown(moe_config=scenarios.moe_config(**SMALL), quant_config=setup.quant_config()))

    class AllToAll(module("prepare_finalize.no_dp_ep").MoEPrepareAndFinalizeNoDPEPModular):  # type: ignore[misc]
        pass

    build("all_to_all", setup.experts(), AllToAll())
    build_monolithic(setup, build)
    return found


def build_monolithic(setup: Setup, build: Any) -> None:
    modular = module("modular_kernel")

    class Monolithic(modular.FusedMoEExpertsMonolithic):  # type: ignore[misc]
        @staticmethod
        def activation_format() -> Any:
            return modular.FusedMoEActivationFormat.Standard

    Monolithic.__abstractmethods__ = frozenset()
    experts = Monolithic(moe_config=scenarios.moe_config(**SMALL), quant_config=setup.quant_config())
    build("monolithic", experts, module("prepare_finalize.no_dp_ep").MoEPrepareAndFinalizeNoDPEPMonolithic())


def hook_later(**_: Any) -> Any:
    """A model sets its own reduction after the kernel was built: vLLM's choice has to serve."""
    own_kernels(True)
    register()
    setup = Setup()
    kernel = setup.kernel()
    warmed(setup, kernel)
    before = setup.call(kernel, 12)
    kernel.fused_experts.post_gemm2_hook = print
    seen = kernel.fused_experts.base.post_gemm2_hook is print
    return {"before": before, "after": setup.call(kernel, 12), "reached_the_base": seen}


def observed(**_: Any) -> Any:
    """`observe` counts and leaves everything as it was."""
    own_kernels(True)
    plugin, lines = register()
    setup = Setup()
    kernel = setup.kernel()
    calls = setup.calls(kernel, [2, 6, 6, 12, 40, 50])
    router = next(f for f in plugin.features if f.name == "router")
    router.observation.report()
    return {
        "experts": type(kernel.fused_experts).__name__, "calls": calls, "lines": lines,
        "features": features(plugin),
    }  # fmt: skip


def changed_kernel(what: str, **_: Any) -> Any:
    """A later vLLM changes what the router needs: only the router goes."""
    modular = module("modular_kernel")
    if what == "init":
        scenarios.refuse_the_router()
    elif what == "apply":
        modular.FusedMoEExpertsModular.apply = lambda self, output, hidden_states, weights: None
    elif what == "prepare":
        modular.FusedMoEKernelModularImpl._prepare = lambda self, hidden_states: None
    elif what == "warmup":
        warm: Any = importlib.import_module("vllm.model_executor.warmup.deep_gemm_warmup")
        warm._fused_moe_grouped_gemm_may_use_deep_gemm = lambda module, tokens: False
    else:
        config = module("config").FusedMoEConfig
        original = config.__post_init__
        config.__post_init__ = lambda self, checked: original(self)
    plugin, lines = register()
    return {"features": features(plugin), "lines": lines, "tiles": scenarios.look_up([8]),
            "order": scenarios.order()}  # fmt: skip


def state(**_: Any) -> Any:
    """Only the features' states."""
    plugin, lines = register()
    return {"features": features(plugin), "lines": lines}


def deep_gemm_warmup(**_: Any) -> Any:
    """What vLLM asks before it warms DeepGEMM up: of a router without DeepGEMM, and of one with it."""
    own_kernels(True)
    warm: Any = importlib.import_module("vllm.model_executor.warmup.deep_gemm_warmup")
    register()
    warm.get_mk_alignment_for_contiguous_layout = lambda: [128, 128]
    setup = Setup()
    kernel = setup.kernel()
    router = kernel.fused_experts
    config = SimpleNamespace(quant_dtype=torch.float8_e4m3fn, block_shape=[128, 128])
    method = SimpleNamespace(moe_kernel=kernel, get_fused_moe_quant_config=lambda layer: config)

    class Runner(warm.MoERunner):  # type: ignore[misc]
        _quant_method = method
        routed_experts = None

        def __init__(self) -> None:
            pass

    Runner.__abstractmethods__ = frozenset()
    layer = Runner()
    question = warm._fused_moe_grouped_gemm_may_use_deep_gemm
    without = question(layer)
    deep_gemm = warm.DeepGemmExperts.__new__(warm.DeepGemmExperts)
    router.inners = (*router.inners, replace(router.inners[0], experts=deep_gemm))
    found = question(layer)
    return {"without": without, "found": found, "kept": kernel.impl.fused_experts is router}
