"""`make bench-gate` without a GPU: which form it takes, the weights it draws, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autotune.vocabulary.candidate import FusedDecodeCandidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import AutotuneError, UsageError
from autotune.vocabulary.measurement import PairedTimes
from autotune.vocabulary.problem import Problem, Scheme
from tests.benchmarks.programs import ROOT, load
from tests.factories import H200


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load("gate")


def test_the_form_is_the_starter_table_s_or_a_common_one(program: ModuleType) -> None:
    qwen = program.form(Problem.parse(program.QWEN))
    assert str(qwen) == "fused_decode m16 32x256 s4 | 64x256 s3 w4 q"
    for scheme in ("bf16", "fp8_tensor", "fp8_block128"):
        unknown = Problem.parse(f"E=60,N=1408,K=2048,topk=4,scheme={scheme}")
        assert program.form(unknown) == FusedDecodeCandidate(
            block_m=16, gate_up_block_n=32, gate_up_block_k=128, gate_up_stages=4, down_block_n=64,
            down_block_k=128, down_stages=3, quantize_first=scheme != "bf16",
        )  # fmt: skip
        program.check(unknown, H200, program.form(unknown))


@pytest.mark.parametrize("scheme", [Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128])
def test_weights_are_finite_and_spread_as_trained_ones(program: ModuleType, scheme: Scheme) -> None:
    torch = pytest.importorskip("torch")
    from autotune.kernels.weights import dequantize_weight, make_weights

    problem = Problem(E=3, N=128, K=256, topk=2, scheme=scheme)
    weights, gate = program.layer_weights(problem, 1, "cpu")
    other, _ = program.layer_weights(problem, 2, "cpu")
    quantized = make_weights(problem, 1, "cpu")
    for name in ("w13", "w2", "w13_scale", "w2_scale", "a1_scale", "a2_scale"):
        mine, theirs = getattr(weights, name), getattr(quantized, name)
        if theirs is None:
            assert mine is None, name
        else:
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), name
    for values, scale, columns in (
        (weights.w13, weights.w13_scale, 256), (weights.w2, weights.w2_scale, 128)
    ):  # fmt: skip
        for expert in range(3):
            wide = dequantize_weight(values[expert], None if scale is None else scale[expert])
            assert torch.isfinite(wide).all()
            assert float(wide.std()) * columns**0.5 == pytest.approx(1, abs=0.05)
            assert abs(float(wide.mean())) * columns**0.5 < 0.03
    assert not torch.equal(weights.w13.view(torch.uint8), other.w13.view(torch.uint8))
    assert (gate.shape, gate.dtype) == ((3, 256), torch.bfloat16)
    assert float(gate.float().std()) * 16 == pytest.approx(1, abs=0.1)


def test_a_row_is_a_ratio_over_the_baseline_with_its_interval(program: ModuleType) -> None:
    times = [
        PairedTimes(
            candidate_us=(20.0, 20.2, 19.8), baseline_us=(25.0, 25.25, 24.75), p50_us=p50, p95_us=21.0,
            baseline_p50_us=25.0, baseline_p95_us=26.0,
        )
        for p50 in (20.0, 20.2)
    ]  # fmt: skip
    found = program.row("from the gate on", times)
    assert (found["us"], found["baseline_us"]) == (20.1, 25.0)
    assert found["ratio"] == found["low"] == found["high"] == 1.25
    assert program.line(found).split() == [
        *["from", "the", "gate", "on"], "20.10", "25.00", "1.250", "1.250", "to", "1.250"
    ]  # fmt: skip
    slower = [times[0].model_copy(update={"candidate_us": (20.0, 25.0, 50.0)})]
    found = program.row("from the gate on", slower)
    assert found["low"] < found["ratio"] < found["high"]


def test_what_differs_is_told_with_the_layers_that_were_left_out(program: ModuleType) -> None:
    found = {"after_our_logits": 0.0, "against_baseline": 0.0021, "other_experts": 1, "layers": 12}
    assert program.verdict(found) == (
        "relative L2: 2.1e-03 from the baseline, 0.0e+00 from its steps after our logits; "
        "other experts in 1 of 12 layers"
    )
    found |= {"against_baseline": None, "other_experts": 12}
    assert "no layer to compare from the baseline" in program.verdict(found)


def test_without_vllm_it_says_what_is_missing(program: ModuleType) -> None:
    problem = Problem.parse(program.QWEN)
    bare: Environment = H200.model_copy(update={"vllm": None})
    with pytest.raises(AutotuneError, match="vLLM is not installed here") as caught:
        program.check(problem, bare, program.form(problem))
    assert not isinstance(caught.value, UsageError)
    assert "PYTHON=" in caught.value.hint


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("E=8,N=128,K=256,topk=2,scheme=fp8_channel", "no whole row at hand"),
        ("E=8,N=96,K=256,topk=2,scheme=fp8_block128", "divisible by 128"),
        ("E=8,N=128,K=256,topk=2,scheme=bf16,ep=2", "takes all experts on one GPU only"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(program: ModuleType, shape: str, said: str) -> None:
    problem = Problem.parse(shape)
    with pytest.raises(UsageError, match=said):
        program.check(problem, H200, program.form(problem))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--shape x", 2, "expected KEY=VALUE"),
        ("--shape E=32,N=128,K=256,topk=17,scheme=bf16", 2, "up to 16 experts"),
        ("--layers 0", 2, "--layers 0: 1 to 96 are possible"),
        ("--out FILE", 1, "cannot be written"),
    ],
)
def test_bad_input_is_refused_before_it_begins(
    program: ModuleType, words: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "f").touch()
    assert program.main(words.replace("FILE", str(tmp_path / "f")).split()) == code
    assert said in capsys.readouterr().err


def test_a_machine_without_a_gpu_is_told_so(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert program.main(["--out", str(tmp_path)]) == 1
    assert "There is no CUDA GPU here" in capsys.readouterr().err
    assert not (tmp_path / "gate.json").exists()


def test_help_needs_neither_a_gpu_nor_torch() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    code = "import sys, runpy; sys.modules['torch'] = None; sys.argv = ['gate.py', '--help']; "
    done = subprocess.run(
        [sys.executable, "-c", code + f"runpy.run_path({str(ROOT / 'benchmarks' / 'gate.py')!r}, "
         "run_name='__main__')"],
        env=env, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--layers" in done.stdout
    assert "bench-gate:" in (ROOT / "Makefile").read_text()
