"""The models known by name, and how a `--model` argument is resolved."""

from __future__ import annotations

from pathlib import Path

from autotune.vocabulary.errors import UnknownNameError, UsageError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.model import Model
from autotune.vocabulary.model_config import read_model_config
from autotune.vocabulary.problem import Problem, Scheme

MODELS: tuple[Model, ...] = (
    Model(
        name="qwen-moe-fp8",
        title="Qwen3-30B-A3B, FP8 in 128x128 blocks as published",
        experts=128,
        intermediate=768,
        hidden=2048,
        topk=8,
        scheme=Scheme.FP8_BLOCK128,
        checkpoint="fp8",
        source="config.json of Qwen/Qwen3-30B-A3B-FP8",
        aliases=(
            "qwen3-30b-a3b-fp8",
            "Qwen/Qwen3-30B-A3B-FP8",
            "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
            "Qwen/Qwen3-30B-A3B-Thinking-2507-FP8",
            "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8",
        ),
    ),
    Model(
        name="qwen-moe-fp8-tensor",
        title="Qwen3-30B-A3B, FP8 with one static scale per tensor",
        experts=128,
        intermediate=768,
        hidden=2048,
        topk=8,
        scheme=Scheme.FP8_TENSOR,
        checkpoint="fp8",
        source="config.json of Qwen/Qwen3-30B-A3B; quant_method fp8, activation_scheme static",
        notes="Qwen publishes block scales only; this is the layer of a checkpoint quantized per tensor.",
        aliases=("qwen3-30b-a3b-fp8-tensor",),
    ),
    Model(
        name="qwen-moe-bf16",
        title="Qwen3-30B-A3B, bf16",
        experts=128,
        intermediate=768,
        hidden=2048,
        topk=8,
        scheme=Scheme.BF16,
        checkpoint="unquantized",
        source="config.json of Qwen/Qwen3-30B-A3B",
        aliases=(
            "qwen3-30b-a3b",
            "qwen3-30b-a3b-bf16",
            "Qwen/Qwen3-30B-A3B",
            "Qwen/Qwen3-30B-A3B-Base",
            "Qwen/Qwen3-30B-A3B-Instruct-2507",
            "Qwen/Qwen3-30B-A3B-Thinking-2507",
            "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        ),
    ),
    Model(
        name="qwen3-235b-a22b-fp8",
        title="Qwen3-235B-A22B, FP8 in 128x128 blocks as published",
        experts=128,
        intermediate=1536,
        hidden=4096,
        topk=8,
        scheme=Scheme.FP8_BLOCK128,
        checkpoint="fp8",
        source="config.json of Qwen/Qwen3-235B-A22B-FP8",
        aliases=(
            "Qwen/Qwen3-235B-A22B-FP8",
            "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
            "Qwen/Qwen3-235B-A22B-Thinking-2507-FP8",
        ),
    ),
    Model(
        name="mixtral-8x7b-fp8",
        title="Mixtral 8x7B, FP8 with one static scale per tensor",
        experts=8,
        intermediate=14336,
        hidden=4096,
        topk=2,
        scheme=Scheme.FP8_TENSOR,
        checkpoint="fp8",
        source="config.json of mistralai/Mixtral-8x7B-Instruct-v0.1; "
        "model card of neuralmagic/Mixtral-8x7B-Instruct-v0.1-FP8 (AutoFP8, per tensor)",
        aliases=(
            "neuralmagic/Mixtral-8x7B-Instruct-v0.1-FP8",
            "RedHatAI/Mixtral-8x7B-Instruct-v0.1-FP8",
        ),
    ),
    Model(
        name="mixtral-8x7b-bf16",
        title="Mixtral 8x7B, bf16",
        experts=8,
        intermediate=14336,
        hidden=4096,
        topk=2,
        scheme=Scheme.BF16,
        checkpoint="unquantized",
        source="config.json of mistralai/Mixtral-8x7B-Instruct-v0.1",
        aliases=("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
    ),
    Model(
        name="deepseek-r1",
        title="DeepSeek-R1 and DeepSeek-V3, FP8 in 128x128 blocks as published",
        experts=256,
        intermediate=2048,
        hidden=7168,
        topk=8,
        scheme=Scheme.FP8_BLOCK128,
        checkpoint="fp8",
        source="config.json of deepseek-ai/DeepSeek-R1 and deepseek-ai/DeepSeek-V3",
        notes="Routed experts only; the shared expert is a layer of its own in vLLM.",
        aliases=(
            "deepseek-v3",
            "deepseek-ai/DeepSeek-R1",
            "deepseek-ai/DeepSeek-R1-0528",
            "deepseek-ai/DeepSeek-V3",
            "deepseek-ai/DeepSeek-V3-0324",
        ),
    ),
    Model(
        name="gpt-oss-120b",
        title="gpt-oss-120b's shape, as bf16",
        experts=128,
        intermediate=2880,
        hidden=2880,
        topk=4,
        scheme=Scheme.BF16,
        checkpoint="unquantized",
        act="swigluoai",
        source="config.json of openai/gpt-oss-120b",
        notes="The shape only: published in MXFP4, which is no scheme here, and both GEMMs have biases.",
    ),
    Model(
        name="llama4-scout",
        title="Llama 4 Scout (17B, 16 experts), bf16",
        experts=16,
        intermediate=8192,
        hidden=5120,
        topk=1,
        scheme=Scheme.BF16,
        checkpoint="unquantized",
        source="config.json of meta-llama/Llama-4-Scout-17B-16E-Instruct (text_config)",
        notes="The model applies the router weight to the layer's input, not to the experts' output.",
        aliases=(
            "meta-llama/Llama-4-Scout-17B-16E",
            "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        ),
    ),
    Model(
        name="nemotron-3-nano",
        title="Nemotron 3 Nano 30B-A3B, bf16",
        experts=128,
        intermediate=1856,
        hidden=2688,
        topk=6,
        scheme=Scheme.BF16,
        checkpoint="unquantized",
        act="relu2_no_mul",
        source="config.json of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        notes="Squared ReLU without a gate: the first GEMM has N columns, not 2N. "
        "The published FP8 checkpoint is in ModelOpt's format, which is not read here.",
        aliases=("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",),
    ),
)
"""Every model known by name, in the order in which they are listed."""


def resolve_model(model: str) -> Model:
    """Find a model by name, by alias (case does not matter), or by the path of a Hugging Face `config.json`
    or of a folder with one. A name of the catalogue wins over a folder of that name.

    Raises:
        UnknownNameError: for a name that is neither, with the nearest one.
        UsageError: for a config that cannot be read, is no MoE model, or has a format that is no scheme here.
        BrokenFileError: for a config that is no JSON object.
    """
    text = model.strip()
    found = _BY_NAME.get(text.casefold())
    if found is not None:
        return found
    try:
        path = Path(text).expanduser()
        there = bool(text) and path.exists()
    except (OSError, RuntimeError, ValueError):
        there = False  # too long for a path, or of a user without a home: no file in any case
    if there:
        return read_model_config(path)
    if text.startswith((".", "/", "~")) or text.endswith(".json"):
        raise UsageError(f"There is no model config at {text!r}.", "Give the path of a config.json.")
    known = [m.name for m in MODELS]
    if "/" in text:
        known = [alias for m in MODELS for alias in m.aliases if "/" in alias]
    raise UnknownNameError("model", text, known, "The path of a Hugging Face config.json works too.")


def resolve_problem(model: str, *, tp: int = 1, ep: int = 1) -> tuple[Problem, Checkpoint]:
    """The problem that one GPU has to run for a model, and its checkpoint's format.

    Args:
        model: as `resolve_model` takes it.
        tp, ep: tensor- and expert-parallel size, as `Model.problem` takes them.

    Raises:
        UnknownNameError, UsageError: as `resolve_model`, or for a split that is not possible.
    """
    found = resolve_model(model)
    return found.problem(tp=tp, ep=ep), found.checkpoint


_BY_NAME = {name.casefold(): m for m in MODELS for name in (m.name, *m.aliases)}
