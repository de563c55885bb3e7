"""The table's static choice, put in front of vLLM's own order of backends."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any

from autotune.vllm_plugin.base_choice import choose_base
from autotune.vllm_plugin.deployment import Layer, checkpoint_of
from autotune.vllm_plugin.features import Context, Feature
from autotune.vllm_plugin.log import first_time, info_once, warn_once
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.static_choice import choose_backend, explicit_choice
from autotune.vllm_plugin.surface import SurfaceChangedError, require_attribute, require_function
from autotune.vocabulary.candidate import BackendName
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Scheme

VLLM_NAMES: dict[BackendName, str] = {
    "triton": "TRITON",
    "vllm_cutlass": "VLLM_CUTLASS",
    "flashinfer_cutlass": "FLASHINFER_CUTLASS",
    "deep_gemm": "DEEPGEMM",
}
"""Our names as members of vLLM's backend enumerations."""


class _StaticBackend(Feature):
    """Moves one entry of the list that vLLM tries in order; what does not run there falls through.

    Args:
        move: False only learns each layer's scheme, for the tiles.
    """

    members: tuple[str, ...]
    layers: str
    enumeration: str
    arguments: tuple[str, ...]

    def __init__(self, context: Context, move: bool) -> None:
        super().__init__(context)
        self._move = move
        if not move:
            self.title = f"seeing the quantization of {self.layers} layers, which tiles depend on"

    @abstractmethod
    def scheme(self, module: Any, keys: tuple[Any, ...]) -> Scheme | None:
        """The scheme that vLLM's quantization keys name; None for one that is not in the vocabulary."""

    def patches(self, module: ModuleType) -> list[Patch]:
        require_function(module, "_get_priority_backends", self.arguments)
        enumeration = require_attribute(module, self.enumeration)
        missing = [name for name in self.members if name not in enumeration.__members__]
        if missing:
            raise SurfaceChangedError(f"{self.enumeration} has no {', '.join(missing)}")
        return [Patch(module, "_get_priority_backends", lambda original: self._reordering(module, original))]

    def _reordering(self, module: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        enumeration = getattr(module, self.enumeration)

        def _get_priority_backends(moe_config: Any, *keys: Any, **named: Any) -> Any:
            order = original(moe_config, *keys, **named)
            try:
                layer = self.context.deployment.learn(
                    moe_config, self.scheme(module, (*keys, *named.values()))
                )
                backend = self._backend(layer) if self._move else None
                if backend is None:
                    return order
                member = enumeration[VLLM_NAMES[backend]]
                if member not in order:
                    warn_once(f"static choice {backend} is not among vLLM's backends for {layer.problem()}")
                    return order
                layer.moved_to = backend
                self.context.deployment.generation += 1
                return [member, *(other for other in order if other is not member)]
            except Exception as error:
                # Between vLLM and its weights: a failure costs speed, never the server.
                warn_once(f"static choice skipped: {type(error).__name__}: {error}")
                return order

        return _get_priority_backends

    def _backend(self, layer: Layer) -> BackendName | None:
        problem = layer.problem()
        if problem is None:
            info_once(f"no static choice for a layer: {layer.refusal()}")
            return None
        explicit = explicit_choice()
        if layer.config.moe_backend != "auto":
            info_once(f"no static choice for {problem}: moe_backend is {layer.config.moe_backend}, as set")
            return None
        if explicit:
            info_once(f"no static choice for {problem}: {explicit} is set")
            return None
        checkpoint = current_checkpoint(problem.scheme)
        router = self.context.router
        routed = router is not None and not router.refusal(layer)
        choose = choose_base if routed else choose_backend
        chosen = choose(self.context.client, problem, checkpoint)
        if chosen.backend is None or VLLM_NAMES.get(chosen.backend) not in self.members:
            what = "the backend that the weights are prepared for" if routed else "static choice"
            if first_time(problem, chosen.detail):
                info_once(f"{what} for {problem} stays vLLM's: {chosen.detail}")
            return None
        kind = "weights prepared for" if routed else "static choice"
        info_once(f"{kind} {'would be ' if self.context.observe else ''}{chosen.detail}")
        return None if self.context.observe else chosen.backend


class Fp8Backend(_StaticBackend):
    """FP8 layers."""

    name = "static-fp8"
    title = "static choice of the FP8 backend"
    layers = "FP8"
    module = "vllm.model_executor.layers.fused_moe.oracle.fp8"
    enumeration = "Fp8MoeBackend"
    members = ("TRITON", "VLLM_CUTLASS", "FLASHINFER_CUTLASS", "DEEPGEMM")
    arguments = ("moe_config", "weight_key", "activation_key")

    def scheme(self, module: Any, keys: tuple[Any, ...]) -> Scheme | None:
        q: Any = importlib.import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
        known = {
            (q.kFp8StaticTensorSym, q.kFp8StaticTensorSym): Scheme.FP8_TENSOR,
            (q.kFp8StaticChannelSym, q.kFp8DynamicTokenSym): Scheme.FP8_CHANNEL,
            (q.kFp8Static128BlockSym, q.kFp8Dynamic128Sym): Scheme.FP8_BLOCK128,
        }
        weight, activation = keys
        return known.get((weight, activation))


class UnquantizedBackend(_StaticBackend):
    """bf16 layers."""

    name = "static-bf16"
    title = "static choice of the bf16 backend"
    layers = "bf16"
    module = "vllm.model_executor.layers.fused_moe.oracle.unquantized"
    enumeration = "UnquantizedMoeBackend"
    members = ("TRITON", "FLASHINFER_CUTLASS")
    arguments = ("moe_config",)

    def patches(self, module: ModuleType) -> list[Patch]:
        require_attribute(module, "select_unquantized_moe_backend")
        return super().patches(module)

    def scheme(self, module: Any, keys: tuple[Any, ...]) -> Scheme | None:
        return Scheme.BF16


def current_checkpoint(scheme: Scheme) -> Checkpoint | None:
    """The checkpoint's format, from the configuration that vLLM is building a model with."""
    if scheme is Scheme.BF16:
        return "unquantized"
    try:
        config = importlib.import_module("vllm.config").get_current_vllm_config_or_none()
    except (ImportError, AttributeError):
        return None
    model = config.model_config if config is not None else None
    return checkpoint_of(model.quantization) if model is not None and model.quantization else None
