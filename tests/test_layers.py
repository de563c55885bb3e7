"""The layout: imports point one way, links are relative, and no foreign package is shadowed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("kernels", "db", "server", "alembic")

ORDER = ("cli", "lab", "server", "publish", "db", "choose", "measure", "kernels", "vocabulary")
"""Each may import itself and whatever stands to its right."""
MAY_IMPORT: dict[str, set[str]] = {layer: set(ORDER[position:]) for position, layer in enumerate(ORDER)} | {
    "client": {"client", "vocabulary"},
    "vllm_plugin": {"vllm_plugin", "client", "kernels", "vocabulary"},
    "alembic": {"alembic", "db", "vocabulary"},
    "__main__": {"cli"},
}
MAY_IMPORT["cli"] |= {"client", "vllm_plugin"}
MAY_IMPORT["lab"] |= {"client", "vllm_plugin"}

TORCH_FREE_KERNELS = ("specs", "layouts", "support")
"""Modules of `kernels` that describe candidates and what supports what; choosing needs them without torch."""
HEAVY = {"torch", "triton", "vllm", "flashinfer", "deep_gemm"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the project with its dotted name, links followed."""
    for folder, _, files in os.walk(ROOT / "autotune", followlinks=True):
        for file in sorted(files):
            path = Path(folder, file)
            if path.suffix == ".py":
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield name.removesuffix(".__init__"), ast.parse(path.read_text(), str(path))


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, nested ones too; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def violations(name: str, tree: ast.Module) -> Iterator[str]:
    """What a module imports against the rules."""
    layer = name.split(".")[1] if "." in name else ""
    for line, imported in imports(tree):
        where = f"{name}:{line} imports {imported}"
        top, *rest = imported.split(".")
        if not top:
            yield f"{where}: write it absolutely (autotune.x.y)"
        elif top in ("kernels", "db", "server"):
            yield f"{where}: write autotune.{top}"
        elif top == "autotune" and rest and layer:
            target = rest[0]
            if target not in MAY_IMPORT and target != "__version__":
                yield f"{where}: autotune.{target} has no place in the layers"
            elif target in MAY_IMPORT and target not in MAY_IMPORT[layer]:
                yield f"{where}: {layer} may import only {', '.join(sorted(MAY_IMPORT[layer]))}"
        elif top in HEAVY and _torch_free(name):
            yield f"{where}: this module must work without it"


def _torch_free(name: str) -> bool:
    parts = name.split(".")
    return parts[1:2] == ["vocabulary"] or (
        parts[1:2] == ["kernels"] and len(parts) > 2 and parts[2] in TORCH_FREE_KERNELS
    )


def test_imports_point_one_way() -> None:
    found = [violation for name, tree in modules() for violation in violations(name, tree)]
    assert not found, "\n".join(found)


def test_the_reader_sees_every_layer() -> None:
    names = {name for name, _ in modules()}
    assert {"autotune.kernels.specs", "autotune.db.models", "autotune.vocabulary.problem"} <= names
    unknown = {n.split(".")[1] for n in names if "." in n} - set(MAY_IMPORT)
    assert not unknown, f"folders without a place in the layers: {unknown}"


@pytest.mark.parametrize(
    ("name", "code", "complaint"),
    [
        ("autotune.vocabulary.x", "from autotune.db import models", "vocabulary may import only vocabulary"),
        ("autotune.db.x", "def f():\n    import autotune.server.app", "db may import only"),
        ("autotune.client.x", "from autotune.kernels.specs import X", "client may import only"),
        ("autotune.client.x", "from autotune import kernels", "client may import only"),
        ("autotune.measure.x", "from db.models import X", "write autotune.db"),
        ("autotune.measure.x", "from . import y", "absolutely"),
        ("autotune.vocabulary.x", "import torch.cuda", "must work without"),
        ("autotune.kernels.specs", "def f():\n    import torch", "must work without"),
        ("autotune.measure.x", "from autotune.nowhere import y", "no place"),
    ],
)
def test_the_reader_finds_violations(name: str, code: str, complaint: str) -> None:
    (found,) = violations(name, ast.parse(code))
    assert complaint in found


def test_links_are_relative_and_hold_no_package_of_their_own() -> None:
    for name in LINKED:
        link = ROOT / "autotune" / name
        assert link.is_symlink(), f"{link} is no link"
        assert os.readlink(link) == f"../{name}"
        assert not (ROOT / name / "__init__.py").exists(), f"{name}/__init__.py would make a top-level {name}"


def test_a_foreign_kernels_and_alembic_win_over_the_folders(tmp_path: Path) -> None:
    for name in LINKED:
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text("OWNER = 'foreign'\n")
    code = (
        "import json, kernels, db, server, alembic, autotune.kernels.specs, autotune.db.models\n"
        "print(json.dumps({'owners': [m.OWNER for m in (kernels, db, server, alembic)],"
        " 'ours': autotune.kernels.specs.__file__}))"
    )
    # The repository's root comes first on sys.path, as for someone working in it; a regular package
    # anywhere on the path wins over a folder without __init__.py.
    seen = _run(code, path=(ROOT, tmp_path))
    assert seen["owners"] == ["foreign"] * 4
    assert Path(seen["ours"]).resolve() == ROOT / "kernels" / "specs.py"


def test_the_real_alembic_is_imported_from_the_repositorys_root() -> None:
    seen = _run("import json, alembic; print(json.dumps(alembic.__file__))", path=(ROOT,))
    assert not Path(seen).is_relative_to(ROOT / "alembic")


def test_vocabulary_and_candidates_load_no_torch() -> None:
    wanted = [name for name, _ in modules() if _torch_free(name)]
    assert len(wanted) > 8
    code = (
        "import importlib, json, sys\n"
        f"for name in {wanted!r}: importlib.import_module(name)\n"
        f"print(json.dumps(sorted({HEAVY!r} & set(sys.modules))))"
    )
    assert _run(code, path=(ROOT,)) == []


def _run(code: str, *, path: tuple[Path, ...]) -> Any:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    result = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=path[-1], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
