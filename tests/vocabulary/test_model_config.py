"""Reading a Hugging Face config.json: the field names of real architectures, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.vocabulary.catalogue import resolve_problem
from autotune.vocabulary.errors import BrokenFileError, UsageError

FP8_BLOCK = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "fmt": "e4m3",
}
QWEN = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16",
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "quantization_config": FP8_BLOCK,
}
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "torch_dtype": "bfloat16",
    },
    "vision_config": {"hidden_act": "gelu", "hidden_size": 1408, "intermediate_size": 5632},
}
NEMOTRON = {
    "model_type": "nemotron_h",
    "hidden_size": 2688,
    "intermediate_size": 1856,
    "mamba_hidden_act": "silu",
    "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 1856,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "torch_dtype": "bfloat16",
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_act": "silu",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "swiglu_limit": 7.0,
}


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        **fields,
    }


def part(strategy: str, *, dynamic: bool = False, **fields: Any) -> dict[str, Any]:
    return {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": strategy,
        "dynamic": dynamic,
        **fields,
    }


BLOCK_PART = part("block", block_structure=[128, 128])
GROUP_PART = part("group", dynamic=True, group_size=128)


def write(folder: Path, config: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


def quantized(config: dict[str, Any]) -> dict[str, Any]:
    return {**QWEN, "quantization_config": config}


@pytest.mark.parametrize(
    ("config", "text", "checkpoint"),
    [
        (QWEN, "E=128,N=768,K=2048,topk=8,scheme=bf16", "unquantized"),
        (MIXTRAL, "E=8,N=14336,K=4096,topk=2,scheme=bf16", "unquantized"),
        (DEEPSEEK, "E=256,N=2048,K=7168,topk=8,scheme=fp8_block128", "fp8"),
        (LLAMA4, "E=16,N=8192,K=5120,topk=1,scheme=bf16", "unquantized"),
        (NEMOTRON, "E=128,N=1856,K=2688,topk=6,scheme=bf16,act=relu2_no_mul", "unquantized"),
        (GPT_OSS, "E=128,N=2880,K=2880,topk=4,scheme=bf16,act=swigluoai", "unquantized"),
        (
            {**NEMOTRON, "moe_latent_size": 1024},
            "E=128,N=1856,K=1024,topk=6,scheme=bf16,act=relu2_no_mul",
            "unquantized",
        ),
        (
            {**QWEN, "hidden_act": "gelu_pytorch_tanh"},
            "E=128,N=768,K=2048,topk=8,scheme=bf16,act=gelu_tanh",
            "unquantized",
        ),
        (
            {**LLAMA4, "quantization_config": compressed(part("channel"), part("token", dynamic=True))},
            "E=16,N=8192,K=5120,topk=1,scheme=fp8_channel",
            "compressed-tensors",
        ),
    ],
)
def test_architectures(tmp_path: Path, config: dict[str, Any], text: str, checkpoint: str) -> None:
    file = write(tmp_path, config)
    for argument in (file, tmp_path):
        problem, found = resolve_problem(str(argument))
        assert (str(problem), found) == (text, checkpoint)


@pytest.mark.parametrize(
    ("config", "scheme", "checkpoint"),
    [
        (FP8_BLOCK, "fp8_block128", "fp8"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8_tensor", "fp8"),
        (compressed(part("tensor"), part("tensor")), "fp8_tensor", "compressed-tensors"),
        (compressed(part("channel"), part("token", dynamic=True)), "fp8_channel", "compressed-tensors"),
        (compressed(BLOCK_PART, GROUP_PART), "fp8_block128", "compressed-tensors"),
        (
            compressed({**BLOCK_PART, "block_structure": "128x128"}, GROUP_PART),
            "fp8_block128",
            "compressed-tensors",
        ),
        (
            {**FP8_BLOCK, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.shared_experts"]},
            "fp8_block128",
            "fp8",
        ),
    ],
)
def test_quantizations(tmp_path: Path, config: dict[str, Any], scheme: str, checkpoint: str) -> None:
    problem, found = resolve_problem(str(write(tmp_path, quantized(config))))
    assert (problem.scheme.value, found) == (scheme, checkpoint)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "one dynamic scale per tensor"),
        ({**FP8_BLOCK, "weight_block_size": [64, 128]}, r"blocks are \[64, 128\]"),
        ({**FP8_BLOCK, "activation_scheme": "static"}, "block scales need dynamic"),
        ({**FP8_BLOCK, "fmt": "e5m2"}, "e5m2, not e4m3"),
        ({**FP8_BLOCK, "store_dtype": "mxfp4"}, "stored as mxfp4"),
        ({"quant_method": "fp8"}, "neither static nor dynamic"),
        ({"quant_method": "mxfp4"}, "quantized with mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "quantized with modelopt"),
        ({"quant_method": "awq", "bits": 4}, "quantized with awq"),
        ({"bits": 4}, "quantized with None"),
        ("fp8", "no JSON object"),
        (compressed(part("channel", num_bits=4), None), "activations are not quantized|4-bit"),
        (compressed(part("channel"), None), "activations are not quantized"),
        (compressed(part("channel", type="int"), part("token", dynamic=True, type="int")), "8-bit int"),
        (compressed(part("tensor"), part("tensor", dynamic=True)), "dynamic activations per tensor"),
        (compressed(part("channel"), part("tensor")), "per channel, static activations per tensor"),
        (compressed({**BLOCK_PART, "block_structure": [64, 64]}, GROUP_PART), "per block"),
        (compressed(part("tensor"), part("tensor"), format="pack-quantized"), "pack-quantized"),
        (compressed(part("tensor"), part("tensor", symmetric=False)), "zero point"),
        (compressed(part("tensor"), part("tensor"), config_groups={}), "no config_groups"),
        (compressed(part("tensor"), part("tensor"), config_groups={"group_0": {}}), "states no weights"),
        (
            compressed(
                part("tensor"),
                part("tensor"),
                config_groups={
                    "a": {"weights": part("tensor"), "input_activations": part("tensor")},
                    "b": {"weights": part("channel"), "input_activations": part("token", dynamic=True)},
                },
            ),
            "config_groups differ",
        ),
        ({**FP8_BLOCK, "modules_to_not_convert": ["model.layers.3.mlp.experts"]}, "leaves out"),
    ],
)
def test_other_quantizations_are_refused_by_reason(tmp_path: Path, config: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        resolve_problem(str(write(tmp_path, quantized(config))))
    assert str(tmp_path / "config.json") in caught.value.message
    assert "--shape" in caught.value.hint


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144},
            "no mixture-of-experts model",
        ),
        ({**QWEN, "num_experts": 0}, "no mixture-of-experts model"),
        ({**QWEN, "hidden_size": None}, "hidden size is missing"),
        ({**QWEN, "num_experts_per_tok": None}, "experts per token is missing"),
        ({**QWEN, "num_experts_per_tok": 0}, "experts per token is missing or 0"),
        ({**QWEN, "num_experts": "128"}, "num_experts must be an integer from 1 to 4096, not '128'"),
        ({**QWEN, "num_experts": True}, "must be an integer from 1"),
        ({**QWEN, "hidden_size": -1}, "must be an integer from 1"),
        ({**QWEN, "num_experts": 5000}, "must be an integer from 1 to 4096"),
        ({**QWEN, "num_experts_per_tok": 257}, "must be an integer from 1 to 256"),
        ({**QWEN, "hidden_size": 1 << 30}, "must be an integer from 1"),
        ({**QWEN, "moe_intermediate_size": [768, 1536]}, "layers differ"),
        ({**QWEN, "num_experts_per_tok": 200}, "takes 200 experts per token, but has 128"),
        ({**QWEN, "hidden_act": "relu"}, "activation 'relu'"),
        ({**QWEN, "hidden_act": "relu2"}, "activation 'relu2'"),
        ({**QWEN, "hidden_act": ["silu"]}, "activation"),
        ({**QWEN, "swiglu_limit": 7.0}, "clamped"),
        ({**QWEN, "torch_dtype": "float16"}, "float16, not bfloat16"),
        ({**DEEPSEEK, "expert_dtype": "fp4"}, "stored as fp4"),
        ({**GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}}, "quantized with mxfp4"),
    ],
)
def test_other_models_are_refused_by_reason(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        resolve_problem(str(write(tmp_path, config)))


odd: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-2, 1 << 40) | st.text(max_size=8)
odd |= st.lists(odd, max_size=3) | st.dictionaries(st.text(max_size=8), odd, max_size=2)
WHOLE = quantized(compressed(BLOCK_PART, GROUP_PART))


@given(st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_anywhere_gives_a_problem_or_bad_usage(tmp_path: Path, data: st.DataObject) -> None:
    config = copy.deepcopy(data.draw(st.sampled_from([WHOLE, quantized(FP8_BLOCK), LLAMA4, NEMOTRON])))
    place = config
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(odd)
    with contextlib.suppress(UsageError):
        resolve_problem(str(write(tmp_path, config)))


def test_modelopts_own_file_counts(tmp_path: Path) -> None:
    write(tmp_path, QWEN)
    (tmp_path / "hf_quant_config.json").write_text("{}")
    with pytest.raises(UsageError, match="modelopt"):
        resolve_problem(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[1]", b"3", b"[" * 100_000],
    ids=["empty", "cut", "no utf-8", "list", "number", "deep"],
)
def test_a_broken_file_is_said_to_be_one(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(BrokenFileError, match=r"no valid JSON|no JSON object") as caught:
        resolve_problem(str(file))
    assert str(file) in caught.value.message


def test_a_folder_without_a_config_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json in"):
        resolve_problem(str(tmp_path))


def test_a_config_is_split_like_a_known_model(tmp_path: Path) -> None:
    file = str(write(tmp_path, DEEPSEEK))
    assert resolve_problem(file, tp=8, ep=16) == resolve_problem("deepseek-r1", tp=8, ep=16)
    assert resolve_problem(file, tp=8) == resolve_problem("deepseek-r1", tp=8)
    with pytest.raises(UsageError, match="Possible --tp"):
        resolve_problem(file, tp=32)
