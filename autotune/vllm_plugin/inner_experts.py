"""The backends that a router adds to what vLLM chose, built over the very tensors of the layer."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from autotune.vllm_plugin import tile_map
from autotune.vllm_plugin.own_experts import OwnKernel
from autotune.vllm_plugin.patching import is_patched
from autotune.vllm_plugin.route_plan import Shapes
from autotune.vllm_plugin.route_reach import OWN_BACKENDS, Entry, RowOrder
from autotune.vllm_plugin.surface import SurfaceChangedError, require_attribute
from autotune.vocabulary.candidate import BackendName, TritonCandidate
from autotune.vocabulary.problem import Problem, Scheme

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
_EXPERTS = f"{FUSED_MOE}.experts"
_CLASSES: dict[BackendName, tuple[str, str]] = {
    "triton": (f"{_EXPERTS}.triton_moe", "TritonExperts"),
    "vllm_cutlass": (f"{_EXPERTS}.cutlass_moe", "CutlassExpertsFp8"),
    "deep_gemm": (f"{_EXPERTS}.deep_gemm_moe", "DeepGemmExperts"),
}
BASES: dict[tuple[str, str], BackendName] = {
    **{where: backend for backend, where in _CLASSES.items()},
    (f"{_EXPERTS}.flashinfer_cutlass_moe", "FlashInferExperts"): "flashinfer_cutlass",
    (f"{_EXPERTS}.triton_cutlass_moe", "TritonOrCutlassExperts"): "vllm_cutlass",
    (f"{_EXPERTS}.triton_deep_gemm_moe", "TritonOrDeepGemmExperts"): "deep_gemm",
}
"""vLLM's classes of experts by module and name. The last two hand calls to two of them by shape."""


@dataclass(frozen=True)
class Inner:
    """One way to run the layer.

    Args:
        apply: takes what vLLM's experts take, by position.
        raw_input: reads the input unquantized; otherwise as vLLM's prepare step quantizes it.
        workspaces: vLLM's `workspace_shapes` of these experts; None if they need none of vLLM's.
        experts: vLLM's object behind it, if there is one.
        lay_out: of a kernel of ours, the launches of a call: its token count and the two weights.
        own: the kernel of ours.
    """

    apply: Callable[..., Any]
    raw_input: bool
    workspaces: Callable[..., Shapes] | None = None
    experts: Any = None
    lay_out: Callable[[int, Any, Any], Any] | None = None
    own: OwnKernel | None = None


class UnavailableError(Exception):
    """A backend cannot be added here; the message says why."""


def base_backend(experts: Any) -> BackendName | None:
    """The backend behind experts that vLLM built, or None for a class that no table speaks of."""
    return BASES.get((type(experts).__module__, type(experts).__qualname__))


@dataclass(frozen=True)
class Layer:
    """What the added backends of one layer are built from.

    Args:
        base: vLLM's experts of the layer.
        order: of the first weight's rows, as prepared for them.
    """

    problem: Problem
    base: Any
    order: RowOrder


def build(layer: Layer, entry: Entry, made: dict[BackendName, Any]) -> Inner:
    """The experts of one route.

    Args:
        made: vLLM experts of this layer built so far, by backend; one object serves all routes of a backend.

    Raises:
        UnavailableError: if this vLLM or this machine cannot run the backend here.
    """
    if entry.backend in OWN_BACKENDS:
        try:
            kernel = OwnKernel(layer.problem, entry.candidate, layer.base, layer.order)
        except ImportError as error:
            raise UnavailableError(f"{type(error).__name__}: {error}") from error
        return Inner(kernel.apply, raw_input=True, lay_out=kernel.lay_out, own=kernel)
    experts = made.get(entry.backend)
    if experts is None:
        experts = made[entry.backend] = _vllm_experts(layer, entry.backend)
    apply = experts.apply
    if isinstance(entry.candidate, TritonCandidate):
        apply = _with_tile(apply, entry.candidate)
    return Inner(apply, bool(experts.expects_unquantized_inputs), experts.workspace_shapes, experts)


def _vllm_experts(layer: Layer, backend: BackendName) -> Any:
    name, cls = _CLASSES[backend]
    try:
        module = importlib.import_module(name)
        kind = require_attribute(module, cls)
        ok, reason = _supported(kind, layer)
        if not ok:
            raise UnavailableError(str(reason))
        if layer.order == "up_gate":
            kind = {"triton": _up_first_triton, "vllm_cutlass": _up_first_cutlass}[backend](kind)
        if backend == "deep_gemm":
            # Loads DeepGEMM's functions, and settles the format of its scales.
            importlib.import_module("vllm.utils.deep_gemm").is_deep_gemm_e8m0_used()
        experts = kind(moe_config=layer.base.moe_config, quant_config=layer.base.quant_config)
    except UnavailableError:
        raise
    except SurfaceChangedError as error:
        raise UnavailableError(f"this vLLM differs from what is needed: {error}") from error
    except Exception as error:
        raise UnavailableError(f"{type(error).__name__}: {error}") from error
    ours, theirs = (e.finalize_weight_and_reduce_impl() for e in (experts, layer.base))
    if type(ours) is not type(theirs):
        raise UnavailableError(
            f"its output needs {type(ours).__name__}, that of vLLM's choice {type(theirs).__name__}"
        )
    return experts


def _supported(kind: Any, layer: Layer) -> tuple[bool, str | None]:
    """vLLM's own answer on whether the class takes this layer."""
    quant = importlib.import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
    keys = {
        Scheme.BF16: (None, None),
        Scheme.FP8_TENSOR: (quant.kFp8StaticTensorSym, quant.kFp8StaticTensorSym),
        Scheme.FP8_CHANNEL: (quant.kFp8StaticChannelSym, quant.kFp8DynamicTokenSym),
        Scheme.FP8_BLOCK128: (quant.kFp8Static128BlockSym, quant.kFp8Dynamic128Sym),
    }
    answer: tuple[bool, str | None] = kind.is_supported_config(
        kind, layer.base.moe_config, *keys[layer.problem.scheme], kind.activation_format()
    )
    return answer


def _with_tile(apply: Callable[..., Any], candidate: TritonCandidate) -> Callable[..., Any]:
    """Triton with the route's own tile, whatever else answers the look-up of tiles."""
    fused_moe = importlib.import_module(f"{FUSED_MOE}.fused_moe")
    if not (is_patched(fused_moe, "get_moe_configs") and is_patched(fused_moe, "enable_swap_ab")):
        raise UnavailableError("Triton cannot be given the route's tile: the tiles feature is off")
    config = tile_map.TileConfig(candidate.tile.vllm_config(), candidate.swap_ab)
    tiles = tile_map.TileMap(lambda tokens: config)

    def with_tile(*arguments: Any) -> Any:
        tile_map.force(tiles)
        try:
            return apply(*arguments)
        finally:
            tile_map.force(None)

    return with_tile


def _mul_and_silu() -> Any:
    import torch

    try:
        return torch.ops._C.mul_and_silu
    except AttributeError:
        raise UnavailableError("this vLLM has no mul_and_silu, which takes up before gate") from None


def _up_first_triton(triton_experts: Any) -> Any:
    """Triton's experts for weights with up rows before gate rows."""
    mul_and_silu = _mul_and_silu()
    require_attribute(triton_experts, "activation")

    class UpFirstTritonExperts(triton_experts):  # type: ignore[misc]
        def activation(self, activation: Any, output: Any, input: Any, **_: Any) -> None:
            # 0.33 adds keyword arguments that let rows of other ranks be skipped; computing them is harmless.
            if activation.value != "silu" or self.quant_config.gemm1_clamp_limit is not None:
                raise ValueError(f"activation {activation.value} with up before gate")
            mul_and_silu(output, input)

    return UpFirstTritonExperts


def _up_first_cutlass(cutlass_experts: Any) -> Any:
    """vLLM CUTLASS's experts for weights with up rows before gate rows.

    Their activation is a function of the module: these get copies of the two functions between it and
    `apply`, so that nobody else's call changes.
    """
    mul_and_silu = _mul_and_silu()
    inherited = require_attribute(cutlass_experts, "apply")
    run = inherited.__globals__.get("run_cutlass_moe_fp8")

    def apply_moe_activation(activation: Any, output: Any, input: Any, **_: Any) -> None:
        if activation.value != "silu":
            raise ValueError(f"activation {activation.value} with up before gate")
        mul_and_silu(output, input)

    run = _with_globals(run, apply_moe_activation=apply_moe_activation)
    namespace = {"apply": _with_globals(inherited, run_cutlass_moe_fp8=run)}
    return type("UpFirstCutlassExpertsFp8", (cutlass_experts,), namespace)


def _with_globals(function: Any, **names: Any) -> FunctionType:
    """A copy of a function that sees these globals in place of its module's.

    Raises:
        SurfaceChangedError: if it is no plain function, or does not use them.
    """
    if not isinstance(function, FunctionType):
        raise SurfaceChangedError(f"{function!r} is no plain function")
    for name in names:
        if name not in function.__code__.co_names:
            raise SurfaceChangedError(f"{function.__qualname__} does not call {name}")
    copy = FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
