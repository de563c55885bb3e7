"""The registry of backends: who takes what, refusals that name the cause, and tiles that cannot fit."""

from __future__ import annotations

import pytest

from autotune.kernels.specs import (
    MAX_SHARED_BYTES,
    backend_spec,
    backends_for,
    fits,
    shared_bytes,
    uses_wgmma,
)
from autotune.vocabulary.candidate import (
    BACKENDS,
    Candidate,
    DeepGemmCandidate,
    FusedDecodeCandidate,
    FusedTritonCandidate,
    Tile,
    VllmCutlassCandidate,
)
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import UnknownNameError
from autotune.vocabulary.measurement import vllm_backends
from autotune.vocabulary.problem import Problem
from tests.factories import H200, triton

BLOCK = "E=128,N=768,K=2048,topk=8,scheme=fp8_block128"
TENSOR = BLOCK.replace("fp8_block128", "fp8_tensor")
BF16 = BLOCK.replace("fp8_block128", "bf16")
FULL = H200.model_copy(update={"flashinfer": "0.6.13"})
L4 = FULL.model_copy(update={"gpu": "NVIDIA_L4", "capability": "8.9"})
A100 = FULL.model_copy(update={"gpu": "NVIDIA_A100-SXM4-80GB", "capability": "8.0"})


def runs(shape: str, environment: Environment = FULL) -> set[str]:
    return {name for name, support in backends_for(Problem.parse(shape), environment).items() if support.ok}


def test_the_registry_lists_every_backend_in_order() -> None:
    assert tuple(backends_for(Problem.parse(BLOCK), H200)) == BACKENDS
    for name in BACKENDS:
        assert backend_spec(name).name == name


def test_an_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        backend_spec("deepgem")
    assert caught.value.nearest == "deep_gemm"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (BLOCK, {"triton", "flashinfer_cutlass", "deep_gemm", "fused_triton", "fused_decode"}),
        (TENSOR, {"triton", "vllm_cutlass", "flashinfer_cutlass", "fused_triton", "fused_decode"}),
        (BLOCK.replace("fp8_block128", "fp8_channel"), {"triton", "vllm_cutlass", "fused_triton"}),
        (BF16, {"triton", "flashinfer_cutlass", "fused_triton", "fused_decode"}),
    ],
)
def test_what_runs_on_an_h200(shape: str, expected: set[str]) -> None:
    assert runs(shape) == expected


def test_what_runs_without_fp8_hardware() -> None:
    assert runs(TENSOR, A100) == set()
    assert runs(BF16, A100) == {"triton", "fused_triton", "fused_decode"}
    assert runs(TENSOR, L4) == {"triton", "fused_triton", "fused_decode"}


@pytest.mark.parametrize(
    ("backend", "shape", "environment", "words"),
    [
        ("triton", BLOCK.replace("N=768", "N=704"), FULL, ("N=704", "128")),
        ("triton", TENSOR, A100, ("8.9", "8.0")),
        ("triton", TENSOR, FULL.model_copy(update={"vllm": None}), ("vLLM", "pip install")),
        ("vllm_cutlass", BLOCK, FULL, ("per-tensor or per-channel",)),
        ("vllm_cutlass", TENSOR.replace("K=2048", "K=2056"), FULL, ("K=2056", "16")),
        ("vllm_cutlass", TENSOR + ",act=relu2_no_mul", FULL, ("relu2_no_mul",)),
        ("vllm_cutlass", TENSOR, L4, ("8.9", "9.x")),
        ("flashinfer_cutlass", BLOCK.replace("fp8_block128", "fp8_channel"), FULL, ("fp8_channel",)),
        ("flashinfer_cutlass", BLOCK.replace("N=768", "N=704"), FULL, ("N=704", "128")),
        ("flashinfer_cutlass", BLOCK + ",act=gelu_tanh", FULL, ("gelu_tanh", "silu")),
        ("flashinfer_cutlass", BLOCK, FULL.model_copy(update={"capability": "10.0"}), ("9.0", "10.0")),
        ("flashinfer_cutlass", BLOCK, FULL.model_copy(update={"cuda": "12.6"}), ("12.8", "12.6")),
        ("flashinfer_cutlass", BF16.replace("N=768", "N=760"), FULL, ("N=760", "16")),
        ("flashinfer_cutlass", BF16, H200, ("pip install flashinfer-python",)),
        ("flashinfer_cutlass", BF16, FULL.model_copy(update={"vllm": None}), ("pip install vllm",)),
        ("flashinfer_cutlass", TENSOR.replace("N=768", "N=760"), FULL, ("N=760", "16")),
        ("flashinfer_cutlass", TENSOR + ",act=gelu", FULL, ("gelu",)),
        ("flashinfer_cutlass", TENSOR, L4, ("8.9", "9.0")),
        ("flashinfer_cutlass", TENSOR, H200, ("pip install flashinfer-python",)),
        ("deep_gemm", TENSOR, FULL, ("128x128",)),
        ("deep_gemm", BLOCK.replace("N=768", "N=512"), FULL, ("N=512", "512")),
        ("deep_gemm", BLOCK.replace("K=2048", "K=2000"), FULL, ("K=2000", "128")),
        ("deep_gemm", BLOCK + ",act=gelu", FULL, ("gelu", "silu")),
        ("deep_gemm", BLOCK, L4, ("8.9",)),
        ("fused_triton", BF16 + ",act=gelu", FULL, ("gelu", "silu")),
        ("fused_triton", BF16.replace("N=768", "N=760"), FULL, ("N=760", "16")),
        ("fused_triton", BLOCK.replace("K=2048", "K=2112"), FULL, ("K=2112", "128")),
        ("fused_triton", TENSOR, A100, ("8.9", "8.0")),
        ("fused_triton", BF16, FULL.model_copy(update={"triton": None}), ("pip install triton",)),
        ("fused_decode", TENSOR.replace("fp8_tensor", "fp8_channel"), FULL, ("fp8_channel",)),
        ("fused_decode", BF16 + ",act=gelu", FULL, ("gelu", "silu")),
        ("fused_decode", BF16 + ",ep=2", FULL, ("ep=2", "one GPU")),
        ("fused_decode", BLOCK.replace("K=2048", "K=2112"), FULL, ("K=2112", "128")),
    ],
)
def test_a_refusal_names_its_cause(
    backend: str, shape: str, environment: Environment, words: tuple[str, ...]
) -> None:
    support = backend_spec(backend).supports(Problem.parse(shape), environment)
    assert not support.ok
    for word in words:
        assert word in support.reason


def test_the_checkpoint_limits_vllm_cutlass_and_ours_are_never_vllms() -> None:
    assert vllm_backends("compressed-tensors") - vllm_backends("fp8") == {"vllm_cutlass"}
    assert not {"fused_triton", "fused_decode"} & vllm_backends("compressed-tensors")


def test_shared_memory_counts_buffers_and_weight_tiles() -> None:
    tile = Tile(block_m=16, block_n=64, block_k=128, num_stages=4)
    one = (16 + 64) * 128
    assert shared_bytes(tile, 1) == 3 * one
    assert shared_bytes(tile, 1, wgmma=True) == 4 * one
    assert shared_bytes(tile, 2, weight_tiles=2) == 3 * (16 + 128) * 128 * 2
    assert shared_bytes(tile.model_copy(update={"num_stages": 1}), 1) == one


def test_wgmma_needs_64_rows_of_the_left_operand_on_hopper() -> None:
    tile = Tile(block_m=16, block_n=64, block_k=64)
    assert uses_wgmma(tile, True, H200)
    assert not uses_wgmma(tile, False, H200)
    assert not uses_wgmma(tile.model_copy(update={"block_n": 32}), True, H200)
    assert not uses_wgmma(tile, True, L4)


def fused(gate_n: int, block_m: int = 64, block_k: int = 128, warps: int = 8) -> FusedTritonCandidate:
    tile = Tile(block_m=block_m, block_n=gate_n, block_k=block_k, num_warps=warps)
    return FusedTritonCandidate(gate_up=tile, down=tile)


@pytest.mark.parametrize(
    ("candidate", "shape", "words"),
    [
        # wgmma keeps all four buffers: 4 * (64 + 256) * 256 bytes.
        (triton(64, 256, 256, num_stages=4, num_warps=8), TENSOR, ("327680", "232448")),
        (triton(16, 128, 256), BLOCK, ("block_k 256", "128")),
        (triton(128, 256, 64, num_warps=1), BF16, ("1 warps",)),
        (fused(256, 128, 64, 2), TENSOR, ("accumulator", "2 warps")),
        (fused(256), BF16, ("shared memory",)),
    ],
)
def test_tiles_that_cannot_fit_are_refused(candidate: Candidate, shape: str, words: tuple[str, ...]) -> None:
    support = fits(candidate, Problem.parse(shape), H200)
    assert not support.ok
    for word in words:
        assert word in support.reason


def test_a_smaller_gpu_refuses_what_a_larger_one_takes() -> None:
    candidate = triton(64, 128, 256, num_stages=4, num_warps=8)
    assert fits(candidate, Problem.parse(TENSOR), H200).ok
    assert not fits(candidate, Problem.parse(TENSOR), L4).ok
    unknown = H200.model_copy(update={"capability": "12.0"})
    assert "101376" in fits(candidate, Problem.parse(TENSOR), unknown).reason
    assert min(MAX_SHARED_BYTES.values()) == 101_376


@pytest.mark.parametrize("candidate", [DeepGemmCandidate(), VllmCutlassCandidate(), triton(), fused(64)])
def test_ordinary_candidates_fit(candidate: Candidate) -> None:
    assert fits(candidate, Problem.parse(BLOCK), H200).ok


DECODE = FusedDecodeCandidate(
    block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=128
)
FUSED = FusedTritonCandidate(gate_up=triton(16).tile, down=triton(16).tile)


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (triton(48), "block_m 48"),
        (triton(16, num_warps=3), "num_warps 3"),
        (triton(16, 128, 96), "block_k 96"),
        (FUSED.model_copy(update={"down": triton(16, 96).tile}), "down.block_n 96"),
        (DECODE.model_copy(update={"gate_up_block_n": 48}), "gate_up_block_n 48"),
        (DECODE.model_copy(update={"num_warps": 3}), "num_warps 3"),
    ],
)
def test_sizes_that_triton_cannot_compile_are_refused(candidate: Candidate, said: str) -> None:
    answer = fits(candidate, Problem.parse(TENSOR), FULL)
    assert not answer.ok
    assert f"{said} is no power of two, which Triton cannot compile" in answer.reason
    for good in (triton(16), FUSED, DECODE):
        assert fits(good, Problem.parse(TENSOR), FULL).ok
