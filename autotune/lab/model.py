"""A whole model without weights: a configuration, a tokenizer of words, and a plugin that fills weights."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from autotune.vocabulary.errors import MissingDependencyError, UsageError
from autotune.vocabulary.problem import Scheme

ARCHITECTURE: dict[str, Any] = {
    # Qwen/Qwen3-30B-A3B, config.json
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
MODEL_NAMES = {Scheme.FP8_TENSOR: "qwen-moe-fp8-tensor", Scheme.FP8_BLOCK128: "qwen-moe-fp8"}
"""The schemes that can be served so, with the catalogue's names of their layers."""
WEIGHTS_PLUGIN = "random_weights"
"""Its name in `VLLM_PLUGINS`."""


def write_model(folder: Path, scheme: str, layers: int) -> None:
    """Write config.json with its quantization, and a tokenizer of words w0, w1, ...; kept if it is there.

    Raises:
        UsageError: for a scheme that has no such model.
        MissingDependencyError: without tokenizers and transformers, which come with vLLM.
    """
    if scheme not in {str(known) for known in MODEL_NAMES}:
        raise UsageError(
            f"No model is written for scheme {scheme}.", f"Known: {', '.join(map(str, MODEL_NAMES))}."
        )
    ignored = ["lm_head", *(f"model.layers.{n}.mlp.gate" for n in range(layers))]
    quantization: dict[str, object] = {"quant_method": "fp8", "modules_to_not_convert": ignored}
    if scheme == Scheme.FP8_BLOCK128:
        quantization |= {"activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    else:
        quantization |= {"activation_scheme": "static"}
    config = ARCHITECTURE | {"num_hidden_layers": layers, "quantization_config": quantization}
    text = json.dumps(config, indent=1)
    written = folder / "config.json"
    if written.exists() and written.read_bytes() == text.encode():
        return
    _tokenizer_packages()  # before anything is made
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder)
    # Last, so that a folder with a configuration is a whole one.
    written.write_text(text)


def _tokenizer_packages() -> tuple[Any, Any]:
    try:
        return importlib.import_module("tokenizers"), importlib.import_module("transformers")
    except ImportError as error:
        raise MissingDependencyError(
            f"Writing the model needs tokenizers and transformers: {error}.",
            "Run this with the Python of vLLM's environment.",
        ) from error


def _write_tokenizer(folder: Path) -> None:
    tokenizers, transformers = _tokenizer_packages()
    words = {f"w{n}": n for n in range(ARCHITECTURE["vocab_size"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="w0", eos_token="w1"
    ).save_pretrained(folder)


def install_random_weights(folder: Path) -> None:
    """Make the weight plugin visible to vLLM: a module and the metadata that names its entry point.

    It is a copy of `random_weights.py`, so that stock vLLM imports nothing of this project.
    """
    source = Path(__file__).with_name("random_weights.py")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"autotune_{source.name}").write_text(source.read_text())
    metadata = folder / "autotune_random_weights-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: autotune-random-weights\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\n{WEIGHTS_PLUGIN} = autotune_random_weights:register\n"
    )
