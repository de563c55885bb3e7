"""`autotune db upgrade`, and the cost of importing the command modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import database
from autotune.db.engine import open_database
from autotune.vocabulary.errors import MissingDependencyError


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
        assert "is up to date (schema 0001)" in result.stdout
    open_database(url, upgrade=False).close()


def test_the_default_database_is_in_the_current_folder(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOTUNE_DB", raising=False)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["db", "upgrade"]).exit_code == 0
    assert (tmp_path / "autotune.db").exists()


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "find_spec", lambda name: None if name == "alembic" else object())
    with pytest.raises(MissingDependencyError, match=r"alembic.*moe-autotune\[tune\]"):
        database.open_for_command(None)


def test_command_modules_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from autotune.cli import database, publishing, serving\n"
        "heavy = {'sqlalchemy', 'alembic', 'fastapi', 'uvicorn', 'jinja2', 'torch', 'optuna'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")
