"""How to install what is missing. The package is on no index, so a hint names the clone that it runs from."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

PROJECT = "moe-autotune"


def source_tree() -> Path | None:
    """The clone that this code runs from, or None where it was installed from a wheel."""
    folder = Path(__file__).resolve().parents[2]
    try:
        stated = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return folder if stated.get("project", {}).get("name") == PROJECT else None


def install_extra(*extras: str) -> str:
    """The sentence that says how to install optional parts of this package.

    Args:
        extras: of `pyproject.toml`, such as tune or server.
    """
    wanted = f"[{','.join(extras)}]"
    if folder := source_tree():
        # Editable, or a copy would take the place of the clone.
        return f"Install it: pip install -e {shlex.quote(f'{folder}{wanted}')}."
    return f"Install it: pip install '.{wanted}' in a clone of {PROJECT}, which is on no index."
