"""`autotune publish`, `revisions`, `diff`, `rollback` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from autotune.cli import database, publishing
from autotune.vocabulary.errors import AutotuneError
from tests.factories import H200, PROBLEM, make_table

SHAPE = ["--gpu", "h200", "--shape", str(PROBLEM)]


@pytest.fixture
def app() -> typer.Typer:
    built = typer.Typer(pretty_exceptions_enable=False)
    publishing.add_to(built)
    database.add_to(built)
    return built


class Commands:
    """Runs commands on one database in a folder of its own."""

    def __init__(self, app: typer.Typer, folder: Path) -> None:
        self._app = app
        self.folder = folder

    def table(self, name: str, **fields: object) -> str:
        path = self.folder / name
        path.write_text(json.dumps(make_table(**fields).to_json_data()))  # type: ignore[arg-type]
        return str(path)

    def run(self, *arguments: str) -> Result:
        result = CliRunner().invoke(self._app, list(arguments))
        if result.exception is not None and isinstance(result.exception, AutotuneError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    def json(self, *arguments: str) -> dict[str, object]:
        data: dict[str, object] = json.loads(self.run(*arguments, "--json").stdout)
        return data


@pytest.fixture
def commands(app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("AUTOTUNE_DB", f"sqlite:///{tmp_path / 'cli.db'}")
    monkeypatch.chdir(tmp_path)
    return Commands(app, tmp_path)


def test_publish_list_compare_roll_back(commands: Commands) -> None:
    first = commands.table("a.json", tokens=(1, 8), wins={8: 1.2})
    second = commands.table("b.json", tokens=(1, 8), wins={1: 1.1, 8: 1.3})
    done = commands.json("publish", first, "--reason", "swept", "--author", "ada")
    assert (done["changed"], done["previous"]) == (True, None)
    text = commands.run("publish", second, "--reason", "swept again", "--author", "ada").stdout
    assert "points at revision 2" in text
    assert "It was at revision 1" in text
    again = commands.run("publish", second, "--reason", "once more", "--author", "ada")
    assert "already" in again.stdout

    listed = commands.run("revisions", "--gpu", "h200").stdout
    rows = [line.split() for line in listed.splitlines() if "NVIDIA_H200" in line]
    assert [row[:2] for row in rows] == [["2", "stable"], ["1", "NVIDIA_H200"]]
    assert listed.index("swept again") < listed.rindex("swept")
    numbers = [r["number"] for r in commands.json("revisions")["revisions"]]  # type: ignore[attr-defined]
    assert numbers == [2, 1]

    compared = commands.json("diff", "1", "2")["rows"]
    assert [r["changed"] for r in compared] == [True, False]  # type: ignore[attr-defined]
    assert "1 of 2 ranges run something else" in commands.run("diff", "1", "2").stdout
    assert commands.json("diff", first, second)["rows"] == compared
    assert commands.json("diff", "1", second)["rows"] == compared

    back = commands.json("rollback", *SHAPE, "--reason", "slower", "--author", "bo")
    assert back["revision"]["number"] == 1  # type: ignore[index]
    forward = commands.json("rollback", *SHAPE, "--to", "2", "--reason", "was fine", "--author", "bo")
    assert forward["previous"] == 1
    none = commands.json("rollback", *SHAPE, "--to", "none", "--reason", "stop", "--author", "bo")
    assert none["revision"]["table_digest"] is None  # type: ignore[index]


def test_none_and_models(commands: Commands) -> None:
    table = commands.table("a.json")
    commands.run("publish", table, "--reason", "swept")
    done = commands.json("publish", "--none", "--gpu", "h200", "--model", "qwen-moe-fp8", "--reason", "off")
    assert done["revision"]["table_digest"] is None  # type: ignore[index]
    assert len(commands.json("revisions", "--model", "qwen-moe-fp8")["revisions"]) == 2  # type: ignore[arg-type]
    assert commands.json("revisions", "--model", "qwen-moe-fp8-tensor") == {"revisions": []}


def test_nothing_published_yet_is_no_failure(commands: Commands) -> None:
    commands.run("db", "upgrade")
    result = commands.run("revisions")
    assert result.stdout == ""
    assert "autotune publish" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["publish"], "Name a table file, or --none"),
        (["publish", "a.json", "--none"], "not both"),
        (["publish", "a.json", "--gpu", "h200", "--reason", "r"], "says its own"),
        (["publish", "absent.json", "--reason", "r"], "cannot be read"),
        (["publish", "junk.json", "--reason", "r"], "is no JSON"),
        (["publish", "cut.json", "--reason", "r"], "does not match its content"),
        (["publish", "a.json"], "The reason must be one line"),
        (["publish", "a.json", "--reason", "r", "--channel", "No!"], "no channel name"),
        (["publish", "--none", "--reason", "r"], "--gpu is missing"),
        (["publish", "--none", "--gpu", "h200", "--reason", "r"], "--model or by --shape"),
        (["publish", "--none", *SHAPE, "--reason", "r"], "Nothing is published"),
        (["publish", "--none", *SHAPE, "--checkpoint", "awq", "--reason", "r"], "Unknown checkpoint"),
        (["revisions", "--gpu", "h2000"], "Unknown GPU"),
        (["revisions", "--shape", "E=1"], "is missing"),
        (["rollback", *SHAPE, "--to", "x", "--reason", "r"], "no revision number"),
        (["rollback", *SHAPE, "--to", "99", "--reason", "r"], "no revision 99"),
        (["diff", "1", "99"], "no revision 1"),
        (["revisions", "--db", "sqlite:///absent.db"], "There is no database"),
    ],
)
def test_bad_usage_says_what_to_do(commands: Commands, arguments: list[str], message: str) -> None:
    commands.run("db", "upgrade")
    commands.table("a.json")
    (commands.folder / "junk.json").write_text("{")
    cut = {**make_table().to_json_data(), "margin": 0.5}
    (commands.folder / "cut.json").write_text(json.dumps(cut))
    with pytest.raises(AutotuneError) as caught:
        commands.run(*arguments)
    assert message in str(caught.value)
    assert caught.value.hint


def test_several_tables_that_fit_are_listed(commands: Commands) -> None:
    older = H200.model_copy(update={"vllm": "0.24.0"})
    commands.run("publish", commands.table("a.json"), "--reason", "r")
    commands.run("publish", commands.table("b.json", environment=older), "--reason", "r")
    with pytest.raises(AutotuneError, match=r"Several tables fit.*vllm 0.24.0.*--to N"):
        commands.run("publish", "--none", *SHAPE, "--reason", "r")
    # A number is never ambiguous.
    back = commands.json("rollback", *SHAPE, "--to", "2", "--reason", "r")
    assert back["changed"] is False
