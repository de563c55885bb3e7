"""Our Triton kernels on the CPU, under Triton's interpreter: against the reference, and plain Python."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.vocabulary.problem import Scheme

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None,
    reason="needs torch and triton",
)
SCRIPT = Path(__file__).with_name("interpreted.py")
TOLERANCE = 1e-2
TWICE_QUANTIZED = 0.1
"""Where the intermediate goes through bf16 and is then quantized, the interpreter's truncating casts
flip many FP8 values by a step; on a GPU the same path is held to 3e-2 (test_gpu.py)."""


def interpret(*arguments: str) -> list[dict[str, Any]]:
    """Run the script under the interpreter; one answer per case."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def quick(schemes: list[Scheme], *now: Scheme) -> list[Any]:
    """All schemes as parameters; those that take long and are not among `now` run with the slow tests."""
    return [s if s in now else pytest.param(s, marks=pytest.mark.slow) for s in schemes]


@pytest.mark.parametrize("scheme", quick(list(Scheme), Scheme.BF16))
def test_the_layer_matches_the_reference(scheme: Scheme) -> None:
    answers = interpret("layer", scheme.value)
    assert {answer["swapped"] for answer in answers} == {False, True}
    assert any(answer["remote"] for answer in answers)
    # From weights with the up rows first, the very same bits.
    assert [a["same_up_first"] for a in answers if a["same_up_first"] is not None] == [True] * 4
    if scheme is Scheme.BF16:
        assert any(answer["chunks"] > 16 for answer in answers)
    for answer in answers:
        through_bf16 = scheme is Scheme.FP8_CHANNEL or (
            scheme is Scheme.FP8_BLOCK128 and answer["gate_n"] % 128 != 0
        )
        assert answer["error"] < (TWICE_QUANTIZED if through_bf16 else TOLERANCE), answer


@pytest.mark.parametrize(
    "scheme", quick([Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128], Scheme.FP8_TENSOR)
)
def test_the_decode_kernel_matches_the_reference(scheme: Scheme) -> None:
    answers = interpret("decode", scheme.value)
    assert {answer["listed"] for answer in answers} == {False, True}
    assert any(answer["most_rows"] > 16 for answer in answers), "an expert with more rows than one block"
    for held in (False, True):
        assert any(a["crowded"] and a["most_rows"] > 32 and a["held"] == held for a in answers), held
    assert any(answer["split"] > 1 for answer in answers)
    assert {answer["listed"] for answer in answers if answer["held"]} == {False, True}
    for answer in answers:
        # The intermediate goes through bf16 and is quantized on the way into the second GEMM.
        assert answer["error"] < (TWICE_QUANTIZED if scheme.is_fp8 else 1.2 * TOLERANCE), answer
        assert answer["same_bits"], answer
    more = [answer for answer in answers if "other_order" in answer]
    assert {answer["listed"] for answer in more} == {False, True}
    for answer in more:
        assert answer["other_order"], answer
        assert answer["padded"], answer
        assert answer["real_rows"], answer
        assert answer.get("given_fp8", scheme is not Scheme.FP8_TENSOR), answer


@pytest.mark.parametrize(
    "scheme", quick([Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128], Scheme.FP8_TENSOR)
)
def test_from_the_gate_on_the_layer_is_that_of_torch_s_choice(scheme: Scheme) -> None:
    """Among the kernel's own logits: another sum may rank two experts that are nearly equal otherwise."""
    answers = interpret("gate", scheme.value)
    assert {answer["kind"] for answer in answers} == {"random", "ties", "nan"}
    assert {answer["renormalize"] for answer in answers} == {False, True}
    assert {answer["held"] for answer in answers} == {False, True}
    assert any(answer["split"] > 1 for answer in answers)
    assert any("K=144" in answer["problem"] for answer in answers) == (scheme is not Scheme.FP8_BLOCK128)
    for answer in answers:
        assert answer["counters"] == 0, answer
        if answer["kind"] == "nan":  # the experts that there are, no others, and a sum that shows it
            assert answer["all_nan"], answer
            continue
        # Nearly always the same bits. A routing weight may differ in a float32's last place, which may round
        # a row's element to the next bfloat16.
        assert answer["error"] < 1e-3, answer
        # The interpreter truncates the sum to bfloat16; a GPU rounds it.
        assert answer["logits_ulps"] < 1.01, answer
    (tied,) = (answer for answer in answers if answer["kind"] == "ties")
    assert tied["logits"] == 3
    # Rows 0, 2 and 5 are equal, and 1 and 4, of which one is chosen.
    assert tied["ids"] == [0, 2, 5, 1]
    assert tied["other_order"], tied


def test_every_block_chooses_the_experts_and_weights_that_torch_does() -> None:
    answers = interpret("choose")
    assert {answer["renormalize"] for answer in answers} == {False, True}
    assert any(answer["experts"] & (answer["experts"] - 1) for answer in answers)
    for answer in answers:
        # The blocks of both GEMMs must agree, whatever comes in.
        assert answer["ids"] == answer["again"], answer
        assert len(set(answer["ids"])) == len(answer["ids"]), answer
        assert all(0 <= expert < answer["experts"] for expert in answer["ids"]), answer
        assert answer["weights"] == pytest.approx(answer["wanted"], rel=1e-6, abs=1e-30, nan_ok=True), answer
        if answer["name"] != "some NaN":  # torch puts NaN of either sign first
            assert answer["ids"] == answer["wanted_ids"], answer
    equal = [answer["ids"] for answer in answers if "all NaN" in answer["name"]]
    assert equal == [[0, 1, 2, 3]] * 4
    mixed = [answer["ids"] for answer in answers if answer["name"] == "some NaN"]
    assert mixed == [[1, 4, 6, 5, 2, 0, 7]] * 2, "a NaN with its sign set comes after the rest"


def test_rotation_and_quantization_match_the_reference() -> None:
    answers = interpret("rope")
    assert {answer["naive"] for answer in answers} == {False, True}
    for answer in answers:
        assert answer["error"] < TOLERANCE, answer
        assert answer["scale_error"] < 1e-6, answer


def expected_order(ids: list[int], experts: int, block_m: int) -> tuple[list[int], list[int]]:
    """sorted_pairs and block_expert by plain Python."""
    rows: list[int] = []
    blocks: list[int] = []
    for expert in range(experts):
        pairs = [pair for pair, found in enumerate(ids) if found == expert]
        padding = -len(pairs) % block_m
        rows += pairs + [len(ids)] * padding
        blocks += [expert] * ((len(pairs) + padding) // block_m)
    return rows, blocks


def test_sorting_is_exact() -> None:
    answers = interpret("sort")
    assert {answer["launches"] for answer in answers} == {1, 2}, "with and without the counting launch"
    for answer in answers:
        rows, blocks = expected_order(answer["ids"], answer["experts"], answer["block_m"])
        assert answer["padded_rows"] == len(rows) <= answer["room"]
        assert answer["sorted_pairs"][: len(rows)] == rows
        assert answer["block_expert"][: len(blocks)] == blocks
        # Blocks beyond the padded rows name an expert that exists: programs there read nothing outside.
        assert all(0 <= expert < answer["experts"] for expert in answer["block_expert"])
