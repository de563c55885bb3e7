"""vLLM's Triton MoE kernel without specialization on what follows from the token count."""

from __future__ import annotations

import importlib
from types import ModuleType

from autotune.kernels.unspecialized import VLLM_SCALARS, without_specialization
from autotune.vllm_plugin.features import DeclinedError, Feature
from autotune.vllm_plugin.patching import Replacement
from autotune.vllm_plugin.surface import SurfaceChangedError, require_attribute


class Recompiles(Feature):
    """Keeps `fused_moe_kernel` from compiling again for new token counts while it serves.

    The same bits at the same speed: benchmarks/recompiles.py, on an H200 within 0.3% at 1 to 4,096 tokens in
    three schemes (benchmarks/results/2026-11-30-recompiles). `AUTOTUNE_UNSPECIALIZE=0` leaves vLLM's kernel,
    as does an environment that no table fits (`start.fitting`).
    """

    name = "recompiles"
    title = "no compilation for a new token count"
    module = "vllm.model_executor.layers.fused_moe.fused_moe"

    def patches(self, module: ModuleType) -> list[Replacement]:
        if importlib.import_module("vllm.envs").VLLM_BATCH_INVARIANT:
            raise DeclinedError("VLLM_BATCH_INVARIANT asks for vLLM's own kernels")
        kernel = require_attribute(module, "fused_moe_kernel")
        try:
            without_specialization(kernel, VLLM_SCALARS)
        except (ImportError, TypeError, ValueError) as error:
            raise SurfaceChangedError(str(error)) from error
        return [Replacement(module, "fused_moe_kernel", lambda k: without_specialization(k, VLLM_SCALARS))]
