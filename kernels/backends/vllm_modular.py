"""vLLM's own backends, run through vLLM's modular MoE kernel: the code path that serves.

Each is an "experts" class behind FusedMoEKernel (`model_executor/layers/fused_moe/modular_kernel.py`), which
quantizes the input, allocates workspaces and reduces the output, exactly as in a running server without
data or expert parallelism.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from autotune.kernels.backends.vllm_gemms import TritonGemms
from autotune.kernels.specs import Support, backend_spec
from autotune.kernels.weights import LayerInputs, MoeWeights
from autotune.vocabulary.candidate import BackendName, Candidate, Tile, TritonCandidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.problem import Problem, Scheme

_FUSED_MOE = "vllm.model_executor.layers.fused_moe"
_EXPERTS: dict[BackendName, tuple[str, str]] = {
    "triton": (f"{_FUSED_MOE}.experts.triton_moe", "TritonExperts"),
    "vllm_cutlass": (f"{_FUSED_MOE}.experts.cutlass_moe", "CutlassExpertsFp8"),
    "flashinfer_cutlass": (f"{_FUSED_MOE}.experts.flashinfer_cutlass_moe", "FlashInferExperts"),
    "deep_gemm": (f"{_FUSED_MOE}.experts.deep_gemm_moe", "DeepGemmExperts"),
}
MAX_TOKENS = 16_384
"""What vLLM's FusedMoEConfig is told as the largest batch; FlashInfer's tuner covers counts up to it."""


@dataclass(frozen=True)
class VllmPrepared:
    """A FusedMoEKernel with the tensors that it reads."""

    problem: Problem
    kernel: Any
    w13: torch.Tensor
    w2: torch.Tensor
    expert_map: torch.Tensor | None


class VllmBackend:
    """One of vLLM's experts classes."""

    def __init__(self, name: BackendName) -> None:
        self.name: BackendName = name

    def supports(self, problem: Problem, environment: Environment) -> Support:
        return backend_spec(self.name).supports(problem, environment)

    def prepare(self, weights: MoeWeights) -> VllmPrepared:
        modular = importlib.import_module(f"{_FUSED_MOE}.modular_kernel")
        no_dp_ep = importlib.import_module(f"{_FUSED_MOE}.prepare_finalize.no_dp_ep")
        workspace = importlib.import_module("vllm.v1.worker.workspace")
        if not workspace.is_workspace_manager_initialized():
            workspace.init_workspace_manager(weights.w13.device)
        w13, w13_scale = weights.w13, weights.w13_scale
        if self.name == "flashinfer_cutlass" and weights.problem.gated:
            gate, up = w13.chunk(2, dim=1)
            w13 = torch.cat([up, gate], dim=1)
        if self.name == "deep_gemm":
            # Initializes vLLM's lazily loaded DeepGEMM functions and its choice of scale format.
            importlib.import_module("vllm.utils.deep_gemm").is_deep_gemm_e8m0_used()
        module, cls = _EXPERTS[self.name]
        experts_cls = getattr(importlib.import_module(module), cls)
        with vllm_config():
            experts = experts_cls(
                moe_config=moe_config(weights.problem, weights.w13.device),
                quant_config=self._quant_config(weights, w13_scale),
            )
            kernel = modular.FusedMoEKernel(no_dp_ep.MoEPrepareAndFinalizeNoDPEPModular(), experts)
        expert_map = None
        if weights.problem.ep > 1:
            expert_map = torch.full(
                (weights.problem.global_experts,), -1, dtype=torch.int32, device=w13.device
            )
            expert_map[: weights.problem.E] = torch.arange(weights.problem.E, dtype=torch.int32)
        return VllmPrepared(weights.problem, kernel, w13, weights.w2, expert_map)

    def _quant_config(self, weights: MoeWeights, w13_scale: torch.Tensor | None) -> Any:
        config = importlib.import_module(f"{_FUSED_MOE}.config")
        scheme = weights.problem.scheme
        if scheme is Scheme.BF16:
            return config.FUSED_MOE_UNQUANTIZED_CONFIG
        extra: dict[str, Any] = {}
        if self.name == "flashinfer_cutlass":
            # As make_fp8_moe_quant_config does for FlashInfer: one dequantization factor per expert.
            assert weights.a1_scale is not None
            assert weights.a2_scale is not None
            assert w13_scale is not None
            assert weights.w2_scale is not None
            extra = {
                "a1_gscale": 1.0 / weights.a1_scale,
                "a2_gscale": 1.0 / weights.a2_scale,
                "g1_alphas": (w13_scale * weights.a1_scale).squeeze(),
                "g2_alphas": (weights.w2_scale * weights.a2_scale).squeeze(),
            }
        return config.fp8_w8a8_moe_quant_config(
            w1_scale=w13_scale,
            w2_scale=weights.w2_scale,
            a1_scale=weights.a1_scale,
            a2_scale=weights.a2_scale,
            per_act_token_quant=scheme is Scheme.FP8_CHANNEL,
            per_out_ch_quant=scheme is Scheme.FP8_CHANNEL,
            block_shape=[128, 128] if scheme is Scheme.FP8_BLOCK128 else None,
            **extra,
        )

    def tune(self, prepared: VllmPrepared, inputs: LayerInputs) -> float:
        """FlashInfer's autotuner, as vLLM's warm-up runs it: a call with a large batch tunes all buckets."""
        if self.name != "flashinfer_cutlass":
            return 0.0
        from flashinfer.autotuner import autotune

        start = time.perf_counter()
        with autotune(True):
            self._run(prepared, inputs)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def bind(self, prepared: VllmPrepared, candidate: Candidate) -> Callable[[LayerInputs], torch.Tensor]:
        def run(inputs: LayerInputs) -> torch.Tensor:
            forced = (
                forced_tile(candidate.tile, candidate.swap_ab)
                if isinstance(candidate, TritonCandidate)
                else nullcontext()
            )
            with forced:
                return self._run(prepared, inputs)

        return run

    def _run(self, prepared: VllmPrepared, inputs: LayerInputs) -> torch.Tensor:
        activation = importlib.import_module(f"{_FUSED_MOE}.activation").MoEActivation
        problem = prepared.problem
        result: torch.Tensor = prepared.kernel.apply(
            hidden_states=inputs.hidden,
            w1=prepared.w13,
            w2=prepared.w2,
            topk_weights=inputs.topk_weights,
            topk_ids=inputs.topk_ids,
            activation=activation.from_str(problem.act),
            global_num_experts=problem.global_experts,
            expert_map=prepared.expert_map,
            apply_router_weight_on_input=False,
        )
        return result

    def power_of_two_scales(self, problem: Problem) -> bool:
        if problem.scheme is not Scheme.FP8_BLOCK128:
            return False
        return bool(importlib.import_module("vllm.utils.deep_gemm").is_deep_gemm_e8m0_used())

    def scratch(self) -> list[torch.Tensor]:
        workspace = importlib.import_module("vllm.v1.worker.workspace")
        if not workspace.is_workspace_manager_initialized():
            return []
        held = workspace.current_workspace_manager()._current_workspaces
        return [buffer for buffer in held if buffer is not None]

    def scratch_bytes(self, prepared: VllmPrepared, inputs: LayerInputs) -> int:
        problem, experts = prepared.problem, prepared.kernel.fused_experts
        activation = importlib.import_module(f"{_FUSED_MOE}.activation").MoEActivation
        first, second, output = experts.workspace_shapes(
            inputs.tokens, problem.gate_up_rows, problem.K, problem.topk, problem.global_experts, problem.E,
            None, activation.from_str(problem.act),
        )  # fmt: skip
        width: int = experts.workspace_dtype(torch.bfloat16).itemsize
        elements: int = max(math.prod(first), math.prod(output)) + math.prod(second)
        return width * elements

    def compile_ahead(self, problem: Problem, tokens: int, candidate: Candidate) -> None:
        if isinstance(candidate, TritonCandidate):
            compile_vllm_triton(problem, tokens, candidate)


@contextmanager
def vllm_config() -> Iterator[None]:
    """A default VllmConfig, which parts of vLLM read while they are built."""
    config = importlib.import_module("vllm.config")
    with config.set_current_vllm_config(config.VllmConfig()):
        yield


def moe_config(problem: Problem, device: torch.device | str, moe_backend: str = "auto") -> Any:
    """vLLM's FusedMoEConfig of a problem: rank 0 of `ep` expert-parallel ranks, nothing else parallel."""
    config = importlib.import_module(f"{_FUSED_MOE}.config")
    activation = importlib.import_module(f"{_FUSED_MOE}.activation").MoEActivation
    values = {
        "num_experts": problem.global_experts,
        "experts_per_token": problem.topk,
        "hidden_dim": problem.K,
        "intermediate_size": problem.N,
        "num_local_experts": problem.E,
        "num_logical_experts": problem.global_experts,
        "activation": activation.from_str(problem.act),
        "device": torch.device(device) if isinstance(device, str) else device,
        "routing_method": config.RoutingMethodType.Renormalize,
        "moe_parallel_config": replace(
            config.FusedMoEParallelConfig.make_no_parallel(), ep_size=problem.ep, use_ep=problem.ep > 1
        ),
        "in_dtype": torch.bfloat16,
        "moe_backend": moe_backend,
        "max_num_tokens": MAX_TOKENS,
    }
    known = {field.name for field in fields(config.FusedMoEConfig)}
    return config.FusedMoEConfig(**{name: value for name, value in values.items() if name in known})


@contextmanager
def forced_tile(tile: Tile, swap_ab: bool) -> Iterator[None]:
    """Make vLLM's Triton MoE use this tile and Swap-AB choice, and put everything back."""
    package = importlib.import_module(_FUSED_MOE)
    module: Any = importlib.import_module(f"{_FUSED_MOE}.fused_moe")
    original = module.enable_swap_ab
    module.enable_swap_ab = lambda block_m, block_n: swap_ab
    try:
        with package.override_config(tile.vllm_config()):
            yield
    finally:
        module.enable_swap_ab = original


@contextmanager
def compiling_only() -> Iterator[None]:
    """Turn every Triton launch into a compile: nothing runs on the GPU."""
    from triton.runtime.jit import JITFunction

    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return original(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = original


def compile_vllm_triton(problem: Problem, tokens: int, candidate: TritonCandidate) -> None:
    """Compile the two GEMMs of vLLM's Triton MoE with the very arguments that TritonExperts passes."""
    with forced_tile(candidate.tile, candidate.swap_ab), compiling_only():
        TritonGemms(problem).launch(tokens, candidate.tile.vllm_config())
