"""Notes the configuration of every MoE layer that vLLM builds."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from autotune.vllm_plugin.deployment import CONFIG_FIELDS
from autotune.vllm_plugin.features import Feature
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.surface import require_attribute, require_fields, require_function


class LayerObserver(Feature):
    """Sees `FusedMoEConfig` objects as they are made."""

    name = "layers"
    title = "seeing the model's MoE layers"
    module = "vllm.model_executor.layers.fused_moe.config"

    def patches(self, module: ModuleType) -> list[Patch]:
        config_class = require_attribute(module, "FusedMoEConfig")
        require_fields(config_class, CONFIG_FIELDS)
        require_function(config_class, "__post_init__", ("self",))
        return [Patch(config_class, "__post_init__", self._noting)]

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def post_init(config: Any) -> None:
            original(config)
            if self.context.ranks is not None:
                self.context.ranks.require()
            self.context.deployment.layer(config)

        return post_init
