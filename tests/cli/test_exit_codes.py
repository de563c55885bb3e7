"""The same fault has the same exit code with every command: 2 for an argument that names nothing that can be
read, 1 for what can be read but is broken, and for a place that cannot be written; never a traceback."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
import typer

from autotune.cli import app as program
from autotune.lab.arms import named_arms
from autotune.lab.plan import Plan, Point
from autotune.vocabulary.problem import Scheme

MODEL = ("--gpu", "h200", "--model", "qwen-moe-fp8")
TILES = "E=128,N=768,device_name=NVIDIA_H200.json"
STARTER = str(resources.files("autotune").joinpath("data", "tables", "nvidia_h200-qwen-moe-fp8.json"))

# `@` stands for what is at fault.
FILES: dict[str, tuple[str, ...]] = {
    "route --table": ("route", *MODEL, "--tokens", "8", "--table", "@"),
    "table show --table": ("table", "show", *MODEL, "--table", "@"),
    "table export --table": ("table", "export", *MODEL, "--table", "@"),
    "table plot --table": ("table", "plot", *MODEL, "--out", "x.svg", "--table", "@"),
    "table import": ("table", "import", "@"),
    "table lint": ("table", "lint", "@"),
    "publish": ("publish", "@", "--reason", "x"),
    "diff": ("diff", "@", "none"),
    "sweep --evidence": ("sweep", *MODEL, "--replay", "--evidence", "@"),
    "sweep --model": ("sweep", "--gpu", "h200", "--model", "./@"),
    "route --model": ("route", "--gpu", "h200", "--tokens", "8", "--model", "./@"),
    "models": ("models", "./@"),
    "vllm doctor --model": ("vllm", "doctor", "--model", "./@"),
    "jit audit --model": ("jit", "audit", "--model", "./@"),
    "jit warm-up --table": ("jit", "warm-up", "--table", "@"),
    "lab run --plan": ("lab", "run", "--out", "o", "--show", "--plan", "@"),
    "lab run --table": ("lab", "run", "--out", "o", "--show", "--table", "@"),
}
TILE_FILES: dict[str, tuple[str, ...]] = {
    "table import, of vLLM": ("table", "import", f"@/{TILES}"),
    "table lint, of vLLM": ("table", "lint", f"@/{TILES}"),
}
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "lab report": ("lab", "report", "@"),
    "lab report --cold": ("lab", "report", "good", "--cold", "@"),
    "lab outputs": ("lab", "outputs", "@"),
}
READ: dict[str, tuple[str, ...]] = {
    "revisions": ("revisions",),
    "rollback": ("rollback", *MODEL, "--reason", "x"),
    "route": ("route", *MODEL, "--tokens", "8"),
    "table show": ("table", "show", *MODEL),
    "diff": ("diff", "1", "2"),
}
WRITTEN: dict[str, tuple[str, ...]] = {
    "sweep": ("sweep", *MODEL, "--replay", "--tokens", "8"),
    "publish": ("publish", STARTER, "--reason", "x"),
    "table import": ("table", "import", STARTER),
    "serve": ("serve", "--port", "0"),
    "db upgrade": ("db", "upgrade"),
}
OUTPUTS: dict[str, tuple[str, ...]] = {
    "table export": ("table", "export", *MODEL, "--out", "@"),
    "table export, for vLLM": ("table", "export", *MODEL, "--format", "vllm", "--out", "@"),
    "table plot": ("table", "plot", *MODEL, "--out", "@.svg"),
    "lab report": ("lab", "report", "good", "--plot", "@.svg"),
}


@pytest.fixture(scope="module", autouse=True)
def registered_once() -> Iterator[None]:
    """One process runs one command, and registers all commands for it: here once is enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "app", typer.Typer(pretty_exceptions_enable=False))
        program._register()
        patch.setattr(program, "_register", lambda: None)
        yield


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with one of each fault."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AUTOTUNE_")]:
        monkeypatch.delenv(name)
    content = {"empty": b"", "junk": random.Random(1).randbytes(4000)}
    for name, data in content.items():
        Path(name).write_bytes(data)
        for folder, file in ((f"tiles-{name}", TILES), (f"lab-{name}", "plan.json")):
            Path(folder).mkdir()
            Path(folder, file).write_bytes(data)
    Path("folder").mkdir()
    Path("folder.svg").mkdir()
    Path("tiles-folder", TILES).mkdir(parents=True)
    Path("good").mkdir()
    load = Point(concurrency=1, shortest=8, longest=8, output=8, requests=12)
    arms = named_arms(("stock", "stock-again"), Scheme.FP8_TENSOR)
    plan = Plan(scheme=Scheme.FP8_TENSOR, layers=1, arms=arms, points=(load,))
    Path("good", "plan.json").write_text(plan.model_dump_json())


def outcome(
    arguments: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """The exit code, and what was said."""
    monkeypatch.setattr(sys, "argv", ["autotune", *(a.replace("@", name) for a in arguments)])
    with pytest.raises(SystemExit) as ended:
        program.run()
    said = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.out + said.err


@pytest.mark.parametrize("command", FILES)
@pytest.mark.parametrize(
    ("name", "code"), [("missing", 2), ("folder", 2), ("empty/x", 2), ("empty", 1), ("junk", 1)]
)
def test_a_file_that_is_read(
    command: str, name: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = outcome(FILES[command], name, monkeypatch, capsys)
    assert found == code, said
    # A finding of `table lint` is its result.
    assert "next:" in said or command == "table lint"


@pytest.mark.parametrize("command", TILE_FILES)
@pytest.mark.parametrize(("name", "code"), [("missing", 2), ("folder", 2), ("empty", 1), ("junk", 1)])
def test_a_file_of_vllms_tiles(
    command: str, name: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = outcome(TILE_FILES[command], f"tiles-{name}", monkeypatch, capsys)
    assert found == code, said


@pytest.mark.parametrize("command", EXPERIMENTS)
@pytest.mark.parametrize(
    ("name", "code"), [("missing", 2), ("folder", 2), ("empty", 2), ("lab-empty", 1), ("lab-junk", 1)]
)
def test_a_folder_of_an_experiment(
    command: str, name: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = outcome(EXPERIMENTS[command], name, monkeypatch, capsys)
    assert found == code, said
    assert "next:" in said
    assert "errors.pydantic.dev" not in said


@pytest.mark.parametrize("command", [*READ, *WRITTEN])
@pytest.mark.parametrize(("name", "code"), [("missing/x", 2), ("folder", 2), ("empty/x", 2), ("junk", 1)])
def test_a_database(
    command: str, name: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (*(READ | WRITTEN)[command], "--db", "sqlite:///@")
    found, said = outcome(arguments, name, monkeypatch, capsys)
    assert found == code, said
    assert "next:" in said


@pytest.mark.parametrize("command", READ)
def test_a_database_that_is_only_read_must_be_there(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = outcome((*READ[command], "--db", "sqlite:///@"), "missing", monkeypatch, capsys)
    assert found == 2, said
    assert not Path("missing").exists()


@pytest.mark.parametrize("command", OUTPUTS)
@pytest.mark.parametrize("name", ["folder", "empty/x", "/proc/x"])
def test_a_place_that_cannot_be_written(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "table export, for vLLM" and name == "folder":
        return  # that is what it takes
    found, said = outcome(OUTPUTS[command], name, monkeypatch, capsys)
    assert found == 1, said
    assert "cannot be written" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("lab", "run", "--out", "o", "--layers", "1", "--model-folder", "@"),
        ("lab", "outputs", "good", "--model-folder", "@"),
    ],
)
@pytest.mark.parametrize("name", ["missing", "folder", "empty"])
def test_a_folder_of_a_model(
    arguments: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = outcome(arguments, name, monkeypatch, capsys)
    assert found == 2, said
    assert "config.json cannot be read" in said


def test_a_broken_record_of_a_start_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("good", "starts").mkdir()
    Path("good", "starts", "stock-1.json").write_text(json.dumps({"arm": "stock"}))
    found, said = outcome(("lab", "report", "good"), "", monkeypatch, capsys)
    assert found == 1, said
    assert "stock-1.json is no record of a start: log: Field required." in " ".join(said.split())
