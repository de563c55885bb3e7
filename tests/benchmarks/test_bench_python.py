"""`make bench-...` says which Python it needs, in any Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def asked(*words: str) -> subprocess.CompletedProcess[str]:
    # -I -S: a Python without any package, but for the standard library.
    return subprocess.run(
        [sys.executable, *words[:-2], str(ROOT / "tools" / "bench_python.py"), *words[-2:]],
        capture_output=True,
        text=True,
    )


def test_a_python_without_packages_is_told_what_to_do() -> None:
    done = asked("-I", "-S", "bench-gate", "json")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"error: {sys.executable} has no pydantic, typer, rich.\nnext: make bench-gate PY"
    )
    assert asked("bench-gate", "json").returncode == 0
    assert "has no nothing_like_it." in asked("bench-gate", "nothing_like_it").stderr


def test_every_benchmark_asks_first() -> None:
    rules = re.findall(r"^(bench-[a-z]+):.*\n\t(.*)\n", (ROOT / "Makefile").read_text(), re.M)
    assert len(rules) == 8
    assert [
        name for name, first in rules if not first.startswith("@$(PYTHON) tools/bench_python.py $@ ")
    ] == []
