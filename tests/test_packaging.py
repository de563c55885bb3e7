"""What a user installs: wheel and sdist are built, installed in a fresh environment, and looked into."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("autotune", "kernels", "db", "server", "alembic")
HEAVY = ("torch", "sqlalchemy", "optuna", "fastapi", "alembic", "triton", "vllm")
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it; dependencies come from the running environment."""

    python: Path
    wheel_files: frozenset[str]
    sdist_files: frozenset[str]
    direct_wheel_files: frozenset[str]

    def run(self, code: str) -> Any:
        """Run code that prints JSON, away from the repository."""
        return json.loads(_run([str(self.python), "-c", code], cwd=self.python.parent))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build an sdist, from it a wheel, and install that wheel."""
    work = tmp_path_factory.mktemp("packaging")
    env = work / "env"
    venv.create(env, with_pip=True, symlinks=True)
    python = env / "bin" / "python"
    _run([str(python), "-m", "pip", "install", "--quiet", "setuptools>=77"], cwd=work)

    tree = work / "tree"
    shutil.copytree(
        ROOT,
        tree,
        symlinks=True,
        ignore=shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist"),
    )
    sdist = _build(python, "sdist", tree, work / "out")
    with tarfile.open(sdist) as archive:
        # Python 3.11.2, Debian 12's, has no filters.
        filters: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(work / "unpacked", **filters)
        sdist_files = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    (source,) = (work / "unpacked").iterdir()
    wheel = _build(python, "wheel", source, work / "out")
    direct = _build(python, "wheel", tree, work / "direct")

    _run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)], cwd=work)
    site = _run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=work
    ).strip()
    # A line of a .pth file is put on sys.path, but the .pth files found there are not read: the editable
    # installation of the running environment stays out.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(python, _names(wheel), frozenset(sdist_files), _names(direct))


def test_the_wheel_holds_the_four_folders_under_autotune_only(installed: Installed) -> None:
    tops = {name.split("/")[0] for name in installed.wheel_files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"autotune"}
    for folder in FOLDERS[1:]:
        assert any(name.startswith(f"autotune/{folder}/") for name in installed.wheel_files), folder


@pytest.mark.parametrize("kind", ["wheel_files", "direct_wheel_files"])
def test_every_file_of_the_packages_is_in_the_wheel(installed: Installed, kind: str) -> None:
    missing = _package_files() - getattr(installed, kind)
    assert not missing, f"not in the wheel (package-data in pyproject.toml?): {sorted(missing)}"


def test_every_file_of_the_packages_is_in_the_sdist(installed: Installed) -> None:
    missing = _package_files() - installed.sdist_files
    assert not missing, f"not in the sdist: {sorted(missing)}"
    assert {"pyproject.toml", "README.md", "LICENSE"} <= installed.sdist_files


@pytest.mark.parametrize(
    ("folder", "suffix"),
    [
        ("autotune/alembic/versions/", ".py"),
        ("autotune/alembic/", "script.py.mako"),
        ("autotune/server/", ".html"),
        ("autotune/data/tables/", ".json"),
        ("autotune/data/evidence/", ".jsonl.gz"),
        ("autotune/", "py.typed"),
    ],
)
def test_the_wheel_holds_what_is_no_module(installed: Installed, folder: str, suffix: str) -> None:
    found = [name for name in installed.wheel_files if name.startswith(folder) and name.endswith(suffix)]
    assert found, f"no {folder}*{suffix} in the wheel"


def test_the_licence_is_in_the_wheel(installed: Installed) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in installed.wheel_files)


def test_the_installed_modules_are_the_wheels(installed: Installed) -> None:
    found = installed.run(
        "import json, autotune.kernels.specs as k, autotune.db.models as d, autotune.vocabulary as v\n"
        "print(json.dumps([m.__file__ for m in (k, d, v)]))"
    )
    environment = installed.python.parent.parent
    assert all(Path(file).is_relative_to(environment) for file in found), found


def test_no_top_level_package_is_taken(installed: Installed) -> None:
    found = installed.run(
        "import json, importlib.util as u, sys\n"
        f"print(json.dumps([s.origin for n in {FOLDERS[1:]!r} if (s := u.find_spec(n))]))"
    )
    assert all(origin and "alembic/__init__" in origin for origin in found), found


def test_the_plugin_and_the_program_are_entry_points(installed: Installed) -> None:
    found = installed.run(
        "import json, importlib.metadata as m\n"
        "d = m.distribution('moe-autotune')\n"
        "print(json.dumps([[e.group, e.name, callable(e.load())] for e in d.entry_points]))"
    )
    assert sorted(found) == [
        ["console_scripts", "autotune", True],
        ["vllm.general_plugins", "autotune", True],
    ]


def test_the_program_runs_where_it_is_installed(installed: Installed) -> None:
    program = str(installed.python.parent / "autotune")
    assert "sweep" in _run([program, "--help"], cwd=installed.python.parent)
    listed = json.loads(_run([program, "models", "--json"], cwd=installed.python.parent))
    assert "qwen-moe-fp8" in {model["name"] for model in listed}


@pytest.mark.parametrize(
    "code",
    ["import autotune.client", "import autotune.cli", "from autotune.cli.app import _register; _register()"],
    ids=["client", "cli", "all commands"],
)
def test_importing_is_cheap(code: str) -> None:
    seen = _run(
        [
            sys.executable,
            "-c",
            f"import sys, json\n{code}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))",
        ],
        cwd=ROOT / "tests",
    )
    assert json.loads(seen) == []


def _build(python: Path, kind: str, source: Path, out: Path) -> Path:
    out.mkdir(exist_ok=True)
    printed = _run([str(python), "-c", BUILD, kind, str(out)], cwd=source)
    return out / printed.strip().splitlines()[-1]


def _names(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def _package_files() -> set[str]:
    """Everything that git would keep under the packages, as it is named under `autotune`."""
    if (ROOT / ".git").exists():
        listed = _run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS], cwd=ROOT)
        names: Iterable[str] = listed.splitlines()
    else:  # a downloaded archive
        names = (str(p.relative_to(ROOT)) for folder in FOLDERS for p in (ROOT / folder).rglob("*"))
    kept = (name for name in names if (ROOT / name).is_file() and "__pycache__" not in name)
    return {
        name if name.startswith("autotune/") else f"autotune/{name}"
        for name in kept
        if not name.endswith(".md")
    }


def _run(command: list[str], *, cwd: Path) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, f"{' '.join(command)}:\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
    return result.stdout
