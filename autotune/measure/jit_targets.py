"""What `autotune jit audit` can look at: our kernels, vLLM's fused MoE, or a callable of the user's."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autotune.kernels.specs import DECODE_PAIRS, backend_spec
from autotune.vocabulary.candidate import Candidate, FusedDecodeCandidate, FusedTritonCandidate, Tile
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import MissingDependencyError, UnknownNameError, UsageError
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.text import printable

TARGETS = ("fused_triton", "fused_decode", "rope_fp8", "rope_fp8_naive", "vllm", "vllm_unspecialized")
Call = Callable[[int], object]


def own_candidate(name: str) -> Candidate:
    """A typical candidate of a kernel of ours; which one does not change what is specialized."""
    tile = Tile(block_m=16, block_n=64, block_k=128)
    if name == "fused_triton":
        return FusedTritonCandidate(gate_up=tile, down=tile, swap_ab=True)
    return FusedDecodeCandidate(
        block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=128
    )


def most_tokens(target: str, problem: Problem) -> int | None:
    """The largest token count that a target takes; None for any."""
    return DECODE_PAIRS // problem.topk if target == "fused_decode" else None


@contextmanager
def target_call(target: str, problem: Problem, measured: bool, gpu: str) -> Iterator[Call]:
    """The function to call with each token count.

    Args:
        measured: run on this machine's GPU; otherwise launches are only looked at, on CPU tensors.
        gpu: whose tuned tiles vLLM is asked for where there is no GPU.

    Raises:
        UnknownNameError, UsageError: for a target that does not exist, cannot run this problem, or fails in a
            call.
        MissingDependencyError: if vLLM is not installed.
    """
    if target in ("fused_triton", "fused_decode"):
        _require(target, target, problem)
        with _told_if_too_large(target, problem):
            yield _own(target, problem, measured)
    elif target in ("rope_fp8", "rope_fp8_naive"):
        yield _rope(target == "rope_fp8_naive", measured)
    elif target in ("vllm", "vllm_unspecialized"):
        _require(target, "triton", problem)
        with _told_if_too_large(target, problem), _vllm(target, problem, measured, gpu) as call:
            yield call
    else:
        yield _named(target)


def _require(target: str, backend: str, problem: Problem) -> None:
    somewhere = Environment(gpu="NVIDIA_H200", capability="9.0", triton="any", vllm="any")
    support = backend_spec(backend).supports(problem, somewhere)
    if not support.ok:
        raise UsageError(f"{target} does not take {problem}: {support.reason}.", "Choose another problem.")


@contextmanager
def _told_if_too_large(target: str, problem: Problem) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # What torch says of a size that no machine has, of one that this has not, and of a GPU's memory.
        words = ("can't allocate memory", "not enough memory", "calculation overflowed", "out of memory")
        if not isinstance(error, MemoryError) and not any(each in str(error) for each in words):
            raise
        raise UsageError(
            f"{target}: this machine has no memory for tensors of {problem}.",
            "Choose a smaller problem, or smaller --tokens.",
        ) from error


def _own(name: str, problem: Problem, measured: bool) -> Call:
    from autotune.kernels.backends.fused import unfilled
    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.weights import make_inputs, make_weights

    backend, candidate = get_backend(name), own_candidate(name)
    if measured:
        call = backend.bind(backend.prepare(make_weights(problem, 1)), candidate)
        return lambda tokens: call(make_inputs(problem, tokens, tokens))
    weights, _ = unfilled(problem, 1)
    return lambda tokens: backend.bind(weights, candidate)(unfilled(problem, tokens)[1])


def _rope(naive: bool, measured: bool) -> Call:
    import torch

    from autotune.kernels.rope_fp8.op import rope_fp8, rotary_table

    device = "cuda" if measured else "cpu"
    # Qwen3-30B-A3B's query heads.
    cos_sin = rotary_table(64, 128, device=device)

    def call(tokens: int) -> object:
        x = torch.empty(tokens, 32, 128, dtype=torch.bfloat16, device=device)
        return rope_fp8(x, torch.zeros(tokens, dtype=torch.int64, device=device), cos_sin, naive)

    return call


def import_fused_moe(on_gpu: bool) -> Any:
    """vLLM's module of Triton MoE kernels.

    Args:
        on_gpu: whether kernels are to run; without, vLLM is imported as on a machine with no GPU.

    Raises:
        MissingDependencyError: if it cannot be imported.
    """
    if not on_gpu:
        # With no device to find, vLLM takes Triton as installed and imports on a CPU machine.
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    # Its log would stand among the results otherwise.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        return importlib.import_module("vllm.model_executor.layers.fused_moe.fused_moe")
    except (Exception, SystemExit) as error:
        # Its modules ask their binaries while they are imported, and raise whatever these do.
        raise MissingDependencyError(
            f"vLLM cannot be imported here: {printable(str(error)) or type(error).__name__}.",
            "Run this in vLLM's own environment; in a clone in which `make test` has run, with "
            "PYTHONPATH=.cache/vllm/0.25.1:.cache/vllm/deps-cp311 in front (for Python 3.11).",
        ) from error


@contextmanager
def _vllm(target: str, problem: Problem, measured: bool, gpu: str) -> Iterator[Call]:
    module = import_fused_moe(measured)
    from autotune.kernels.backends.registry import get_backend, vllm_triton_config
    from autotune.kernels.unspecialized import VLLM_SCALARS, without_specialization
    from autotune.kernels.weights import make_inputs, make_weights

    backend = get_backend("triton")
    original = module.fused_moe_kernel
    platform = None if measured else _pretend(gpu)
    try:
        if target == "vllm_unspecialized":
            module.fused_moe_kernel = without_specialization(original, VLLM_SCALARS)
        if measured:
            prepared = backend.prepare(make_weights(problem, 1))
            yield lambda tokens: backend.bind(prepared, vllm_triton_config(problem, tokens))(
                make_inputs(problem, tokens, tokens)
            )
        else:
            yield lambda tokens: backend.compile_ahead(problem, tokens, vllm_triton_config(problem, tokens))
    finally:
        module.fused_moe_kernel = original
        if platform is not None:
            platform()


@contextmanager
def as_on(gpu: str) -> Iterator[None]:
    """Let vLLM's look-ups of tiles answer as on a Hopper GPU of that name."""
    undo = _pretend(gpu)
    try:
        yield
    finally:
        undo()


def _pretend(gpu: str) -> Callable[[], None]:
    platforms: Any = importlib.import_module("vllm.platforms")
    cls = type(platforms.current_platform)
    names = ("get_device_name", "is_device_capability")
    before = {name: cls.__dict__.get(name) for name in names}
    cls.get_device_name = classmethod(lambda _cls, device_id=0: gpu.replace("_", " "))
    cls.is_device_capability = classmethod(lambda _cls, capability, device_id=0: capability in (90, (9, 0)))

    def undo() -> None:
        for name, value in before.items():
            if value is None:
                delattr(cls, name)
            else:
                setattr(cls, name, value)

    return undo


def _named(target: str) -> Call:
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise UnknownNameError(
            "audit target", target, TARGETS, "Or name a function of the token count as module:function."
        )
    shown = printable(target)
    if module_name.startswith("."):
        raise UsageError(
            f"{shown} is relative, and there is no package to start from.", "Name the module in full."
        )
    try:
        call = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:
        # Whatever the module's own code raises.
        raise UsageError(f"{shown} cannot be imported: {_why(error)}.", "Check it and PYTHONPATH.") from error
    hint = (
        "It is called with each token count as its only argument. For a kernel name a function that "
        "launches it: def launch(tokens): kernel[grid](...)."
    )
    if not callable(call):
        raise UsageError(f"{shown} is no function.", hint)
    if any(kind(call) for kind in _LAZY):
        raise UsageError(
            f"{shown} is async or a generator: a call of it runs nothing.",
            "Name a plain function that does the launches.",
        )
    # Built-in functions need not have a signature.
    with contextlib.suppress(ValueError):
        signature = inspect.signature(call)
        try:
            signature.bind(1)
        except TypeError as error:
            raise UsageError(f"{shown} does not take a token count alone: {error}.", hint) from error

    def named(tokens: int) -> object:
        try:
            return call(tokens)
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"{shown} failed with {tokens} as its token count: {_why(error)}.",
                _NEEDS_GPU if "active drivers" in str(error) else hint,
            ) from error

    return named


_LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_NEEDS_GPU = (
    "Triton looks for a GPU there, as @triton.autotune does to time its configurations. Use --run on a "
    "machine with a GPU, or name a function that launches the kernel below it with one of them: "
    "kernel.fn[grid](..., BLOCK=64)."
)


def _why(error: BaseException) -> str:
    """An exception of foreign code on one line, without a full stop."""
    text = " ".join(printable(str(error)).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
