"""`autotune vllm doctor` where there is neither vLLM nor a GPU (with vLLM: tests/vllm_plugin)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import vllm_tools
from autotune.vocabulary.errors import UsageError
from tests.factories import make_table

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here: nothing to miss"
)


@pytest.fixture(autouse=True)
def own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(make_table().to_json_data()))
    monkeypatch.setenv("AUTOTUNE_TABLE", str(path))


def run(*arguments: str) -> Any:
    app = typer.Typer()
    vllm_tools.add_to(app)
    return CliRunner().invoke(app, ["vllm", "doctor", *arguments])


def test_it_says_what_is_missing_and_exits_0() -> None:
    result = run("--json")
    assert result.exit_code == 0, result.exception
    report = json.loads(result.stdout)
    assert report["vllm"] is None
    assert report["summary"] == "Nothing would be applied here: vLLM is not installed in this Python."
    assert {f["name"] for f in report["features"]} == {"layers", "static-fp8", "static-bf16", "tiles"}
    assert {f["state"] for f in report["features"]} == {"disabled"}
    assert report["tables"][0]["status"] == "not matched"
    assert "AUTOTUNE_TABLE" in report["variables"]


def test_a_model_is_answered_too() -> None:
    report = json.loads(run("--json", "--model", "qwen-moe-fp8").stdout)
    assert report["model"]["tiles"] == "1..64"
    missing = json.loads(run("--json", "--model", "qwen-moe-bf16").stdout)
    assert missing["model"]["answer"] == "fallback"


def test_text_for_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run().stdout
    assert text.startswith("Nothing would be applied here: vLLM is not installed")
    assert "mode         route (tiles and static choice)" in text
    monkeypatch.setenv("AUTOTUNE_MODE", "off")
    assert run().stdout.startswith("Nothing is applied: AUTOTUNE_MODE=off.")


def test_bad_usage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(run("--model", "qwen-moe-fp9").exception, UsageError)
    monkeypatch.setenv("AUTOTUNE_TIMEOUT", "soon")
    assert isinstance(run().exception, UsageError)


def test_the_command_modules_are_cheap_to_import() -> None:
    code = (
        "import sys; from autotune.cli import routing, vllm_tools; "
        "sys.exit(bool({'sqlalchemy', 'httpx', 'torch', 'fastapi', 'optuna', 'vllm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
