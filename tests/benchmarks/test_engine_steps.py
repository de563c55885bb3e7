"""`make bench-steps`: what is made of two engines' profiles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_steps", ROOT / "benchmarks" / "engine_steps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch(**kernels: float) -> dict[str, Any]:
    return {"step_us": 4000.0, "gpu_us": sum(kernels.values()), "kernels_us": kernels}


def test_the_kernels_that_differ_are_counted_for_a_layer(program: ModuleType) -> None:
    arms = {
        "stock": {"decode 8": batch(attention=300.0, expand=12.0, gemm=228.0)},
        "plugin": {"decode 8": batch(attention=290.0, layer_kernel=168.0)},
    }
    text = program.report(arms, layers=12)
    (row,) = [line for line in text.splitlines() if line.split()[:2] == ["decode", "8"]]
    assert row.split() == ["decode", "8", "4000.0", "540.0", "4000.0", "458.0", "20.0", "against", "14.0"]
    listed = text.split("stock, decode 8")[1].split("plugin, decode 8")[0].splitlines()[1:4]
    assert [line.split() for line in listed] == [
        ["300.0", "attention"],
        ["228.0", "gemm"],
        ["12.0", "expand"],
    ]
