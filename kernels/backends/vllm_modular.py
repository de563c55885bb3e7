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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from autotune.kernels.backends import flashinfer_tuning
from autotune.kernels.backends.base import require_layout
from autotune.kernels.backends.libraries import EXPERTS, library_support
from autotune.kernels.backends.libraries import FUSED_MOE as _FUSED_MOE
from autotune.kernels.backends.up_first import up_first_cutlass, up_first_triton
from autotune.kernels.backends.vllm_gemms import TritonGemms
from autotune.kernels.specs import Support, backend_spec, tunes_flashinfer
from autotune.kernels.weights import LayerInputs, MoeWeights, in_layout
from autotune.vocabulary.candidate import (
    BackendName,
    Candidate,
    FlashinferCutlassCandidate,
    Tile,
    TritonCandidate,
)
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.problem import Problem, Scheme

MIN_BLOCK_SCALE = 1e-10
"""vLLM's floor of block scales for FlashInfer, which makes NaN of smaller ones on Hopper
(prepare_fp8_moe_layer_for_fi)."""
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
    up_first: bool
    """Whether `w13` has its up rows first."""


class VllmBackend:
    """One of vLLM's experts classes."""

    def __init__(self, name: BackendName) -> None:
        self.name: BackendName = name

    def supports(self, problem: Problem, environment: Environment) -> Support:
        support = backend_spec(self.name).supports(problem, environment)
        return library_support(self.name) if support.ok else support

    def prepare(self, weights: MoeWeights) -> VllmPrepared:
        if self.name == "flashinfer_cutlass":
            weights = in_layout(weights, "w31")
        require_layout(self.name, weights)
        modular = importlib.import_module(f"{_FUSED_MOE}.modular_kernel")
        no_dp_ep = importlib.import_module(f"{_FUSED_MOE}.prepare_finalize.no_dp_ep")
        workspace = importlib.import_module("vllm.v1.worker.workspace")
        if not workspace.is_workspace_manager_initialized():
            workspace.init_workspace_manager(weights.w13.device)
        if self.name == "deep_gemm":
            # Initializes vLLM's lazily loaded DeepGEMM functions and its choice of scale format.
            importlib.import_module("vllm.utils.deep_gemm").is_deep_gemm_e8m0_used()
        module, cls = EXPERTS[self.name]
        experts_cls = getattr(importlib.import_module(module), cls)
        if self.name == "triton" and weights.up_first:
            experts_cls = up_first_triton(experts_cls)
        with vllm_config():
            experts = experts_cls(
                moe_config=moe_config(weights.problem, weights.w13.device),
                quant_config=self._quant_config(weights),
            )
            kernel = modular.FusedMoEKernel(no_dp_ep.MoEPrepareAndFinalizeNoDPEPModular(), experts)
        expert_map = None
        if weights.problem.ep > 1:
            expert_map = torch.full(
                (weights.problem.global_experts,), -1, dtype=torch.int32, device=weights.w13.device
            )
            expert_map[: weights.problem.E] = torch.arange(weights.problem.E, dtype=torch.int32)
        return VllmPrepared(weights.problem, kernel, weights.w13, weights.w2, expert_map, weights.up_first)

    def _quant_config(self, weights: MoeWeights) -> Any:
        config = importlib.import_module(f"{_FUSED_MOE}.config")
        scheme = weights.problem.scheme
        if scheme is Scheme.BF16:
            return config.FUSED_MOE_UNQUANTIZED_CONFIG
        w13_scale, w2_scale = weights.w13_scale, weights.w2_scale
        assert w13_scale is not None
        assert w2_scale is not None
        extra: dict[str, Any] = {}
        if self.name == "flashinfer_cutlass" and scheme is Scheme.FP8_BLOCK128:
            w13_scale, w2_scale = w13_scale.clamp_min(MIN_BLOCK_SCALE), w2_scale.clamp_min(MIN_BLOCK_SCALE)
        elif self.name == "flashinfer_cutlass":
            # As make_fp8_moe_quant_config does for FlashInfer: one dequantization factor per expert.
            assert weights.a1_scale is not None
            assert weights.a2_scale is not None
            extra = {
                "a1_gscale": 1.0 / weights.a1_scale,
                "a2_gscale": 1.0 / weights.a2_scale,
                "g1_alphas": (w13_scale * weights.a1_scale).squeeze(),
                "g2_alphas": (w2_scale * weights.a2_scale).squeeze(),
            }
        return config.fp8_w8a8_moe_quant_config(
            w1_scale=w13_scale,
            w2_scale=w2_scale,
            a1_scale=weights.a1_scale,
            a2_scale=weights.a2_scale,
            per_act_token_quant=scheme is Scheme.FP8_CHANNEL,
            per_out_ch_quant=scheme is Scheme.FP8_CHANNEL,
            block_shape=[128, 128] if scheme is Scheme.FP8_BLOCK128 else None,
            **extra,
        )

    def tune(self, prepared: VllmPrepared, inputs: LayerInputs) -> float:
        """FlashInfer's autotuner, as vLLM's warm-up runs it: a call with a large batch tunes all buckets."""
        if self.name != "flashinfer_cutlass" or not tunes_flashinfer(prepared.problem):
            return 0.0
        self._run(prepared, inputs)  # loads the module, or builds it: no part of tuning
        torch.cuda.synchronize()
        start = time.perf_counter()
        with flashinfer_tuning.tuning():
            self._run(prepared, inputs)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def tactic(self, prepared: VllmPrepared, candidate: Candidate, inputs: LayerInputs) -> str | None:
        if self.name != "flashinfer_cutlass" or not tunes_flashinfer(prepared.problem):
            return None
        with flashinfer_tuning.recording_tactics() as chosen:
            self.bind(prepared, candidate)(inputs)
        return flashinfer_tuning.describe(chosen)

    def bind(self, prepared: VllmPrepared, candidate: Candidate) -> Callable[[LayerInputs], torch.Tensor]:
        def run(inputs: LayerInputs) -> torch.Tensor:
            with ExitStack() as stack:
                if isinstance(candidate, TritonCandidate):
                    stack.enter_context(forced_tile(candidate.tile, candidate.swap_ab))
                if isinstance(candidate, FlashinferCutlassCandidate) and not candidate.tuned:
                    stack.enter_context(flashinfer_tuning.untuned())
                if self.name == "vllm_cutlass" and prepared.up_first:
                    stack.enter_context(up_first_cutlass())
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
        # FlashInfer takes the input unquantized and scales it by itself, to 448 (fp8_blockscale_gemm).
        if problem.scheme is not Scheme.FP8_BLOCK128 or self.name == "flashinfer_cutlass":
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
