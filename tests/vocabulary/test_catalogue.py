"""The models known by name, and splitting them over GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.vocabulary.catalogue import MODELS, resolve_model, resolve_problem
from autotune.vocabulary.errors import UnknownNameError, UsageError
from autotune.vocabulary.problem import Problem

PUBLISHED = {
    "qwen-moe-fp8": ("E=128,N=768,K=2048,topk=8,scheme=fp8_block128", "fp8"),
    "qwen-moe-fp8-tensor": ("E=128,N=768,K=2048,topk=8,scheme=fp8_tensor", "fp8"),
    "qwen-moe-bf16": ("E=128,N=768,K=2048,topk=8,scheme=bf16", "unquantized"),
    "qwen3-235b-a22b-fp8": ("E=128,N=1536,K=4096,topk=8,scheme=fp8_block128", "fp8"),
    "mixtral-8x7b-fp8": ("E=8,N=14336,K=4096,topk=2,scheme=fp8_tensor", "fp8"),
    "mixtral-8x7b-bf16": ("E=8,N=14336,K=4096,topk=2,scheme=bf16", "unquantized"),
    "deepseek-r1": ("E=256,N=2048,K=7168,topk=8,scheme=fp8_block128", "fp8"),
    "gpt-oss-120b": ("E=128,N=2880,K=2880,topk=4,scheme=bf16,act=swigluoai", "unquantized"),
    "llama4-scout": ("E=16,N=8192,K=5120,topk=1,scheme=bf16", "unquantized"),
    "nemotron-3-nano": ("E=128,N=1856,K=2688,topk=6,scheme=bf16,act=relu2_no_mul", "unquantized"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_come_to_their_published_layers(name: str) -> None:
    text, checkpoint = PUBLISHED[name]
    assert resolve_problem(name) == (Problem.parse(text), checkpoint)


def test_the_catalogue_is_complete_sourced_and_unambiguous() -> None:
    assert [m.name for m in MODELS] == list(PUBLISHED)
    assert all("config.json of " in m.source for m in MODELS)
    names = [name.casefold() for m in MODELS for name in (m.name, *m.aliases)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("QWEN-MOE-FP8", "qwen-moe-fp8"),
        (" qwen-moe-fp8 ", "qwen-moe-fp8"),
        ("Qwen/Qwen3-30B-A3B-FP8", "qwen-moe-fp8"),
        ("qwen/qwen3-30b-a3b", "qwen-moe-bf16"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-r1"),
        ("RedHatAI/Mixtral-8x7B-Instruct-v0.1-FP8", "mixtral-8x7b-fp8"),
    ],
)
def test_aliases_and_case(text: str, name: str) -> None:
    assert resolve_model(text).name == name


def test_a_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qwen-moe-fp8").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("qwen-moe-fp8").name == "qwen-moe-fp8"


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("qwen-moe-fp9", "qwen-moe-fp8"),
        ("mixtral", "mixtral-8x7b-fp8"),
        ("Qwen/Qwen3-30B-A3B-FP", "Qwen/Qwen3-30B-A3B-FP8"),
        ("", None),
    ],
)
def test_unknown_models_get_the_known_names(text: str, nearest: str | None) -> None:
    with pytest.raises(UnknownNameError) as caught:
        resolve_model(text)
    assert caught.value.exit_code == 2
    assert "config.json" in caught.value.hint
    if nearest is not None:
        assert caught.value.nearest == nearest


@pytest.mark.parametrize("text", ["./missing", "/missing/config.json", "~/missing", "missing.json"])
def test_a_path_that_is_not_there_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match="no model config"):
        resolve_model(text)


@pytest.mark.parametrize(
    ("name", "tp", "ep", "text"),
    [
        ("qwen-moe-fp8", 2, 1, "E=128,N=384,K=2048,topk=8,scheme=fp8_block128"),
        ("qwen-moe-fp8-tensor", 4, 1, "E=128,N=192,K=2048,topk=8,scheme=fp8_tensor"),
        ("deepseek-r1", 8, 1, "E=256,N=256,K=7168,topk=8,scheme=fp8_block128"),
        ("deepseek-r1", 8, 8, "E=32,N=2048,K=7168,topk=8,scheme=fp8_block128,ep=8"),
        ("deepseek-r1", 1, 256, "E=1,N=2048,K=7168,topk=8,scheme=fp8_block128,ep=256"),
        ("qwen-moe-fp8", 4, 8, "E=16,N=768,K=2048,topk=8,scheme=fp8_block128,ep=8"),
        ("mixtral-8x7b-bf16", 8, 1, "E=8,N=1792,K=4096,topk=2,scheme=bf16"),
    ],
)
def test_splits(name: str, tp: int, ep: int, text: str) -> None:
    problem, _ = resolve_problem(name, tp=tp, ep=ep)
    assert problem == Problem.parse(text)
    assert problem.global_experts == resolve_model(name).experts


@pytest.mark.parametrize(
    ("name", "tp", "ep", "message"),
    [
        ("deepseek-r1", 3, 1, r"--tp 3 does not divide .* 2048 .*Possible --tp: 1, 2, 4, 8, 16\."),
        # The known case: 768 / 4 = 192 is no multiple of 128, so the published checkpoint does not load.
        ("qwen-moe-fp8", 4, 1, r"192 per GPU.*128-wide.*vLLM refuses.*Possible --tp: 1, 2, 3, 6\."),
        ("qwen3-235b-a22b-fp8", 8, 1, r"192 per GPU.*Possible --tp: 1, 2, 3, 4, 6, 12\."),
        ("deepseek-r1", 1, 3, r"256 experts.*3 GPUs.*Possible --ep: 1, 2, 4, 8, 16, 32, 64 and more\."),
        ("mixtral-8x7b-bf16", 1, 16, r"8 experts.*Possible --ep: 1, 2, 4, 8\."),
        ("deepseek-r1", 3, 8, r"--ep 8 is not a multiple of --tp 3"),
        ("deepseek-r1", 8, 4, r"--ep 4 is not a multiple of --tp 8"),
        ("deepseek-r1", 0, 1, r"--tp must be at least 1"),
        ("deepseek-r1", 1, -1, r"--ep must be at least 1"),
    ],
)
def test_impossible_splits_name_the_possible_ones(name: str, tp: int, ep: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_problem(name, tp=tp, ep=ep)


@pytest.mark.parametrize("text", ["x" * 5000, "~nosuchuser/config.json", "a\x00b"])
def test_what_cannot_be_a_path_is_an_unknown_model(text: str) -> None:
    with pytest.raises(UsageError):
        resolve_model(text)
