"""`make bench-kernels`, on the recorded figures of an H200."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autotune.measure.evidence_file import find_evidence
from autotune.vocabulary.catalogue import resolve_problem
from autotune.vocabulary.measurement import Stage, Status
from tests.benchmarks.programs import load

ROOT = Path(__file__).parents[2]
MODEL = "qwen-moe-fp8-tensor"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load("kernels")


def test_rows_show_the_floor_each_backend_and_its_interval(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--replay", "--model", MODEL, "--tokens", "1,3,8", "--out", str(tmp_path)]
    assert program.main(arguments) == 0
    found = json.loads((tmp_path / "recorded.json").read_text())
    assert found["environment"]["gpu"] == "NVIDIA_H200"
    assert found["driver"] == "580.159.04"
    first, second = found["models"][MODEL]["rows"]  # 3 is not on record
    assert (first["tokens"], second["tokens"]) == (1, 8)
    assert first["floor_us"] == pytest.approx(8.78, abs=0.01)
    assert first["bound"] == "memory"
    cell = first["backends"]["fused_decode"]
    assert cell["us"] == pytest.approx(17.4, abs=0.1)
    assert cell["low"] <= cell["ratio"] <= cell["high"]
    assert cell["ratio"] == pytest.approx(2.25, abs=0.02)
    assert cell["reached"] == pytest.approx(first["floor_us"] / cell["us"], abs=0.001)
    printed = capsys.readouterr().out
    (row,) = (text for text in printed.splitlines() if text.split()[:1] == ["1"])
    assert "8.8" in row
    assert f"{cell['us']:.1f}* (" in row


def test_the_recording_shows_every_backend_and_where_the_baseline_stays_ahead(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Backends that were screened only are on record, too; nothing won at 8,192 tokens of Mixtral's."""
    model = "mixtral-8x7b-fp8"
    arguments = ["--replay", "--model", model, "--tokens", "1,8192", "--out", str(tmp_path)]
    assert program.main(arguments) == 0
    one, kept = json.loads((tmp_path / "recorded.json").read_text())["models"][model]["rows"]
    assert set(one["backends"]) == {
        "triton", "vllm_cutlass", "flashinfer_cutlass", "fused_triton", "fused_decode"
    }  # fmt: skip
    assert one["baseline_us"] == pytest.approx(112.4, abs=0.5)
    assert one["backends"]["fused_decode"]["stage"] == "final"
    assert one["backends"]["fused_decode"]["low"] > 1.19
    assert one["backends"]["flashinfer_cutlass"]["stage"] == "screen"
    assert one["backends"]["flashinfer_cutlass"]["ratio"] == pytest.approx(1, abs=0.01)
    assert all(cell["low"] <= 1 for cell in kept["backends"].values())
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "*" not in rows["8192"]
    assert f"{one['backends']['fused_decode']['us']:.1f}* (" in rows["1"]
    assert f"{one['backends']['flashinfer_cutlass']['us']:.1f}s (" in rows["1"]


def test_a_win_in_one_process_of_three_is_none(program: ModuleType, tmp_path: Path) -> None:
    """Mixtral at 1,024 tokens: FlashInfer's tuner found another tactic in one of the three."""
    arguments = ["--replay", "--model", "mixtral-8x7b-fp8", "--tokens", "64,1024", "--out", str(tmp_path)]
    assert program.main(arguments) == 0
    few, many = json.loads((tmp_path / "recorded.json").read_text())["models"]["mixtral-8x7b-fp8"]["rows"]
    cell = many["backends"]["fused_triton"]
    assert cell["processes"] == 3
    assert cell["low"] == pytest.approx(0.97, abs=0.01)
    assert cell["ratio"] > 1.1
    assert few["backends"]["fused_decode"]["low"] > 1.06


def test_all_that_is_on_record_is_shown_where_no_model_is_named(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--replay", "--tokens", "8", "--out", str(tmp_path)]) == 0
    assert set(json.loads((tmp_path / "recorded.json").read_text())["models"]) == {
        MODEL, "qwen-moe-fp8", "qwen-moe-bf16", "mixtral-8x7b-fp8"
    }  # fmt: skip
    assert "not on record" not in capsys.readouterr().err


def test_the_best_known_candidate_is_that_of_the_nearest_count(program: ModuleType) -> None:
    problem, _ = resolve_problem(MODEL)
    known = find_evidence(problem, "NVIDIA_H200")
    assert known is not None
    finals = [
        m for m in known[1]
        if m.tokens == 1 and m.stage is Stage.FINAL and m.candidate.backend == "fused_decode"
        and m.status is Status.OK and m.times
    ]  # fmt: skip
    (best,) = program.best_known(known[1], "fused_decode", 1)
    assert best in {m.candidate for m in finals}
    several = program.best_known(known[1], "fused_decode", 1, 4)
    assert several[0] == best
    assert len({candidate.digest for candidate in several}) == 4
    assert program.best_known(known[1], "deep_gemm", 1) == []
    assert program.best_known(known[1], "triton", 100_000) == program.best_known(known[1], "triton", 16_384)


def test_a_routing_that_is_not_on_record_is_refused(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = ["--replay", "--model", MODEL, "--tokens", "8", "--out", str(tmp_path)]
    for words, reason in (
        (["--routing", "zipf:1.0"], "recordings are of uniform routing"),
        (["--routing", "uniform,zipf"], "Unknown routing 'zipf'"),
        (["--each", "0"], "--each 0"),
    ):
        assert program.main([*replay, *words]) == 2
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "recorded.json").exists()
    assert program.main([*replay, "--each", "3"]) == 0
    (row,) = json.loads((tmp_path / "recorded.json").read_text())["models"][MODEL]["rows"]
    assert row["routing"] == "uniform"


def test_no_time_means_no_row_and_no_evidence_is_said(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--replay", "--model", MODEL, "--tokens", "1,8", "--seconds", "0", "--out", str(tmp_path)]
    assert program.main(quick) == 0
    assert "not measured: 1, 8" in capsys.readouterr().err
    assert program.main(["--replay", "--model", "mixtral-8x7b-bf16", "--out", str(tmp_path)]) == 1
    assert "Measure it on a GPU" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--model", MODEL], []])
def test_what_is_not_on_record_is_no_success(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert program.main(["--replay", "--tokens", "7", "--out", str(tmp_path), *more]) == 1
    said = capsys.readouterr().err
    assert f"{MODEL}: not on record at 7 tokens\n" in said
    assert "Nothing that was asked for is on record. Leave --tokens out to see what is" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", ["nan", "-1"])
def test_a_time_that_is_none_is_refused(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    asked = ["--replay", "--model", MODEL, "--tokens", "8", f"--seconds={seconds}", "--out", str(tmp_path)]
    assert program.main(asked) == 2
    assert f"--seconds {seconds} is no time. Give 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--blocks", "--calls"])
@pytest.mark.parametrize("value", ["0", "-1", "x", ""])
def test_no_timing_of_the_router_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["router_overhead.py", f"{option}={value}"])
    with pytest.raises(SystemExit) as caught:
        load("router_overhead").main()
    assert caught.value.code == 2
    assert f"argument {option}: {value!r} is no number from 1 on" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.slow
def test_programs_without_a_replay_do_not_advise_one(tmp_path: Path) -> None:
    """On a machine without a GPU they say so, and name what does show recorded figures there."""
    for name in ("recompiles", "decode_forms", "engine_steps", "layer_calls", "gate"):
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--out", str(tmp_path)],
            capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert done.returncode == 1, name
        assert "There is no CUDA GPU here" in done.stderr
        assert "Use --replay" not in done.stderr
        assert "`python benchmarks/kernels.py --replay`" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("recompiles.py --tokens x", 2, "--tokens: 'x' is not an integer"),
        ("recompiles.py --schemes y", 2, "Unknown scheme 'y'"),
        ("recompiles.py --out FILE", 1, "cannot be written"),
        ("decode_forms.py --shape x", 2, "expected KEY=VALUE"),
        ("decode_forms.py --tokens x", 2, "--tokens: 'x' is not an integer"),
        ("layer_calls.py --layers 0", 2, "--layers 0: 1 to 96 are possible"),
        ("layer_calls.py --out FILE/x", 1, "cannot be written"),
        ("engine_steps.py --prefills x", 2, "'x' is no number from 1 to 8192"),
        ("engine_steps.py --out FILE", 1, "cannot be written"),
        ("kernels.py --replay --model qwen-moe-fp8-tensor --tokens 1 --out FILE", 1, "cannot be written"),
        ("deep_gemm_cache.py FILE --most 8", 2, "--most from 32 on"),
        ("deep_gemm_cache.py FILE", 1, "This needs a CUDA GPU"),
        ("router_overhead.py 0.1.0", 2, "`make other-sources` the others"),
    ],
)
def test_programs_refuse_what_they_cannot_do_before_they_begin(
    words: str, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "f").touch()
    program, *rest = words.replace("FILE", str(tmp_path / "f")).split()
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / program), *rest],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
