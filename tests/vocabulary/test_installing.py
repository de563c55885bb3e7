"""Hints that install what is missing: what they say can be done."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from autotune.vocabulary.installing import install_extra, source_tree

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_in_a_clone_the_hint_names_it() -> None:
    assert source_tree() == ROOT
    assert shlex.split(install_extra("server", "tune")) == [
        "Install", "it:", "pip", "install", "-e", f"{ROOT}[server,tune].",
    ]  # fmt: skip


def said_elsewhere(folder: Path) -> str:
    """What a copy of this package says that lies in another folder."""
    (folder / "autotune").mkdir(parents=True)
    shutil.copy(ROOT / "autotune" / "__init__.py", folder / "autotune")
    shutil.copytree(ROOT / "autotune" / "vocabulary", folder / "autotune" / "vocabulary")
    script = "from autotune.vocabulary.installing import *; print(install_extra('gpu'))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("beside", [None, "", "[project", '[project]\nname = "another"\n'])
def test_without_a_clone_the_hint_asks_for_one(tmp_path: Path, beside: str | None) -> None:
    if beside is not None:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "pyproject.toml").write_text(beside)
    said = said_elsewhere(tmp_path / "site")
    assert "pip install '.[gpu]' in a clone of moe-autotune" in said
    assert str(tmp_path) not in said


def test_a_path_with_blanks_is_quoted(tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    shutil.copy(ROOT / "pyproject.toml", clone)
    assert f"pip install -e '{clone}[gpu]'." in said_elsewhere(clone)


def test_no_message_asks_an_index_for_this_package() -> None:
    sources = [p for folder in ("autotune", "db", "server", "kernels") for p in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 100
    asking = re.compile(r"pip install [^\n`]*moe-autotune")
    assert [str(p) for p in sources if asking.search(p.read_text())] == []


def test_every_extra_that_is_named_exists() -> None:
    named = set()
    for path in (ROOT / "autotune").rglob("*.py"):
        for arguments in re.findall(r"install_extra\(([^)]*)\)", path.read_text()):
            named |= set(re.findall(r"[\"']([a-z]+)[\"']", arguments))
    assert {"tune", "gpu", "server", "plot"} <= named <= set(EXTRAS)


@pytest.mark.slow
def test_pip_takes_the_hint(tmp_path: Path) -> None:
    # A copy, since pip writes the metadata of an editable package beside it; nothing is installed.
    clone = tmp_path / "a clone"
    shutil.copytree(
        ROOT, clone, symlinks=True, ignore=shutil.ignore_patterns(".*", "benchmarks", "tests", "docs")
    )
    hint = re.sub(re.escape(str(ROOT)), str(clone), install_extra("plot").removeprefix("Install it: pip "))
    words = shlex.split(hint.rstrip("."))
    assert words == ["install", "-e", f"{clone}[plot]"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--dry-run", "--no-deps", "--no-index", "--no-build-isolation"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Would install moe-autotune" in done.stdout
