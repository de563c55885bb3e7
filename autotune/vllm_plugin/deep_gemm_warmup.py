"""vLLM's warm-up of DeepGEMM, which looks at the class of a layer's experts, and a router hides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from autotune.vllm_plugin.features import Feature
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.route_plan import RoutePlan
from autotune.vllm_plugin.surface import require_function, require_source


class DeepGemmWarmup(Feature):
    """Shows vLLM's warm-up of DeepGEMM the DeepGEMM experts that stand behind a router."""

    name = "deep-gemm-warmup"
    title = "vLLM's warm-up of DeepGEMM for routed layers"
    module = "vllm.model_executor.warmup.deep_gemm_warmup"
    _question = "_fused_moe_grouped_gemm_may_use_deep_gemm"

    def patches(self, module: ModuleType) -> Sequence[Patch]:
        require_function(module, self._question, ("module",))
        require_source(module, self._question, ("fused_experts = moe_kernel.impl.fused_experts",))
        return [Patch(module, self._question, self._asking)]

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def may_use_deep_gemm(module: Any) -> Any:
            kernel = getattr(getattr(module, "_quant_method", None), "moe_kernel", None)
            impl = getattr(kernel, "impl", None)
            router = getattr(impl, "fused_experts", None)
            if not isinstance(getattr(router, "plan", None), RoutePlan):
                return original(module)
            found = False
            for inner in router.inners:  # type: ignore[union-attr]
                if inner.experts is not None and not found:
                    impl.fused_experts = inner.experts  # type: ignore[union-attr]
                    try:
                        found = bool(original(module))
                    finally:
                        impl.fused_experts = router  # type: ignore[union-attr]
            return found

        return may_use_deep_gemm
