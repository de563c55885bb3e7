"""`make bench-kernels`, on the recorded figures of an H200."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autotune.measure.evidence_file import find_evidence
from autotune.vocabulary.catalogue import resolve_problem
from autotune.vocabulary.measurement import Stage, Status

ROOT = Path(__file__).parents[2]
MODEL = "qwen-moe-fp8-tensor"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_kernels", ROOT / "benchmarks" / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_rows_show_the_floor_each_backend_and_its_interval(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--replay", "--model", MODEL, "--tokens", "1,3,8", "--out", str(tmp_path)]
    assert program.main(arguments) == 0
    found = json.loads((tmp_path / "kernels.json").read_text())
    assert found["environment"]["gpu"] == "NVIDIA_H200"
    assert found["driver"] == "580.159.04"
    first, second = found["models"][MODEL]["rows"]  # 3 is not on record
    assert (first["tokens"], second["tokens"]) == (1, 8)
    assert first["floor_us"] == pytest.approx(8.78, abs=0.01)
    assert first["bound"] == "memory"
    cell = first["backends"]["fused_decode"]
    assert cell["us"] == pytest.approx(17.8, abs=0.1)
    assert cell["low"] <= cell["ratio"] <= cell["high"]
    assert cell["ratio"] == pytest.approx(2.16, abs=0.02)
    assert cell["reached"] == pytest.approx(first["floor_us"] / cell["us"], abs=0.001)
    printed = capsys.readouterr().out
    (row,) = (text for text in printed.splitlines() if text.split()[:1] == ["1"])
    assert "8.8" in row
    assert f"{cell['us']:.1f}* (" in row


def test_the_best_known_candidate_is_that_of_the_nearest_count(program: ModuleType) -> None:
    problem, _ = resolve_problem(MODEL)
    known = find_evidence(problem, "NVIDIA_H200")
    assert known is not None
    finals = [
        m for m in known[1]
        if m.tokens == 1 and m.stage is Stage.FINAL and m.candidate.backend == "fused_decode"
        and m.status is Status.OK and m.times
    ]  # fmt: skip
    best = program.best_known(known[1], "fused_decode", 1)
    assert best in {m.candidate for m in finals}
    assert program.best_known(known[1], "deep_gemm", 1) is None
    assert program.best_known(known[1], "triton", 100_000) == program.best_known(known[1], "triton", 16_384)


def test_no_time_means_no_row_and_no_evidence_is_said(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--replay", "--model", MODEL, "--tokens", "1,8", "--seconds", "0", "--out", str(tmp_path)]
    assert program.main(quick) == 0
    assert "not measured: 1, 8" in capsys.readouterr().err
    assert program.main(["--replay", "--model", "mixtral-8x7b-bf16", "--out", str(tmp_path)]) == 1
    assert "Measure it on a GPU" in capsys.readouterr().err
