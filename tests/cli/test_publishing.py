"""`autotune publish`, `revisions`, `diff`, `rollback` as a user runs them."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from autotune.cli import database, publishing
from autotune.cli.publishing_lookup import undo_command
from autotune.db.engine import open_database
from autotune.db.keys import environment_digest
from autotune.db.revisions import RevisionRepository
from autotune.db.store import DatabaseStore
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import AutotuneError
from autotune.vocabulary.measurement import Stage
from tests.factories import H100, H200, OTHER_PROBLEM, PROBLEM, make_measurement, make_table

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
    rows = [line.split() for line in listed.splitlines() if " ada " in line]
    assert [(row[0], "stable" in row) for row in rows] == [("2", True), ("1", False)]
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


def test_a_filter_that_matches_nothing_is_not_an_empty_database(commands: Commands) -> None:
    commands.run("publish", commands.table("a.json"), "--reason", "r")
    for options in (["--gpu", "h100"], ["--model", "qwen-moe-bf16"], ["--vllm", "0.99"]):
        result = commands.run("revisions", *options)
        assert result.stdout == ""
        assert "1 revision is for something else" in " ".join(result.stderr.split())
        assert "yet" not in result.stderr


def test_what_publishes_prints_a_command_that_undoes_it(two_environments: Commands) -> None:
    """Also among several environments, in a channel of its own, and from `none`."""
    for made in (
        ["publish", two_environments.table("c.json", tokens=(1, 2))],
        ["publish", two_environments.table("d.json"), "--channel", "canary"],
        ["publish", "--none", *SHAPE, "--vllm", "0.26.0"],
    ):
        before = pointing(two_environments)
        told = two_environments.run(*made, "--reason", "try").stderr
        assert pointing(two_environments) != before
        program, *words = shlex.split(told.removeprefix("undo with: "))
        assert program == "autotune"
        two_environments.run(*words)
        assert pointing(two_environments) == before


def test_the_command_that_undoes_shows_no_password(commands: Commands) -> None:
    commands.run("publish", commands.table("a.json"), "--reason", "r")
    with open_database(os.environ["AUTOTUNE_DB"]) as opened:
        with opened.read() as session:
            (made,) = RevisionRepository(session).newest(problem=PROBLEM)
        done: Any = SimpleNamespace(revision=made, channel="stable")
        assert "s3cret" not in undo_command(opened, done, "postgresql://me:s3cret@host/name")
        assert "--db postgresql://me@host/name" in undo_command(opened, done, "postgresql://me@host/name")


def test_back_to_before_the_first_revision(commands: Commands) -> None:
    commands.run("publish", commands.table("a.json"), "--reason", "r")
    commands.run("publish", commands.table("b.json", tokens=(1, 2)), "--reason", "r")
    gone = commands.json("rollback", *SHAPE, "--to", "unpublished", "--reason", "r")
    assert gone == {"revision": None, "channel": "stable", "changed": True, "previous": 2}
    assert pointing(commands) == {}
    with pytest.raises(AutotuneError, match="Nothing is published"):
        commands.run("rollback", *SHAPE, "--reason", "r")
    back = commands.json("rollback", *SHAPE, "--to", "1", "--reason", "r")
    assert (back["previous"], back["changed"]) == (None, True)


@pytest.mark.parametrize(
    "arguments",
    [["publish", "a.json", "--reason", "r"], ["revisions"], ["rollback", *SHAPE, "--reason", "r"]],
)
def test_a_split_without_a_model_is_refused(commands: Commands, arguments: list[str]) -> None:
    commands.table("a.json")
    for split in ("--tp", "--ep"):
        with pytest.raises(AutotuneError, match="--tp and --ep go with --model"):
            commands.run(*arguments, split, "2")


def test_equal_tables_are_one_line_and_the_rest_can_be_left_out(commands: Commands) -> None:
    first = commands.table("a.json", tokens=(1, 8), wins={8: 1.2})
    second = commands.table("b.json", tokens=(1, 8), wins={1: 1.1, 8: 1.3})
    figures = commands.table("c.json", tokens=(1, 8), wins={8: 1.4})
    same = commands.run("diff", first, first, "--changed").stdout
    assert same == commands.run("diff", first, first).stdout
    assert same.splitlines()[-1] == "No difference in 2 ranges of token counts."
    assert "before" not in same.splitlines()[-2]
    assert [r["first"] for r in commands.json("diff", first, second, "--changed")["rows"]] == [1]  # type: ignore[attr-defined]
    text = commands.run("diff", first, second, "--changed").stdout
    assert "1 of 2 ranges run something else" in text
    assert "1.300x" not in text
    assert "1.300x" in commands.run("diff", first, second).stdout
    assert "0 of 2 ranges" in commands.run("diff", first, figures, "--changed").stdout


def test_nothing_published_yet_is_no_failure(commands: Commands) -> None:
    commands.run("db", "upgrade")
    result = commands.run("revisions")
    assert result.stdout == ""
    assert "autotune publish" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["publish", "--reason", "r"], "Name a table file, or --none"),
        (["publish", "a.json", "--none", "--reason", "r"], "not both"),
        (["publish", "a.json", "--vllm", "0.25.1", "--reason", "r"], "says its own"),
        (["publish", "deep.json", "--reason", "r"], "nests too deeply"),
        (["publish", "huge.json", "--reason", "r"], "too large"),
        (["publish", "half.json", "--reason", "r"], "surrogate"),
        (["publish", "folder", "--reason", "r"], "cannot be read"),
        (["diff", "deep.json", "a.json"], "nests too deeply"),
        (["diff", "none", "none"], "differs in nothing"),
        (["diff", "a.json", "other.json"], "E=8,N=14336,K=4096,topk=2,scheme=bf16 on NVIDIA_H200"),
        (["diff", "a.json", "h100.json"], "on NVIDIA_H100"),
        (["publish", "--none", *SHAPE, "--vllm", "", "--reason", "r"], "no version"),
        (["rollback", *SHAPE, "--environment", "xyz", "--reason", "r"], "environment's digest"),
        (["revisions", "--environment", "%%%%"], "environment's digest"),
        (["revisions", "--db", "foo"], "does not parse"),
        (["publish", "a.json", "--gpu", "h200", "--reason", "r"], "says its own"),
        (["publish", "absent.json", "--reason", "r"], "cannot be read"),
        (["publish", "junk.json", "--reason", "r"], "is no JSON"),
        (["publish", "cut.json", "--reason", "r"], "does not match its content"),
        (["publish", "a.json", "--reason", ""], "The reason must be one line"),
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
    commands.table("other.json", problem=OTHER_PROBLEM)
    commands.table("h100.json", environment=H100)
    (commands.folder / "junk.json").write_text("{")
    (commands.folder / "deep.json").write_text("[" * 200_000)
    (commands.folder / "huge.json").write_text('{"margin": 1e999}')
    (commands.folder / "half.json").write_text('{"margin": "\\ud800"}')
    (commands.folder / "folder").mkdir()
    cut = {**make_table().to_json_data(), "margin": 0.5}
    (commands.folder / "cut.json").write_text(json.dumps(cut))
    with pytest.raises(AutotuneError) as caught:
        commands.run(*arguments)
    assert message in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["publish", "a.json"], "Missing option '--reason'"),
        (["rollback", *SHAPE], "Missing option '--reason'"),
        (["revisions", "--limit", "9223372036854775808"], "less than or equal to 100000"),
        (["revisions", "--limit", "0"], "greater than or equal to 1"),
    ],
)
def test_options_that_are_missing_or_out_of_range(
    app: typer.Typer, arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("\u2502", " ").split())


NEWER = H200.model_copy(update={"vllm": "0.26.0"})


@pytest.fixture
def two_environments(commands: Commands) -> Commands:
    """Revision 1 is for vLLM 0.25.1 and revision 2 for 0.26.0, both in stable."""
    commands.run("publish", commands.table("a.json"), "--reason", "r")
    commands.run("publish", commands.table("b.json", environment=NEWER), "--reason", "r")
    return commands


def pointing(commands: Commands, *arguments: str) -> dict[str, tuple[str, str | None]]:
    """What each channel points at: vLLM's version and the table's digest."""
    found = {}
    for r in commands.json("revisions", *arguments)["revisions"]:  # type: ignore[attr-defined]
        for channel in r["channels"]:
            found[f"{channel} {r['environment']['vllm']}"] = r["table_digest"]
    return found


def test_several_tables_that_fit_are_listed(two_environments: Commands) -> None:
    listed = rf"Several tables fit.*vllm 0.25.1.*vllm 0.26.0.*{environment_digest(NEWER)[:8]}.*--vllm"
    for arguments in (["publish", "--none"], ["rollback", "--to", "none"], ["rollback"]):
        with pytest.raises(AutotuneError, match=listed):
            two_environments.run(*arguments, *SHAPE, "--reason", "r")
    # A number is never ambiguous.
    back = two_environments.json("rollback", *SHAPE, "--to", "2", "--reason", "r")
    assert back["changed"] is False


@pytest.mark.parametrize("how", [["publish", "--none"], ["rollback", "--to", "none"]])
@pytest.mark.parametrize(
    "which",
    [["--vllm", "0.26.0"], ["--vllm", "0.26.0+cu130"], ["--environment", environment_digest(NEWER)[:8]]],
)
def test_one_of_two_environments_is_stopped(
    two_environments: Commands, how: list[str], which: list[str]
) -> None:
    two_environments.run(*how, *SHAPE, *which, "--reason", "stop")
    now = pointing(two_environments)
    assert now["stable 0.26.0"] is None
    assert now["stable 0.25.1"] == make_table().digest
    with pytest.raises(AutotuneError, match=r"Nothing is published for .*vllm 0\.99"):
        two_environments.run(*how, *SHAPE, "--vllm", "0.99", "--reason", "stop")
    with pytest.raises(AutotuneError, match=r"Revision 1 is for .*vllm 0.25.1.*not for .*vllm 0.26.0"):
        two_environments.run("rollback", *SHAPE, "--to", "1", "--vllm", "0.26.0", "--reason", "r")


def test_revisions_show_and_take_what_tells_environments_apart(two_environments: Commands) -> None:
    listed = two_environments.run("revisions").stdout
    for environment in (H200, NEWER):
        assert f"vllm {environment.vllm}, " in listed
        assert f"environment {environment_digest(environment)[:8]}" in listed
    for which in (["--vllm", "0.26.0"], ["--environment", environment_digest(NEWER)[:6].upper()]):
        found = two_environments.json("revisions", *which)["revisions"]
        assert [r["number"] for r in found] == [2]  # type: ignore[attr-defined]


def test_none_in_a_channel_that_points_nowhere_yet(two_environments: Commands) -> None:
    stop = ["publish", "--none", *SHAPE, "--channel", "canary", "--reason", "r"]
    with pytest.raises(AutotuneError, match="Several tables fit"):
        two_environments.run(*stop)
    two_environments.run(*stop, "--vllm", "0.25.1")
    assert pointing(two_environments, "--vllm", "0.25.1")["canary 0.25.1"] is None
    # Rolling back needs something to go back to.
    with pytest.raises(AutotuneError, match="Nothing is published"):
        two_environments.run("rollback", *SHAPE, "--vllm", "0.26.0", "--channel", "canary", "--reason", "r")


def test_none_for_what_was_measured_only(commands: Commands) -> None:
    with open_database(f"sqlite:///{commands.folder / 'cli.db'}") as opened:
        DatabaseStore(opened).append(make_measurement())
    commands.run("publish", "--none", *SHAPE, "--reason", "not yet")
    assert pointing(commands) == {"stable 0.25.1": None}


def test_none_is_for_the_environment_that_a_sweep_would_publish_for(commands: Commands) -> None:
    """A table names FlashInfer only where a route or its baseline runs it; its evidence always does."""
    measured = H200.model_copy(update={"flashinfer": "0.6.13"})
    with open_database(f"sqlite:///{commands.folder / 'cli.db'}") as opened:
        for process in range(3):
            final = make_measurement(stage=Stage.FINAL, process=process, environment=measured)
            DatabaseStore(opened).append(final)
    stop = ["publish", "--none", *SHAPE, "--reason", "wrong answers seen"]
    said = commands.run(*stop).stdout
    assert f"environment {environment_digest(H200)[:8]}" in said
    # What was published decides, whatever else was measured.
    commands.run("publish", commands.table("n.json"), "--reason", "r")
    commands.run("rollback", *SHAPE, "--to", "unpublished", "--reason", "r")
    commands.run(*stop)
    found = commands.json("revisions")["revisions"]
    assert {environment_digest(Environment.model_validate(r["environment"])) for r in found} == {  # type: ignore[attr-defined]
        environment_digest(H200)
    }


def test_diff_names_the_layers_and_takes_none(two_environments: Commands) -> None:
    text = two_environments.run("diff", "1", "2").stdout
    assert f"before (1): {PROBLEM} on NVIDIA_H200, fp8" in text
    assert f"after (2): {PROBLEM} on NVIDIA_H200, fp8" in text
    assert "vllm 0.25.1" in text
    assert "vllm 0.26.0" in text
    for sides in (("none", "1"), ("1", "none"), ("none", "a.json")):
        text = two_environments.run("diff", *sides).stdout
        assert "(none): nothing is applied" in text
        assert "7 of 7 ranges run something else" in text
    data = two_environments.json("diff", "none", "2")
    assert data["before_of"] is None
    assert data["after_of"]["environment"]["vllm"] == "0.26.0"  # type: ignore[index]


def test_revisions_fit_the_terminal(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "swept again after the driver was upgraded, " * 20
    commands.run("publish", commands.table("a.json"), "--reason", reason, "--author", "a" * 100)
    commands.run("publish", commands.table("a.json"), "--reason", reason, "--channel", "canary")
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = commands.run("revisions").stdout.splitlines()
        # Two lines of heading, one of column names, one a revision.
        assert len(lines) == 5, lines
        assert max(len(line) for line in lines) <= columns
        assert all("swept" in line and line.endswith("...") for line in lines[3:])
        assert all(
            part in lines[4] for part in (f"{datetime.now(UTC):%Y-}", "stable", make_table().digest[:12])
        )
    wide = commands.run("revisions", "--wide").stdout
    assert reason.strip() in wide
    assert "a" * 100 in wide


def test_a_tampered_table_is_named_by_route(commands: Commands) -> None:
    from autotune.cli import routing

    built = typer.Typer(pretty_exceptions_enable=False)
    routing.add_to(built)
    commands.run("publish", commands.table("a.json"), "--reason", "r")
    with sqlite3.connect(commands.folder / "cli.db") as connection:
        connection.execute("DROP TRIGGER routing_tables_immutable")
        connection.execute("UPDATE routing_tables SET content = json_set(content, '$.margin', 0.5)")
    connection.close()
    result = CliRunner().invoke(built, ["route", *SHAPE, "--tokens", "8", "--json"])
    decision = json.loads(result.stdout)
    assert (decision["answer"], decision["reason"]) == ("fallback", "broken_table")
    assert "does not match its content" in decision["detail"]
