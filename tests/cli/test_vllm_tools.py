"""`autotune vllm doctor` where there is neither vLLM nor a GPU (with vLLM: tests/vllm_plugin)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import vllm_tools
from autotune.vocabulary.errors import UnknownNameError, UsageError
from tests.factories import make_table

ROOT = Path(__file__).parents[2]

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
    names = {"layers", "static-fp8", "static-bf16", "tiles", "router", "deep-gemm-warmup", "warmup"}
    names |= {"counts", "metrics", "ranks", "gate"}
    assert {f["name"] for f in report["features"]} == names
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
    said = "mode route (tiles and routing per call; one backend where that cannot be had)"
    assert said in " ".join(text.split())
    monkeypatch.setenv("AUTOTUNE_MODE", "off")
    assert run().stdout.startswith("Nothing is applied: AUTOTUNE_MODE=off.")


@pytest.mark.parametrize("mode", ["off", "observe", "tiles", "static", "route"])
def test_the_mode_is_told(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("AUTOTUNE_MODE", mode)
    assert json.loads(run("--json").stdout)["mode"] == mode
    assert f"mode {mode} (" in " ".join(run().stdout.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--lora"], "LoRA is enabled"), (["--dp", "2"], "data or sequence parallel experts")],
)
def test_a_server_whose_layers_no_table_covers_is_told_why(options: list[str], said: str) -> None:
    found = json.loads(run("--json", "--model", "qwen-moe-fp8", *options).stdout)["model"]
    assert (found["answer"], found["reason"], found["detail"]) == ("fallback", "not_routed", said)
    text = " ".join(run("--model", "qwen-moe-fp8", *options).stdout.split())
    assert f"vLLM's own choice stays (not_routed): {said}" in text


@pytest.mark.parametrize(("chosen", "left_out"), [("another", True), ("another,autotune", False)])
def test_a_plugin_that_is_left_out_is_told(
    monkeypatch: pytest.MonkeyPatch, chosen: str, left_out: bool
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", chosen)
    said = f"VLLM_PLUGINS={chosen} leaves this plugin out: add autotune to it"
    assert (said in " ".join(run().stdout.split())) is left_out


def test_a_backend_that_the_user_set_stays() -> None:
    found = json.loads(run("--json", "--model", "qwen-moe-fp8", "--moe-backend", "triton").stdout)["model"]
    assert (found["answer"], found["static"], found["routing"]) == ("route", None, None)
    assert found["static_detail"] == "moe_backend is triton, as set: vLLM's own order stays"
    assert found["tiles"] == "1..64"


@pytest.mark.parametrize("written", ["Triton", "triton-unfused", "FLASHINFER-CUTLASS"])
def test_a_backend_is_named_as_vllm_takes_it(written: str) -> None:
    found = json.loads(run("--json", "--model", "qwen-moe-fp8", "--moe-backend", written).stdout)["model"]
    name = written.lower().replace("-", "_")
    assert found["static_detail"] == f"moe_backend is {name}, as set: vLLM's own order stays"


def test_auto_is_no_choice_however_it_is_written() -> None:
    model = ("--json", "--model", "qwen-moe-fp8")
    assert run(*model, "--moe-backend", "AUTO").stdout == run(*model).stdout


@pytest.mark.parametrize("options", [["--model", "qwen-moe-fp8"], []])
def test_a_backend_that_no_vllm_has_is_refused(options: list[str]) -> None:
    error = run(*options, "--moe-backend", "tritan").exception
    assert isinstance(error, UnknownNameError)
    assert error.message == "Unknown MoE backend of vLLM 'tritan'."
    assert error.hint.startswith("Did you mean 'triton'? Known: auto, triton, ")


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.28.0", "0.30.0", "0.33.0"])
def test_every_backend_of_every_vllm_is_known(version: str) -> None:
    source = ROOT / ".cache" / "vllm" / version / "vllm" / "config" / "kernel.py"
    if not source.is_file():
        pytest.skip(f"the source of vLLM {version} was not fetched")
    listed = re.search(r"^MoEBackend = Literal\[(.*?)\]", source.read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    names = set(re.findall(r'"(\w+)"', listed[1]))
    assert len(names) > 10
    assert names <= set(vllm_tools.MOE_BACKENDS)


def test_bad_usage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (["--lora"], ["--dp", "2"], ["--moe-backend", "triton"]):
        assert isinstance(run(*options).exception, UsageError), options
    assert isinstance(run("--model", "qwen-moe-fp9").exception, UsageError)
    assert run("--tp", "0").exit_code == 2
    assert isinstance(run("--tp", "2").exception, UsageError)


def test_a_common_reason_is_said_once_and_nothing_reads_as_applied() -> None:
    text = " ".join(run("--model", "qwen-moe-fp8").stdout.split())
    assert text.count("disabled: vLLM is not installed in this Python") == 1
    for feature in json.loads(run("--json").stdout)["features"]:
        assert feature["title"] in text
    assert "model E=128,N=768,K=2048,topk=8,scheme=fp8_block128 (fp8): nothing here; on" in text
    assert "model there, weights prepared for triton" in text
    assert "model weights" not in text


@pytest.mark.parametrize(
    ("mode", "chooses", "routes", "tiles"),
    [("tiles", False, False, True), ("static", True, False, False), ("route", True, True, True)],
)
def test_a_model_is_told_what_the_mode_does(
    monkeypatch: pytest.MonkeyPatch, mode: str, chooses: bool, routes: bool, tiles: bool
) -> None:
    monkeypatch.setenv("AUTOTUNE_MODE", mode)
    found = json.loads(run("--json", "--model", "qwen-moe-fp8").stdout)["model"]
    assert (found["chooses"], found["routing"] is not None, bool(found["tiles"])) == (chooses, routes, tiles)
    assert found["routing_detail"] == ("" if routes else f"not in mode {mode}")
    text = " ".join(run("--model", "qwen-moe-fp8").stdout.split())
    assert ("static choice: no: not in mode" in text) is not chooses
    assert ("gives no tiles of its own" in text or "give no tiles of its own" in text) is not tiles


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"AUTOTUNE_MDOE": "tiles"}, "AUTOTUNE_MDOE is set and read by nothing: did you mean AUTOTUNE_MODE?"),
        (
            {"AUTOTUNE_TELEMETRY": "1"},
            "no telemetry would be sent: AUTOTUNE_TELEMETRY is 1, but AUTOTUNE_URL",
        ),
        (
            {"AUTOTUNE_TELEMETRY": "1", "AUTOTUNE_METRICS": "0"},
            "no telemetry would be sent: nothing is counted, as AUTOTUNE_METRICS is 0",
        ),
        (
            {"AUTOTUNE_TELEMETRY": "1", "AUTOTUNE_MODE": "tiles"},
            "no telemetry would be sent: nothing is counted, as the mode is tiles",
        ),
    ],
)
def test_settings_that_cannot_work_are_named(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], said: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert any(warning.startswith(said) for warning in json.loads(run("--json").stdout)["warnings"])


def test_no_digest_is_told_where_there_is_no_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ", digest " in " ".join(run().stdout.split())
    monkeypatch.setenv("AUTOTUNE_TABLE", str(tmp_path / "none.json"))
    source = " ".join(run().stdout.split()).partition(" source ")[2]
    assert source.startswith(str(tmp_path))
    assert ", digest " not in source


@pytest.mark.parametrize(("name", "value"), [("MODE", "foo"), ("TIMEOUT", "soon"), ("MATCH", "some")])
def test_a_bad_setting_is_a_finding(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"AUTOTUNE_{name}", value)
    result = run()
    assert result.exit_code == 0
    assert result.stdout.startswith("Nothing would be applied: ")
    assert f"AUTOTUNE_{name}" in result.stdout.splitlines()[0]
    report = json.loads(run("--json").stdout)
    assert repr(value) in report["warnings"][0]
    assert report["variables"][f"AUTOTUNE_{name}"] == value


def test_it_says_what_it_read_and_what_the_model_would_get_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(run("--model", "qwen-moe-fp8").stdout.split())
    assert "AUTOTUNE_TABLE names it; the plugin reads no database, so not autotune.db either" in text
    assert "nothing here; on NVIDIA_H200 (sm_90; vllm 0.25.1, torch 2.11.0, triton 3.6.0, cuda 13.0) " in text
    assert "this table would give tiles for M in 1..64" in text
    monkeypatch.delenv("AUTOTUNE_TABLE")
    assert "the tables of this package" in " ".join(run().stdout.split())


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_URL", "http://me:s3cret@127.0.0.1:1")
    monkeypatch.delenv("AUTOTUNE_TABLE")
    monkeypatch.setenv("AUTOTUNE_DB", "postgresql://me:s3cret@host/db")
    monkeypatch.setenv("AUTOTUNE_TOKENS", "s3cret:publish")
    for result in (run("--model", "qwen-moe-fp8"), run("--json", "--model", "qwen-moe-fp8")):
        assert result.exit_code == 0
        assert "s3cret" not in result.output
        assert "http://***@127.0.0.1:1" in result.stdout


def test_it_fits_80_columns() -> None:
    # A path is left whole, to be copied.
    lines = run("--model", "qwen-moe-fp8").stdout.splitlines()
    assert max(len(line) for line in lines if "/" not in line) <= 80


def test_the_command_modules_are_cheap_to_import() -> None:
    code = (
        "import sys; from autotune.cli import routing, vllm_tools; "
        "sys.exit(bool({'sqlalchemy', 'httpx', 'torch', 'fastapi', 'optuna', 'vllm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "raised", ["OSError('libcuda.so.1: cannot open')", "RuntimeError()", "SystemExit(3)"]
)
@pytest.mark.parametrize(
    "command",
    [
        "vllm doctor",
        pytest.param("jit warm-up", marks=pytest.mark.slow),
        pytest.param("jit audit vllm", marks=pytest.mark.slow),
    ],
)
def test_a_vllm_that_cannot_be_imported_is_told_whatever_it_raises(
    command: str, raised: str, tmp_path: Path
) -> None:
    if command.startswith("jit"):
        pytest.importorskip("torch")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(f"raise {raised}")
    metadata = tmp_path / "vllm-0.25.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.1\n")
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *command.split()],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "COLUMNS": "300"},
    )  # fmt: skip
    assert done.returncode == (0 if command == "vllm doctor" else 1), done.stderr
    assert "vLLM cannot be imported" in done.stdout + done.stderr
    assert ("libcuda" in raised) == ("libcuda.so.1: cannot open" in done.stdout + done.stderr)
    assert "Traceback" not in done.stderr
