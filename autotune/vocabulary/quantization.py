"""From a checkpoint's `quantization_config` to a scheme and a checkpoint format, or a reason why not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Scheme

KNOWN = f"the schemes here are {', '.join(scheme.value for scheme in Scheme)}"
BLOCK = [128, 128]


class Refusal(Exception):
    """Why a model config cannot be mapped; becomes a UsageError that names the file."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Quantization:
    """How the experts' weights are stored, and in which of vLLM's formats."""

    scheme: Scheme
    checkpoint: Checkpoint


def read_quantization(config: Mapping[str, Any], folder: Path) -> Quantization:
    """Map a model config.

    Args:
        config: the whole model config.
        folder: where it lies; ModelOpt keeps its own file beside it.

    Raises:
        Refusal: for a format that is no scheme here.
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    if not stated:
        return _unquantized(config, folder)
    if not isinstance(stated, dict):
        raise Refusal("its quantization_config is no JSON object")
    # vLLM's loader renames the old key of compressed-tensors in the same way.
    method = stated.get("quant_method") or ("compressed-tensors" if "config_groups" in stated else None)
    _experts_not_left_out(stated)
    if config.get("expert_dtype") not in (None, "fp8"):
        raise Refusal(f"its experts are stored as {config['expert_dtype']}; {KNOWN}")
    if method == "fp8":
        return _fp8(stated)
    if method == "compressed-tensors":
        return _compressed_tensors(stated)
    raise Refusal(f"it is quantized with {method}, which is not read here; {KNOWN}")


def _unquantized(config: Mapping[str, Any], folder: Path) -> Quantization:
    if (folder / "hf_quant_config.json").is_file():
        raise Refusal(
            f"it is quantized with modelopt (hf_quant_config.json), which is not read here; {KNOWN}"
        )
    dtype = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    if dtype != "bfloat16":
        raise Refusal(f"its weights are {dtype}, not bfloat16; {KNOWN}")
    return Quantization(Scheme.BF16, "unquantized")


def _fp8(stated: Mapping[str, Any]) -> Quantization:
    if stated.get("store_dtype"):
        raise Refusal(f"its weights are stored as {stated['store_dtype']}; {KNOWN}")
    if stated.get("fmt") not in (None, "e4m3", "float8_e4m3fn"):
        raise Refusal(f"its FP8 format is {stated['fmt']}, not e4m3")
    block, activations = stated.get("weight_block_size"), stated.get("activation_scheme")
    if block is not None:
        if block != BLOCK:
            raise Refusal(f"its weight blocks are {block}, not {BLOCK}; {KNOWN}")
        if activations != "dynamic":
            raise Refusal(f"block scales need dynamic activations, not {activations!r}: vLLM refuses it too")
        return Quantization(Scheme.FP8_BLOCK128, "fp8")
    if activations == "static":
        return Quantization(Scheme.FP8_TENSOR, "fp8")
    if activations == "dynamic":
        # vLLM computes one scale over the whole activation tensor here, which neither fp8_tensor (static)
        # nor fp8_channel (a scale per token) does.
        raise Refusal(f"its activations get one dynamic scale per tensor; {KNOWN}, and fp8_tensor is static")
    raise Refusal(f"its activation_scheme {activations!r} is neither static nor dynamic")


def _compressed_tensors(stated: Mapping[str, Any]) -> Quantization:
    groups = stated.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise Refusal("its compressed-tensors config names no config_groups")
    found = {_group(name, group, stated) for name, group in groups.items()}
    if len(found) > 1:
        raise Refusal(
            f"its config_groups differ ({', '.join(sorted(s.value for s in found))}): "
            "which one the experts have cannot be told"
        )
    return Quantization(found.pop(), "compressed-tensors")


def _group(name: str, group: object, stated: Mapping[str, Any]) -> Scheme:
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise Refusal(f"its config group {name} states no weights")
    weights, inputs = group["weights"], group.get("input_activations")
    layout = group.get("format") or stated.get("format")
    if layout not in (None, "float-quantized", "naive-quantized"):
        raise Refusal(f"its compressed-tensors format is {layout}, not float-quantized; {KNOWN}")
    for what, part in (("weights", weights), ("activations", inputs)):
        if not isinstance(part, dict):
            raise Refusal(f"its {what} are not quantized, while its weights are; {KNOWN}")
        if part.get("type", "int") != "float" or part.get("num_bits", 8) != 8:
            raise Refusal(f"its {what} are {part.get('num_bits', 8)}-bit {part.get('type', 'int')}; {KNOWN}")
        if not part.get("symmetric", True):
            raise Refusal(f"its {what} are quantized with a zero point; {KNOWN}")
    assert isinstance(inputs, dict)
    dynamic = bool(inputs.get("dynamic", False))
    match (weights.get("strategy", "tensor"), inputs.get("strategy", "tensor"), dynamic):
        case ("tensor", "tensor", False):
            return Scheme.FP8_TENSOR
        case ("channel", "token", True):
            return Scheme.FP8_CHANNEL
        case ("block", "group", True) if (
            # Written as a list or, by older releases of compressed-tensors, as text.
            weights.get("block_structure") in (BLOCK, "128x128") and inputs.get("group_size") == BLOCK[1]
        ):
            return Scheme.FP8_BLOCK128
        case (of_weights, of_inputs, _):
            kind = "dynamic" if dynamic else "static"
            raise Refusal(
                f"its weights are scaled per {of_weights}, {kind} activations per {of_inputs}; {KNOWN}"
            )


def _experts_not_left_out(stated: Mapping[str, Any]) -> None:
    """Refuse a config that leaves routed experts unquantized: its MoE layers would be of two kinds."""
    for key in ("ignore", "ignored_layers", "modules_to_not_convert"):
        entries = stated.get(key) or []
        if not isinstance(entries, list):
            raise Refusal(f"its {key} is no list")
        for entry in entries:
            if re.search(r"(?<!shared_)(?<!shared\.)experts", str(entry)):
                raise Refusal(f"its quantization leaves out {json.dumps(entry)} ({key})")
