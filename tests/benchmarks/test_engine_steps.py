"""`make bench-steps`: what is made of two engines' profiles."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import pytest

from tests.benchmarks.programs import load


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load("engine_steps")


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


def test_the_host_s_time_is_told_by_function(program: ModuleType) -> None:
    """A wait of 20 ms must stand first, and be 20 ms: by it one tells who sets the pace."""

    def step() -> None:
        time.sleep(0.02)
        sorted(range(10))

    found = program.host_functions(step, 3)
    total = found.pop("total")
    first, us = next(iter(found.items()))
    assert "sleep" in first
    assert 20_000 <= us <= total
    assert any("test_engine_steps.py" in name for name in found)
    arms = {arm: {"decode 1": batch(gemm=3.0) | {"host_us": {"total": total, **found}}} for arm in ("a", "b")}
    listed = program.report(arms, layers=1).split("b, decode 1: microseconds of the host")[1].splitlines()
    assert str(total) in listed[0]
    assert listed[1].split()[0] == str(us)
    assert "sleep" in listed[1]


def test_rows_of_calls_are_told_by_how_evenly_they_are_spread(program: ModuleType) -> None:
    even, skewed = [2] * 8, [16, 0, 0, 0, 0, 0, 0, 0]
    found = program.spread([even, skewed], 16)
    assert found["touched"] == 4.5
    assert found["uniform_touches"] == pytest.approx(8 * (1 - (7 / 8) ** 16), abs=0.01)
    # One token takes as many experts as its top-k.
    assert program.spread([[1] * 8 + [0] * 120], 1)["uniform_touches"] == 8
    assert (found["most"], found["above_8"], found["above_16"]) == (9, 1 / 16, 0)
    assert found["rows"] == [9, 1, 1, 1, 1, 1, 1, 1]
