"""Every command of the program has help text and is documented."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from autotune.cli import app as program

ROOT = Path(__file__).resolve().parents[2]


@cache
def commands() -> dict[str, Any]:
    """Every command by its words, groups included."""
    program._register()

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if words:
            yield " ".join(words), command
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, (*words, name))

    return dict(walk(typer.main.get_command(program.app), ()))


@cache
def documentation() -> str:
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return re.sub(r"\s+", " ", "\n".join(file.read_text() for file in files))


def test_the_commands_of_the_design_are_there() -> None:
    expected = {
        "sweep",
        "route",
        "table show",
        "table export",
        "table import",
        "table lint",
        "publish",
        "revisions",
        "diff",
        "rollback",
        "serve",
        "vllm doctor",
        "models",
        "db upgrade",
    }
    assert expected <= set(commands())


def test_every_command_and_option_has_help() -> None:
    silent = [name for name, command in commands().items() if not (command.help or "").strip()]
    assert not silent, f"commands without help: {silent}"
    parameters = [
        f"{name} {parameter.opts[-1]}"
        for name, command in commands().items()
        for parameter in command.params
        if not (getattr(parameter, "help", None) or "").strip() and "--help" not in parameter.opts
    ]
    assert not parameters, f"options without help: {parameters}"


def test_a_help_text_breaks_its_lines_where_the_terminal_does() -> None:
    broken = [name for name, command in commands().items() if re.search(r"\S\n\S", command.help or "")]
    assert broken == []
    assert "\n\nExample: " in commands()["sweep"].help


def test_every_command_is_documented() -> None:
    missing = [name for name in commands() if not re.search(rf"autotune {name}\b", documentation())]
    assert not missing, f"neither README.md nor docs/ names: {', '.join(f'autotune {m}' for m in missing)}"


def test_documented_commands_exist() -> None:
    known = {name.split()[0] for name in commands()}
    written = set(re.findall(r"`autotune ([a-z]+)\b", documentation()))
    assert written <= known, f"documented, but no command: {sorted(written - known)}"


def test_a_terminal_of_no_columns_still_gets_its_answer() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "table", "show", "--gpu", "h200", "--model", "qwen-moe-fp8"],
        capture_output=True, text=True, env={**os.environ, "COLUMNS": "0", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0
    assert "fused_decode" in done.stdout


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_printed(option: str) -> None:
    from typer.testing import CliRunner

    commands()
    result = CliRunner().invoke(program.app, [option])
    assert result.exit_code == 0
    assert "sweep" in result.output
