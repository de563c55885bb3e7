"""Counting compilations, with Triton's real compiler and no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

CODE = """
import json, sys, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from autotune.kernels.compile_watch import CompileWatch

@triton.jit
def add_one(x, BLOCK: tl.constexpr):
    at = x + tl.arange(0, BLOCK)
    tl.store(at, tl.load(at) + 1)

def build(block):
    source = ASTSource(add_one, {"x": "*fp32", "BLOCK": "constexpr"}, {(1,): block})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))

earlier, later = [], []
triton.knobs.compilation.listener = lambda **event: earlier.append(event["cache_hit"])
theirs = triton.knobs.compilation.listener
watch = CompileWatch()
watch.start()
watch.start()
build(16)
watch.ready()
build(32)
build(16)
watch.stop()
restored = triton.knobs.compilation.listener is theirs
build(64)
print(json.dumps([watch.before_ready, watch.compiled, watch.read, earlier, restored]))
"""


def test_compilations_are_told_from_reads_and_passed_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    before, compiled, read, earlier, restored = json.loads(done.stdout.splitlines()[-1])
    assert (before, compiled, read) == (1, {"add_one": 1}, {"add_one": 1})
    assert earlier == [False, False, True, False], "who listened before heard each event once"
    assert restored
