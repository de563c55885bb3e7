"""`autotune db upgrade`, and the cost of importing the command modules."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import database
from autotune.db.engine import open_database
from autotune.vocabulary.errors import DatabaseError, MissingDependencyError, UsageError


@pytest.fixture
def app() -> typer.Typer:
    built = typer.Typer(pretty_exceptions_enable=False)
    database.add_to(built)
    return built


def test_upgrade_makes_the_database_and_says_so(app: typer.Typer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    for _ in range(2):
        result = CliRunner().invoke(app, ["db", "upgrade", "--db", url])
        assert result.exit_code == 0, result.output
        assert "is up to date (schema 0002)" in result.stdout
    open_database(url, upgrade=False).close()


def test_the_default_database_is_in_the_current_folder(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOTUNE_DB", raising=False)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["db", "upgrade"]).exit_code == 0
    assert (tmp_path / "autotune.db").exists()


@pytest.mark.parametrize("url", ["foo", "://x", "mysql://root@localhost/x", "sqlite://"])
def test_a_malformed_url_is_bad_usage(app: typer.Typer, url: str) -> None:
    result = CliRunner().invoke(app, ["db", "upgrade", "--db", url])
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
    assert "sqlite:///" in result.exception.hint


def test_upgrade_goes_beside_another_programs_tables_and_says_so(app: typer.Typer, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("CREATE TABLE bookmarks (x INTEGER)")
    connection.close()
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with pytest.raises(DatabaseError, match="belongs to another program"):
        database.open_for_command(url)
    result = CliRunner().invoke(app, ["db", "upgrade", "--db", url])
    assert result.exit_code == 0, result.output
    assert "stand beside ours: bookmarks." in result.stderr
    database.open_for_command(url).close()


def test_without_alembic_every_command_names_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('sqlalchemy', 'alembic', 'fastapi', 'uvicorn'): sys.modules[name] = None\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: sys.modules.get(name)\n"
        "from autotune.cli import main\n"
        "sys.argv = ['autotune', *sys.argv[1:]]\n"
        "main()\n"
    )
    for arguments, extra in (
        (["db", "upgrade"], "tune"), (["revisions"], "tune"), (["diff", "1", "2"], "tune"),
        (["publish", "--none", "--reason", "r"], "tune"),
        (["rollback", "--reason", "r"], "tune"), (["serve"], "server"),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert f"[{extra}]" in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "find_spec", lambda name: None if name == "alembic" else object())
    with pytest.raises(MissingDependencyError, match=r"alembic.*pip install .*\[tune\]"):
        database.open_for_command(None)


def test_command_modules_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from autotune.cli import database, publishing, serving\n"
        "heavy = {'sqlalchemy', 'alembic', 'fastapi', 'uvicorn', 'jinja2', 'torch', 'optuna'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")
