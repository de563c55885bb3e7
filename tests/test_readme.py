"""The README shows the starter tables' figures, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_readme_shows_the_starter_tables() -> None:
    path = ROOT / "tools" / "update_readme.py"
    spec = importlib.util.spec_from_file_location("update_readme", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = (ROOT / "README.md").read_text()
    tables = {p.stem for p in (ROOT / "autotune" / "data" / "tables").glob("*.json")}
    assert {m["name"] for m in tool.MARKERS.finditer(text)} == tables
    assert tool.render(text) == text
