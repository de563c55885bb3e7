"""What each backend is and which problems it takes. Imports no torch: replay and choosing use it too."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from autotune.vocabulary.candidate import (
    BACKENDS,
    BackendName,
    Candidate,
    FusedDecodeCandidate,
    Tile,
    not_compilable,
)
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import UnknownNameError
from autotune.vocabulary.problem import Problem, Scheme


@dataclass(frozen=True)
class Support:
    """Whether a backend takes a problem; `reason` is set when it does not."""

    ok: bool
    reason: str = ""


YES = Support(True)


def _no(reason: str) -> Support:
    return Support(False, reason)


def _capability(environment: Environment) -> tuple[int, int]:
    major, minor = environment.capability.split(".")
    return int(major), int(minor)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparing: 12.8 -> (12, 8), 13.0rc1 -> (13, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _needs_vllm(environment: Environment) -> Support:
    if environment.vllm is None:
        return _no("vLLM is not installed here; install it with `pip install vllm`")
    return YES


def _triton(problem: Problem, environment: Environment) -> Support:
    if problem.scheme.is_fp8 and _capability(environment) < (8, 9):
        return _no(f"FP8 needs compute capability 8.9, this GPU has {environment.capability}")
    return _block_divides(problem, environment)


def _block_divides(problem: Problem, environment: Environment) -> Support:
    if problem.scheme is Scheme.FP8_BLOCK128 and (problem.N % 128 or problem.K % 128):
        return _no(f"block scales of 128 need N and K divisible by 128, not N={problem.N}, K={problem.K}")
    return _needs_vllm(environment)


def _vllm_cutlass(problem: Problem, environment: Environment) -> Support:
    if problem.scheme not in (Scheme.FP8_TENSOR, Scheme.FP8_CHANNEL):
        return _no("vLLM's CUTLASS MoE takes FP8 with per-tensor or per-channel scales only")
    if not problem.gated:
        return _no(f"activation {problem.act}: vLLM's CUTLASS MoE takes gated activations only")
    if problem.N % 16 or problem.K % 16:
        return _no(f"16-byte alignment needs N and K divisible by 16, not N={problem.N}, K={problem.K}")
    if _capability(environment)[0] not in (9, 10):
        return _no(f"needs compute capability 9.x or 10.x, this GPU has {environment.capability}")
    return _needs_vllm(environment)


def _flashinfer_cutlass(problem: Problem, environment: Environment) -> Support:
    # vLLM flashinfer_cutlass_moe.py, FlashInferExperts._supports_quant_scheme.
    if problem.scheme is Scheme.FP8_CHANNEL:
        return _no("scheme fp8_channel: FlashInfer's CUTLASS MoE takes bf16, fp8_tensor and fp8_block128")
    if problem.act not in ("silu", "gelu_tanh", "relu2_no_mul"):
        return _no(f"activation {problem.act} is not in FlashInfer's CUTLASS MoE")
    if _capability(environment)[0] not in (9, 10, 12):
        return _no(f"needs compute capability 9.0 or newer, this GPU has {environment.capability}")
    if problem.scheme is Scheme.FP8_BLOCK128:
        refusal = _flashinfer_block(problem, environment)
        if not refusal.ok:
            return refusal
    elif problem.N % 16 or problem.K % 16:
        return _no(f"16-byte alignment needs N and K divisible by 16, not N={problem.N}, K={problem.K}")
    if environment.flashinfer is None:
        return _no(
            "FlashInfer is not usable here; install it with `pip install flashinfer-python flashinfer-cubin`"
        )
    return _needs_vllm(environment)


def _flashinfer_block(problem: Problem, environment: Environment) -> Support:
    """FlashInfer's block-scaled path (flashinfer/fused_moe/core.py, `use_deepseek_fp8_block_scale`)."""
    if environment.capability != "9.0":
        return _no(
            f"FlashInfer's block-scaled CUTLASS MoE needs compute capability 9.0, "
            f"this GPU has {environment.capability}"
        )
    if environment.cuda is not None and _numbers(environment.cuda) < (12, 8):
        return _no(f"FlashInfer's block-scaled CUTLASS MoE needs CUDA 12.8 or newer, not {environment.cuda}")
    if problem.act != "silu":
        return _no(f"activation {problem.act}: FlashInfer with block scales is driven with silu only here")
    return _block_divides(problem, environment)


def tunes_flashinfer(problem: Problem) -> bool:
    """Whether FlashInfer's autotuner has a choice there: with block scales it runs one fixed tactic."""
    return problem.scheme is not Scheme.FP8_BLOCK128


def _deep_gemm(problem: Problem, environment: Environment) -> Support:
    if problem.scheme is not Scheme.FP8_BLOCK128:
        return _no("DeepGEMM takes FP8 with 128x128 block scales only")
    if problem.act != "silu":
        return _no(f"activation {problem.act}: DeepGEMM's experts take silu only")
    # TritonOrDeepGemmExperts runs Triton for N <= 512 (vLLM deep_gemm_moe.py, _valid_deep_gemm).
    if problem.K % 128 or problem.N % 128:
        return _no(f"DeepGEMM needs N and K divisible by 128, not N={problem.N}, K={problem.K}")
    if problem.N <= 512:
        return _no(f"vLLM runs Triton instead of DeepGEMM for N <= 512 (N={problem.N})")
    if _capability(environment)[0] not in (9, 10):
        return _no(f"needs compute capability 9.0 or 10.x, this GPU has {environment.capability}")
    return _needs_vllm(environment)


def _fused_triton(problem: Problem, environment: Environment) -> Support:
    if problem.act != "silu":
        return _no(f"activation {problem.act} is not in fused_triton, which computes silu")
    if problem.scheme.is_fp8 and _capability(environment) < (8, 9):
        return _no(f"FP8 needs compute capability 8.9, this GPU has {environment.capability}")
    if problem.scheme is Scheme.FP8_BLOCK128 and (problem.N % 128 or problem.K % 128):
        return _no(f"block scales of 128 need N and K divisible by 128, not N={problem.N}, K={problem.K}")
    if problem.N % 16 or problem.K % 16:
        return _no(f"16-byte rows need N and K divisible by 16, not N={problem.N}, K={problem.K}")
    if environment.triton is None:
        return _no("Triton is not installed here; install it with `pip install triton`")
    return YES


DECODE_PAIRS = 1024
"""Most (token, slot) pairs of a call that `fused_decode` takes: every block scans them all."""


def _fused_decode(problem: Problem, environment: Environment) -> Support:
    if problem.scheme is Scheme.FP8_CHANNEL:
        return _no("scheme fp8_channel: fused_decode has no whole row at hand for a scale per token")
    if problem.act != "silu":
        return _no(f"activation {problem.act} is not in fused_decode, which computes silu")
    if problem.ep > 1:
        return _no(f"ep={problem.ep}: fused_decode takes all experts on one GPU only")
    return _fused_triton(problem, environment)


@dataclass(frozen=True)
class BackendSpec:
    """A backend's entry in the registry."""

    name: BackendName
    supports: Callable[[Problem, Environment], Support]


_SPECS: tuple[BackendSpec, ...] = (
    BackendSpec("triton", _triton),
    BackendSpec("vllm_cutlass", _vllm_cutlass),
    BackendSpec("flashinfer_cutlass", _flashinfer_cutlass),
    BackendSpec("deep_gemm", _deep_gemm),
    BackendSpec("fused_triton", _fused_triton),
    BackendSpec("fused_decode", _fused_decode),
)
_BY_NAME = {spec.name: spec for spec in _SPECS}
assert tuple(_BY_NAME) == BACKENDS


def backend_spec(name: str) -> BackendSpec:
    """The registry's entry.

    Raises:
        UnknownNameError: for a backend that does not exist.
    """
    if name not in _BY_NAME:
        raise UnknownNameError("backend", name, BACKENDS)
    return _BY_NAME[name]


def backends_for(problem: Problem, environment: Environment) -> dict[BackendName, Support]:
    """Every backend with its answer, in registry order."""
    return {spec.name: spec.supports(problem, environment) for spec in _SPECS}


MAX_SHARED_BYTES = {(8, 0): 163_840, (8, 6): 101_376, (8, 9): 101_376, (9, 0): 232_448, (10, 0): 232_448}
"""Largest dynamic shared memory of a block by compute capability (CUDA C++ Programming Guide, technical
specifications per compute capability)."""


WARP_REGISTERS = 32 * 255
"""32-bit registers that the threads of a warp can hold: 255 each on every GPU since Kepler."""


HELD_BYTES_A_WARP = 32 * 128 * 4
"""Most bytes of weights that `fused_decode` holds in a warp's registers: 128 of a thread's 255."""


def uses_wgmma(tile: Tile, swap_ab: bool, environment: Environment) -> bool:
    """Whether Triton compiles this tile to warp-group MMA, whose left operand needs 64 rows (Hopper only)."""
    return environment.capability == "9.0" and (tile.block_n if swap_ab else tile.block_m) >= 64


def shared_bytes(tile: Tile, element_bytes: int, weight_tiles: int = 1, wgmma: bool = False) -> int:
    """Shared memory that Triton's software pipeline needs for one tile, bytes.

    Each buffer holds an activation tile and `weight_tiles` weight tiles (two where gate and up are computed
    together). There are `num_stages` buffers with warp-group MMA, which reads its operands from shared
    memory while the next ones arrive, and one fewer without: seen in the compiled kernels' metadata
    (Triton 3.6). An estimate from below: Triton may add scratch for layout changes.
    """
    stage = (tile.block_m + weight_tiles * tile.block_n) * tile.block_k * element_bytes
    return stage * max(1, tile.num_stages - (0 if wgmma else 1))


def decode_shared_bytes(candidate: FusedDecodeCandidate, problem: Problem) -> int:
    """Shared memory of `fused_decode` on Hopper, bytes: the larger of its two GEMMs (see `shared_bytes`).

    Activations that are quantized as they are read lie there in bf16, one buffer fewer of them, with a
    quantized tile beside.
    """
    fp8 = problem.scheme.is_fp8

    def one(m: int, rows: int, block_k: int, stages: int, quantized: bool) -> int:
        wgmma = m >= 16 and candidate.num_warps >= 4 and rows >= 64
        if stages == 0:
            # Seen in compiled kernels: the whole run of steps goes there; with block scales one at a time.
            steps = -(-problem.N // block_k)
            run = 1 if problem.scheme.block_shape else -(-steps // candidate.down_split_k)
            return (rows + m) * block_k * run * problem.scheme.weight_bytes if wgmma else 0
        fewer = max(1, stages - 1)
        buffers = stages if wgmma else fewer
        weights = rows * block_k * problem.scheme.weight_bytes
        if quantized or not fp8:
            return buffers * (weights + m * block_k * problem.scheme.weight_bytes)
        return buffers * weights + fewer * m * block_k * 2 + m * block_k

    def both(m: int, fewer: int) -> int:
        """Its two GEMMs for m rows together, with so many stages fewer."""

        def stages(number: int) -> int:
            return number - fewer if number > 2 else number

        return max(
            one(
                m,
                2 * candidate.gate_up_block_n,
                candidate.gate_up_block_k,
                stages(candidate.gate_up_stages),
                candidate.quantize_first,
            ),
            one(
                m,
                candidate.down_block_n,
                candidate.down_block_k,
                stages(candidate.down_stages),
                problem.scheme is Scheme.FP8_TENSOR,
            ),
        )

    crowded = both(candidate.crowded_block_m, 1) if candidate.crowded_block_m > candidate.block_m else 0
    return max(both(candidate.block_m, 0), crowded)


def _decode_fits(candidate: FusedDecodeCandidate, problem: Problem, limit: int) -> Support:
    needed = decode_shared_bytes(candidate, problem)
    if needed > limit:
        return _no(f"{candidate} needs about {needed} bytes of shared memory, the GPU has {limit}")
    steps = {candidate.gate_up_block_k, candidate.down_block_k}
    if problem.scheme is Scheme.FP8_BLOCK128 and steps != {128}:
        return _no(f"{candidate}: with block scales each step must be one scale block, 128 wide")
    if candidate.down_split_k > -(-problem.N // candidate.down_block_k):
        return _no(f"{candidate} splits N={problem.N} into more parts than it has steps")
    if candidate.down_stages == 0:
        held = candidate.down_block_n * -(-problem.N // candidate.down_split_k) * problem.scheme.weight_bytes
        if held > candidate.num_warps * HELD_BYTES_A_WARP:
            return _no(
                f"{candidate} would hold {held} bytes of weights in {candidate.num_warps} warps' registers"
            )
    return YES


def fits(candidate: Candidate, problem: Problem, environment: Environment) -> Support:
    """Prune before compiling: whether a candidate's tiles can fit the GPU's shared memory and the scheme."""
    limit = MAX_SHARED_BYTES.get(_capability(environment), 101_376)
    width = problem.scheme.weight_bytes
    odd = not_compilable(candidate)
    if odd:
        return _no(f"{candidate}: {'; '.join(odd)}, which Triton cannot compile")
    if candidate.backend == "triton":
        needs = [(candidate.tile, 1)]
    elif candidate.backend == "fused_triton":
        needs = [(candidate.gate_up, 2), (candidate.down, 1)]
    elif candidate.backend == "fused_decode":
        return _decode_fits(candidate, problem, limit)
    else:
        return YES
    swap_ab = candidate.swap_ab
    for tile, weight_tiles in needs:
        needed = shared_bytes(tile, width, weight_tiles, uses_wgmma(tile, swap_ab, environment))
        if needed > limit:
            return _no(f"tile {tile} needs about {needed} bytes of shared memory, the GPU has {limit}")
        if problem.scheme is Scheme.FP8_BLOCK128 and tile.block_k > 128:
            return _no(f"block_k {tile.block_k} spans more than one 128-wide scale block")
        if tile.block_m * tile.block_n * weight_tiles > tile.num_warps * WARP_REGISTERS:
            return _no(f"tile {tile} needs more accumulator registers than {tile.num_warps} warps have")
    return YES


__all__ = [
    "DECODE_PAIRS",
    "BackendSpec",
    "Support",
    "backend_spec",
    "backends_for",
    "fits",
    "shared_bytes",
    "tunes_flashinfer",
]
