"""`autotune route` and `autotune table`, run as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import routing
from autotune.vocabulary.errors import AutotuneError
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import RoutingTable
from autotune.vocabulary.wire import encode_tables
from tests.client.servers import Script, http_service
from tests.factories import make_published, make_table

SHAPE = "E=128,N=768,K=2048,topk=8,scheme=fp8_block128"
MODEL = ("--gpu", "h200", "--model", "qwen-moe-fp8")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TABLE", "URL", "DB", "MATCH", "MODE", "CHANNEL"):
        monkeypatch.delenv(f"AUTOTUNE_{name}", raising=False)
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(make_table().to_json_data()))
    return str(path)


def run(*arguments: str) -> Any:
    app = typer.Typer()
    routing.add_to(app)
    return CliRunner().invoke(app, arguments)


def failure(*arguments: str) -> AutotuneError:
    error = run(*arguments).exception
    assert isinstance(error, AutotuneError), error
    return error


def test_a_route_from_a_file(file: str) -> None:
    decision = json.loads(run("route", *MODEL, "--tokens", "8", "--table", file, "--json").stdout)
    assert decision["answer"] == "route"
    assert decision["route"]["winner"]["swap_ab"] is True
    assert decision["source"] == file
    text = run("route", *MODEL, "--tokens", "8", "--table", file).stdout
    assert "1.250x the baseline" in text


def test_shape_and_model_mean_the_same(file: str) -> None:
    by_shape = run(
        "route", "--gpu", "NVIDIA_H200", "--shape", SHAPE, "--tokens", "8", "--table", file, "--json"
    )
    by_model = run("route", *MODEL, "--tokens", "8", "--table", file, "--json")
    assert by_shape.stdout == by_model.stdout


def test_an_unseen_shape_is_a_fallback_with_a_reason(file: str) -> None:
    shape = "E=8,N=64,K=64,topk=2,scheme=bf16"
    result = run("route", "--gpu", "h200", "--shape", shape, "--tokens", "8", "--table", file, "--json")
    decision = json.loads(result.stdout)
    assert (result.exit_code, decision["answer"], decision["reason"]) == (0, "fallback", "unknown_problem")
    assert "vLLM's own choice stays" in run("route", *MODEL, "--tokens", "65", "--table", file).stdout


def test_the_order_of_sources(file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def source(*more: str) -> str:
        result = run("route", *MODEL, "--tokens", "8", *more, "--json")
        return str(json.loads(result.stdout)["source"])

    script = Script()
    script.says(encode_tables([make_published(revision=5)]))
    db = f"sqlite:///{tmp_path}/other.db"
    assert source() == "starter"
    assert run("table", "import", file).exit_code == 0
    assert source().endswith("autotune.db"), "the database in this folder counts once it exists"
    run("table", "import", file, "--db", db)
    assert source("--db", db) == db
    with http_service(script) as url:
        monkeypatch.setenv("AUTOTUNE_URL", url)
        assert source() == url
        assert source("--db", db) == db, "an option counts before the environment"
        assert source("--db", db, "--url", url) == url
        assert source("--url", url, "--table", file) == file


def test_a_service_that_is_down_is_a_fallback_and_a_warning() -> None:
    result = run("route", *MODEL, "--tokens", "8", "--url", "http://127.0.0.1:1", "--json")
    assert json.loads(result.stdout)["reason"] == "unreachable"
    assert "warning: http://127.0.0.1:1 gave no usable answer" in result.stderr


def test_bad_usage(file: str) -> None:
    cases = {
        ("route", *MODEL, "--tokens", "0"): "at least 1",
        ("route", "--gpu", "h300", "--shape", SHAPE, "--tokens", "8"): "Did you mean",
        ("route", "--gpu", "h200", "--model", "qwen-moe-fp9", "--tokens", "8"): "Did you mean",
        ("route", "--gpu", "h200", "--tokens", "8"): "--model or by --shape",
        ("route", "--gpu", "h200", "--shape", "E=x", "--tokens", "8"): "position 2",
        ("route", *MODEL, "--tokens", "8", "--table", "absent.json"): "There is no table absent.json",
        ("route", *MODEL, "--tokens", "8", "--table", file, "--checkpoint", "gguf"): "checkpoint",
        ("table", "export", *MODEL, "--table", file, "--format", "vlm"): "'vllm'",
        ("table", "export", *MODEL, "--table", file, "--format", "vllm"): "--out",
        ("table", "lint", "absent.json"): "no file",
        ("table", "import", "absent.json"): "no file",
    }
    for arguments, said in cases.items():
        error = failure(*arguments)
        assert error.exit_code == 2, arguments
        assert said in str(error), arguments
    assert run("route", *MODEL, "--tokens", "eight").exit_code == 2


def test_show(file: str) -> None:
    text = run("table", "show", *MODEL, "--table", file).stdout
    for expected in ("5..8", "1.250x", "1.225x", "win", "triton 16x128x128", "deep_gemm"):
        assert (expected in text) is (expected != "deep_gemm"), expected
    data = json.loads(run("table", "show", *MODEL, "--table", file, "--json").stdout)
    assert RoutingTable.from_json_data(data["table"]) == make_table()
    error = failure("table", "show", "--gpu", "h100", "--model", "qwen-moe-fp8", "--table", file)
    assert (error.exit_code, "exist for NVIDIA_H200" in str(error)) == (1, True)


def test_export_and_import_go_round(file: str, tmp_path: Path) -> None:
    printed = run("table", "export", *MODEL, "--table", file)
    assert RoutingTable.from_json_data(json.loads(printed.stdout)) == make_table()
    out = tmp_path / "out" / "t.json"
    assert run("table", "export", *MODEL, "--table", file, "--out", str(out)).stdout == ""
    assert "revision 1 of" in run("table", "import", str(out)).stdout
    assert "already was" in run("table", "import", str(out)).stdout
    assert run("table", "export", *MODEL).stdout == printed.stdout


def test_a_broken_file_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**make_table().to_json_data(), "margin": 0.5}))
    assert "does not match its content" in str(failure("table", "import", str(path)))
    assert not (tmp_path / "autotune.db").exists()
    assert failure("route", *MODEL, "--tokens", "8", "--table", str(path)).exit_code == 1


def test_vllm_files_of_all_tables_and_of_one(tmp_path: Path) -> None:
    bf16 = Problem.parse("E=8,N=14336,K=4096,topk=2,scheme=bf16")
    path = tmp_path / "all.json"
    path.write_text(json.dumps(encode_tables([make_published(), make_published(problem=bf16)])))
    result = run(
        "table", "export", "--gpu", "h200", "--format", "vllm", "--out", "folder", "--table", str(path)
    )
    assert result.exit_code == 0, result.exception
    assert result.stdout == ""
    assert "not in the file: out of range" in result.stderr
    names = sorted(p.name for p in Path("folder").iterdir())
    assert names == [
        "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
        "E=8,N=14336,device_name=NVIDIA_H200.json",
    ]
    for name in names:
        assert run("table", "lint", f"folder/{name}").exit_code == 0
    shown = run("table", "import", f"folder/{names[0]}")
    assert "E=128, N=768, NVIDIA_H200, dtype=fp8_w8a8, block_shape=[128, 128]" in shown.stdout
    assert "tells neither K nor top-k" in shown.stderr


def test_lint_exits_1_with_findings(file: str, tmp_path: Path) -> None:
    assert run("table", "lint", file).exit_code == 0
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    result = run("table", "lint", str(bad))
    assert result.exit_code == 1
    assert "not readable JSON" in result.stdout
