"""The ordered list of backends, and what an unaided vLLM would run."""

from __future__ import annotations

import importlib
from typing import Any

from autotune.kernels.backends.base import Backend
from autotune.kernels.backends.fused import OwnBackend
from autotune.kernels.backends.libraries import FUSED_MOE as _FUSED_MOE
from autotune.kernels.backends.libraries import selection_surface
from autotune.kernels.backends.vllm_modular import VllmBackend, moe_config, vllm_config
from autotune.kernels.fused_decode import op as fused_decode
from autotune.kernels.fused_triton import op as fused_triton
from autotune.vocabulary.candidate import (
    BackendName,
    Candidate,
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    FusedTritonCandidate,
    Tile,
    TritonCandidate,
    VllmCutlassCandidate,
)
from autotune.vocabulary.errors import AutotuneError, UnknownNameError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem, Scheme


def all_backends() -> dict[BackendName, Backend]:
    """Every backend that can be built, in registry order; building one imports nothing heavy."""
    backends: tuple[Backend, ...] = (
        VllmBackend("triton"),
        VllmBackend("vllm_cutlass"),
        VllmBackend("flashinfer_cutlass"),
        VllmBackend("deep_gemm"),
        OwnBackend("fused_triton", fused_triton.plan),
        OwnBackend("fused_decode", fused_decode.plan),
    )
    return {backend.name: backend for backend in backends}


def get_backend(name: str) -> Backend:
    """One backend.

    Raises:
        UnknownNameError: for a name that is not in the registry.
    """
    backends = all_backends()
    if name not in backends:
        raise UnknownNameError("backend", name, backends)
    return backends[name]


def vllm_triton_config(problem: Problem, tokens: int) -> TritonCandidate:
    """The tile (tuned file or default) and Swap-AB choice that vLLM's Triton MoE takes by itself."""
    module = importlib.import_module(f"{_FUSED_MOE}.fused_moe")
    scheme = problem.scheme
    config = module.try_get_optimal_moe_config(
        (problem.E, problem.gate_up_rows, problem.K),
        (problem.E, problem.K, problem.N),
        problem.topk,
        scheme.vllm_dtype,
        tokens,
        block_shape=[128, 128] if scheme is Scheme.FP8_BLOCK128 else None,
    )
    tile = Tile.from_vllm_config(config)
    swap = bool(scheme.is_fp8 and module.enable_swap_ab(tile.block_m, tile.block_n))
    if scheme is Scheme.FP8_BLOCK128:
        # vLLM clamps BLOCK_SIZE_K to the scale block when it launches; state what runs.
        tile = tile.model_copy(update={"block_k": min(tile.block_k, 128)})
    return TritonCandidate(tile=tile, swap_ab=swap)


def baseline_backend(problem: Problem, checkpoint: Checkpoint) -> BackendName:
    """Ask vLLM's own selection which backend it would run.

    Raises:
        AutotuneError: if vLLM picks one that is not in this project's list.
    """
    with vllm_config():
        # vLLM looks at the current config when an experts class is asked whether it is supported.
        config = moe_config(problem, "cuda")
        if problem.scheme is Scheme.BF16:
            oracle = importlib.import_module(f"{_FUSED_MOE}.oracle.unquantized")
            chosen = oracle.select_unquantized_moe_backend(config)[0]
        else:
            oracle = importlib.import_module(f"{_FUSED_MOE}.oracle.fp8")
            keys = _quant_keys(problem.scheme)
            chosen = oracle.select_fp8_moe_backend(
                config, *keys, allow_vllm_cutlass=checkpoint == "compressed-tensors"
            )[0]
    names: dict[str, BackendName] = {
        "TRITON": "triton",
        "VLLM_CUTLASS": "vllm_cutlass",
        "FLASHINFER_CUTLASS": "flashinfer_cutlass",
        "DEEPGEMM": "deep_gemm",
    }
    if chosen.name not in names:
        raise AutotuneError(
            f"vLLM would run its backend {chosen.name} for {problem}, which is not measured here.",
            f"Known: {', '.join(names)}.",
        )
    return names[chosen.name]


def stand_in(problem: Problem, tokens: int) -> FusedTritonCandidate:
    """A plain configuration of our own kernel: the baseline where there is no vLLM that would have one."""
    few = tokens * problem.topk <= 16 * problem.global_experts
    tile = Tile(
        block_m=16 if few else 64, block_n=64, block_k=128 if problem.scheme.is_fp8 else 64, num_stages=3
    )
    return FusedTritonCandidate(gate_up=tile, down=tile)


def baseline_candidate(problem: Problem, checkpoint: Checkpoint, tokens: int) -> Candidate:
    """What that vLLM would run unaided for this problem, checkpoint format and token count.

    Without a vLLM that can be asked, a stand-in: such a table names no vLLM, and so is applied by none.
    """
    if not selection_surface().ok:
        return stand_in(problem, tokens)
    backend = baseline_backend(problem, checkpoint)
    if backend == "vllm_cutlass":
        return VllmCutlassCandidate()
    if backend == "flashinfer_cutlass":
        return FlashinferCutlassCandidate()
    if backend == "deep_gemm" and tokens >= 128 and problem.N > 512:
        # TritonOrDeepGemmExperts falls back to Triton below its alignment of 128 rows and for N <= 512.
        return DeepGemmCandidate()
    return vllm_triton_config(problem, tokens)


def _quant_keys(scheme: Scheme) -> tuple[Any, Any]:
    keys = importlib.import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
    return {
        Scheme.FP8_TENSOR: (keys.kFp8StaticTensorSym, keys.kFp8StaticTensorSym),
        Scheme.FP8_CHANNEL: (keys.kFp8StaticChannelSym, keys.kFp8DynamicTokenSym),
        Scheme.FP8_BLOCK128: (keys.kFp8Static128BlockSym, keys.kFp8Dynamic128Sym),
    }[scheme]
