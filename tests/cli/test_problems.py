"""Reading what commands share: numbers, durations, backends, models and shapes."""

from __future__ import annotations

import pytest

from autotune.cli.problems import parse_backends, parse_duration, parse_numbers, resolve
from autotune.vocabulary.errors import ShapeError, UnknownNameError, UsageError

SHAPE = "E=128,N=768,K=2048,topk=8,scheme=fp8_block128"


def test_numbers_are_sorted_without_repeats() -> None:
    assert parse_numbers("--tokens", "8, 1,64,8") == [1, 8, 64]


@pytest.mark.parametrize("text", ["0", "-1", "eight", "1,,2", "1.5", "", "1;2", "٣", "99999999"])
def test_bad_numbers_name_the_option(text: str) -> None:
    with pytest.raises(UsageError, match="--tokens") as caught:
        parse_numbers("--tokens", text)
    assert "1,8,64" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("1h", 3600.0), ("1.5m", 90.0), ("none", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "5d", "m", "five", "1e3", "inf"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(UsageError, match="--budget") as caught:
        parse_duration(text)
    assert "5m" in caught.value.hint


def test_backends() -> None:
    assert parse_backends("") is None
    assert parse_backends("triton, deep_gemm") == {"triton", "deep_gemm"}
    with pytest.raises(UnknownNameError) as caught:
        parse_backends("triton,deepgemm")
    assert caught.value.nearest == "deep_gemm"


def test_models_and_shapes() -> None:
    problem, checkpoint = resolve("qwen-moe-fp8", "")
    assert (str(problem), checkpoint) == (SHAPE, "fp8")
    assert resolve("", SHAPE) == (problem, "fp8")
    assert resolve("", SHAPE, checkpoint="compressed-tensors")[1] == "compressed-tensors"
    assert resolve("", SHAPE.replace("fp8_block128", "bf16"))[1] == "unquantized"
    assert resolve("", SHAPE.replace("fp8_block128", "fp8_channel"))[1] == "compressed-tensors"
    assert resolve("qwen-moe-fp8-tensor", "", tp=2)[0].N == 384


@pytest.mark.parametrize(("model", "shape"), [("", ""), ("qwen-moe-fp8", SHAPE)])
def test_exactly_one_of_model_and_shape(model: str, shape: str) -> None:
    with pytest.raises(UsageError, match="either --model or --shape"):
        resolve(model, shape)


def test_bad_models_shapes_and_formats() -> None:
    with pytest.raises(UnknownNameError) as caught:
        resolve("qwen-moe-fp9", "")
    assert caught.value.nearest == "qwen-moe-fp8"
    with pytest.raises(ShapeError, match="position"):
        resolve("", "E=128,N=abc")
    with pytest.raises(UsageError, match="--tp and --ep go with --model"):
        resolve("", SHAPE, tp=2)
    with pytest.raises(UnknownNameError, match="checkpoint format"):
        resolve("", SHAPE, checkpoint="fp16")
