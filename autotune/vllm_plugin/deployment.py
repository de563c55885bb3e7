"""The MoE layers that this process builds, so that a table is applied only to the layer it was made for.

vLLM's tile look-up sees neither K nor top-k nor the kind of scales; the layers' own configuration does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import ACTIVATIONS, Problem, Scheme

CONFIG_FIELDS = (
    "num_experts", "num_local_experts", "intermediate_size_per_partition", "hidden_dim",
    "experts_per_token", "activation", "moe_parallel_config", "moe_backend", "has_bias", "is_lora_enabled",
    "swiglu_limit", "ep_size", "in_dtype",
)  # fmt: skip
"""Fields of vLLM's FusedMoEConfig that are read."""


@dataclass
class Layer:
    """One layer: vLLM's configuration object (read late, since vLLM pads it after building it)."""

    config: Any
    scheme: Scheme | None = None
    scheme_known: bool = False
    moved_to: str | None = None
    """Backend that the static choice put first for it."""

    def refusal(self) -> str:
        """Why no table covers this layer, or an empty string."""
        config = self.config
        if config.is_lora_enabled:
            return "LoRA is enabled"
        # Every scheme is measured with bf16 activations. By name: torch may not be imported yet.
        if str(config.in_dtype) != "torch.bfloat16":
            return f"activations in {str(config.in_dtype).removeprefix('torch.')}, not bfloat16"
        if config.has_bias:
            return "the layer has biases"
        if config.activation.value not in ACTIVATIONS:
            return f"activation {config.activation.value} is not measured"
        if config.swiglu_limit is not None and config.activation.value != "swigluoai":
            return "the activation is clamped"
        parallel = config.moe_parallel_config
        if parallel.use_all2all_kernels or parallel.dp_size > 1:
            return "data or sequence parallel experts"
        if parallel.enable_eplb or config.num_local_experts * config.ep_size != config.num_experts:
            return "experts are not split evenly"
        if self.scheme_known and self.scheme is None:
            return "the quantization is not one that is measured"
        if self.scheme is not None and self._made(self.scheme) is None:
            return "its dimensions are not those of a layer that can be swept"
        return ""

    def could_be(self, problem: Problem) -> bool:
        """Whether a problem describes this layer, as far as its configuration tells."""
        config = self.config
        dimensions = (
            config.num_local_experts, config.intermediate_size_per_partition, config.hidden_dim,
            config.experts_per_token, config.activation.value, config.ep_size,
        )  # fmt: skip
        theirs = (problem.E, problem.N, problem.K, problem.topk, problem.act, problem.ep)
        if str(config.in_dtype) != "torch.bfloat16":
            return False
        return dimensions == theirs and (not self.scheme_known or self.scheme is problem.scheme)

    def problem(self) -> Problem | None:
        """The layer as a problem; None where `refusal` gives a reason or the scheme is not known."""
        return None if self.scheme is None or self.refusal() else self._made(self.scheme)

    def _made(self, scheme: Scheme) -> Problem | None:
        config = self.config
        try:
            return Problem(
                E=config.num_local_experts,
                N=config.intermediate_size_per_partition,
                K=config.hidden_dim,
                topk=config.experts_per_token,
                scheme=scheme,
                act=config.activation.value,
                ep=config.ep_size,
            )
        except ValidationError:
            return None


class Deployment:
    """Layers in the order in which vLLM builds them. `generation` changes when something is learnt."""

    def __init__(self) -> None:
        self._layers: dict[int, Layer] = {}
        self.generation = 0

    def layer(self, config: Any) -> Layer:
        """The entry of a configuration object, made on first sight."""
        found = self._layers.get(id(config))
        if found is None:
            # The entry keeps the object alive, so that its id names it for good.
            found = self._layers[id(config)] = Layer(config)
            self.generation += 1
        return found

    def learn(self, config: Any, scheme: Scheme | None) -> Layer:
        """Note a layer's scheme; None is one that no table covers."""
        layer = self.layer(config)
        if not layer.scheme_known or layer.scheme is not scheme:
            layer.scheme, layer.scheme_known = scheme, True
            self.generation += 1
        return layer

    def problems(self) -> list[Problem]:
        """The distinct problems of the layers that a table may cover, as text orders them."""
        found = {layer.problem() for layer in self._layers.values()}
        return sorted((problem for problem in found if problem is not None), key=str)

    def with_shape(self, experts: int, intermediate: int) -> list[Layer]:
        """Layers whose second weight has these dimensions, as vLLM's tile look-up sees it."""
        return [
            layer
            for layer in self._layers.values()
            if (layer.config.num_local_experts, layer.config.intermediate_size_per_partition)
            == (experts, intermediate)
        ]


def checkpoint_of(quantization: object) -> Checkpoint | None:
    """vLLM's quantization method name as a checkpoint format; None if it is neither of those measured."""
    if quantization is None:
        return "unquantized"
    if quantization == "fp8":
        return "fp8"
    return "compressed-tensors" if quantization == "compressed-tensors" else None
