"""Variants compiled in other processes, for Hopper, on a machine without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from autotune.kernels.ahead.child import describe_kernel, load_kernel  # noqa: E402
from autotune.kernels.ahead.lock import alone  # noqa: E402
from autotune.kernels.ahead.pool import compile_variants  # noqa: E402
from autotune.kernels.ahead.target import compiling_for  # noqa: E402
from autotune.kernels.ahead.variants import Found, collecting, held_by, on_disk  # noqa: E402
from autotune.kernels.ahead.warmup import warm_up  # noqa: E402
from autotune.kernels.rope_fp8 import op as rope  # noqa: E402
from autotune.measure.compiles import counting_compiles  # noqa: E402

FACTOR = tl.constexpr(3)


@triton.jit
def scaled(x, rows):
    return x * FACTOR + rows


@triton.jit
def written_here_kernel(x_ptr, rows, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < rows
    tl.store(x_ptr + offsets, scaled(tl.load(x_ptr + offsets, mask=mask), rows), mask=mask)


@pytest.fixture
def hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    with compiling_for((9, 0)) as target:
        written_here_kernel.device_caches.clear()
        yield target
        written_here_kernel.device_caches.clear()


def needed(*counts: int) -> Found:
    x = torch.empty(4096)
    with collecting() as found:
        for rows in counts:
            found.tokens = rows
            written_here_kernel[(1,)](x, rows, BLOCK=64)
    return found


def test_collecting_asks_for_each_variant_once_and_compiles_none(hopper: Any) -> None:
    with counting_compiles() as compiled:
        found = needed(1, 2, 3, 16, 17, 32)
    assert compiled.count == 0
    assert [v.tokens for v in found.missing.values()] == [1, 2, 16]
    assert not any(on_disk(v, hopper) for v in found.missing.values())
    assert held_by(written_here_kernel) == set()


def test_a_warm_up_compiles_elsewhere_and_the_next_one_reads(hopper: Any) -> None:
    variants = list(needed(1, 2, 16).missing.values())
    told: list[tuple[int, int]] = []
    with counting_compiles() as here:
        first = warm_up(variants, hopper, 120, workers=2, tell=lambda *progress: told.append(progress))
    assert (first.compiled, first.from_disk, first.left, first.failures) == (3, 0, 0, ())
    assert here.count == 0, "this process compiled"
    assert first.compile_s > 0
    assert told[-1] == (3, 3)
    assert len(held_by(written_here_kernel)) == 3
    assert needed(5, 48).total == len(needed(5, 48).loaded) == 2
    written_here_kernel.device_caches.clear()
    second = warm_up(list(needed(1, 2, 16).missing.values()), hopper, 120)
    assert (second.compiled, second.from_disk) == (0, 3)
    assert str(second).startswith("all 3 variants were in Triton's cache, read in")


def test_the_time_limit_leaves_the_rest(hopper: Any) -> None:
    start = time.monotonic()
    done = warm_up(list(needed(1, 2, 16).missing.values()), hopper, 0.05)
    assert time.monotonic() - start < 20
    assert (done.left, done.timed_out) == (3, True)
    assert "3 are left to their first use, as the time limit was reached" in str(done)


def test_a_variant_that_cannot_be_compiled_is_left_with_its_reason(hopper: Any) -> None:
    good, bad = needed(1, 2).missing.values()
    bad.data = bad.data.replace("i32", "i31")
    done = compile_variants([bad, good], hopper, 120, workers=1)
    assert set(done.seconds) == {good.key}
    (reason,) = done.failed.values()
    assert reason


def test_a_process_that_dies_costs_its_variant_only(hopper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.kernels.ahead import pool

    first, second = needed(1, 2).missing.values()
    started: list[Any] = []
    real = pool._start

    def start(target: Any) -> Any:
        process = real(target)
        started.append(process)
        if len(started) == 1:
            process.kill()
            process.wait()
        return process

    monkeypatch.setattr(pool, "_start", start)
    done = compile_variants([first, second], hopper, 120, workers=1)
    assert len(started) == 2
    assert set(done.failed) == {first.key}
    assert set(done.seconds) == {second.key}
    assert all(process.poll() is not None for process in started)


def test_an_interrupt_ends_what_compiles(hopper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.kernels.ahead import pool

    started: list[Any] = []
    real = pool._start

    def start(target: Any) -> Any:
        started.append(real(target))
        return started[-1]

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_start", start)
    variants = list(needed(1, 2, 16, 17).missing.values())
    with pytest.raises(KeyboardInterrupt):
        compile_variants(variants, hopper, 120, workers=1, tell=interrupt)
    assert started
    assert all(process.poll() is not None for process in started)
    assert not [thread for thread in threading.enumerate() if thread.name == "autotune-compile"]


def test_another_file_of_the_same_name_is_refused(tmp_path: Path) -> None:
    place = describe_kernel(written_here_kernel)
    assert load_kernel(place).cache_key == written_here_kernel.cache_key
    other = tmp_path / "other.py"
    other.write_text(Path(__file__).read_text().replace("x * FACTOR", "x + FACTOR"))
    with pytest.raises(ValueError, match="is another kernel here"):
        load_kernel({**place, "file": str(other)})


def test_kernels_of_this_package_are_imported(hopper: Any) -> None:
    x = torch.empty(3, 2, 64, dtype=torch.bfloat16)
    with collecting() as found:
        rope.rope_fp8(x, torch.zeros(3, dtype=torch.int64), rope.rotary_table(4, 64))
    (variant,) = found.missing.values()
    done = compile_variants([variant], hopper, 120, workers=1)
    assert done.failed == {}
    assert on_disk(variant, hopper)


def test_one_process_of_a_host_at_a_time(tmp_path: Path) -> None:
    deadline = time.monotonic() + 0.3
    with alone(str(tmp_path), deadline) as first, alone(str(tmp_path), deadline) as second:
        assert (first, second) == (True, False)
    with alone(str(tmp_path), deadline) as third:
        assert third
    (tmp_path / "file").touch()
    with alone(str(tmp_path / "file" / "folder"), deadline) as unlockable:
        assert unlockable


KEYS = """
import importlib, json, sys
names = {
    "fused_decode._gate": ["gate_kernel"], "fused_decode._op": ["layer_kernel"],
    "fused_triton._op": ["gate_up_kernel", "down_kernel"], "fused_triton._sort": ["place_kernel"],
    "rope_fp8._op": ["rope_fp8_kernel"],
}
listed = [(module, name) for module, all_of_it in names.items() for name in all_of_it]
keys = {}
for module, name in listed if sys.argv[1] == "forwards" else reversed(listed):
    keys[name] = getattr(importlib.import_module(f"autotune.kernels.{module}"), name).cache_key
print(json.dumps(keys, sort_keys=True))
"""


def test_a_kernel_has_the_same_key_whichever_was_asked_first() -> None:
    """Else what a compiling process makes is not what this one looks for, and a start may miss its cache."""
    answers = [
        subprocess.run(
            [sys.executable, "-c", KEYS, order], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        for order in ("forwards", "backwards")
    ]
    assert len(json.loads(answers[0])) == 6
    assert answers[0] == answers[1]
