"""Reading a Hugging Face `config.json`: field names differ per architecture, the meaning does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.vocabulary.errors import BrokenFileError, UsageError
from autotune.vocabulary.files import read_given
from autotune.vocabulary.model import Model
from autotune.vocabulary.problem import Activation
from autotune.vocabulary.quantization import Refusal, read_quantization

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
INTERMEDIATE = ("moe_intermediate_size", "intermediate_size")
"""The second one only where the first is missing: there it is the experts' own width (Mixtral, Llama 4)."""
TOPK = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "experts_per_token")
ACTIVATION = ("mlp_hidden_act", "hidden_act", "hidden_activation")
GATED: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
MAX_CONFIG_BYTES = 16 << 20


def read_model_config(path: Path) -> Model:
    """Read the MoE layer from a `config.json`, or from the one in a folder.

    `quantization_config` decides scheme and checkpoint format; without one it is bf16.

    Raises:
        UsageError: if it cannot be read, is no MoE model, or is one that no scheme or activation here covers.
        BrokenFileError: if it is no JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _read_json(file)
    text = config.get("text_config")
    merged = {**config, **text} if isinstance(text, dict) else config
    try:
        return _model(file, merged)
    except Refusal as refusal:
        raise UsageError(
            f"The model of {file} is refused: {refusal.reason}.",
            "Describe its layer with --shape instead, or take a model of `autotune models`.",
        ) from refusal


def _model(file: Path, config: Mapping[str, Any]) -> Model:
    experts = _size(config, EXPERTS, limit=4096)
    if experts is None:
        kind = config.get("model_type", "unknown")
        raise Refusal(
            f"it is no mixture-of-experts model: model_type {kind!r} sets none of {', '.join(EXPERTS)}"
        )
    sizes = {
        "intermediate size": _size(config, INTERMEDIATE),
        "experts per token": _size(config, TOPK, limit=256),
    }
    # A latent MoE (Nemotron 3 Super) projects the tokens down before the experts see them.
    latent = _size(config, ("moe_latent_size",))
    sizes["hidden size"] = latent if latent is not None else _size(config, ("hidden_size",))
    for what, size in sizes.items():
        if size is None:
            raise Refusal(f"its {what} is missing or 0")
    quantization = read_quantization(config, file.parent)
    intermediate, topk, hidden = (size or 0 for size in sizes.values())
    if topk > experts:
        raise Refusal(f"it takes {topk} experts per token, but has {experts}")
    return Model(
        name=str(file),
        title=str(config.get("model_type", "unnamed model")),
        experts=experts,
        intermediate=intermediate,
        hidden=hidden,
        topk=topk,
        scheme=quantization.scheme,
        checkpoint=quantization.checkpoint,
        act=_activation(config),
        source=str(file),
    )


def _activation(config: Mapping[str, Any]) -> Activation:
    kind = str(config.get("model_type", ""))
    if kind == "gpt_oss":
        return "swigluoai"  # its hidden_act says silu; vLLM's model code sets the clamped, interleaved SwiGLU
    if config.get("swiglu_limit") or config.get("swiglu_limits"):
        raise Refusal("its SwiGLU is clamped (swiglu_limit), which is no activation here")
    name = next((str(config[key]) for key in ACTIVATION if config.get(key) is not None), "silu")
    if name == "relu2" and kind.startswith("nemotron_h"):
        return "relu2_no_mul"
    if name not in GATED:
        raise Refusal(f"its activation {name!r} is none of those known here ({', '.join(GATED)})")
    return GATED[name]


def _size(config: Mapping[str, Any], names: tuple[str, ...], limit: int = 1 << 20) -> int | None:
    """The first of these fields that is set; None if none is, or if it says 0."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, list):
            if len(set(map(str, value))) > 1:
                raise Refusal(f"its layers differ in {name}: {value}")
            value = value[0] if value else 0
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise Refusal(f"its {name} must be an integer from 1 to {limit}, not {value!r}")
        return value or None
    return None


def _read_json(file: Path) -> dict[str, Any]:
    if not file.exists():
        raise UsageError(f"There is no {file.name} in {file.parent}.", "Give the path of a config.json.")
    content = read_given(file, "Give the path of a config.json that you may read.", MAX_CONFIG_BYTES)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BrokenFileError(
            f"{file} is no valid JSON: {error}.", "Download the model's config.json again."
        ) from error
    if not isinstance(data, dict):
        raise BrokenFileError(f"{file} holds no JSON object.", "Give the path of a Hugging Face config.json.")
    return data
