"""The whole of `autotune lab` with real vLLM servers: two layers, one point, three rounds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.lab.results import Folder
from tests.lab.labs import ROOT, free_ports

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]


def lab(*words: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    return subprocess.run(
        [sys.executable, "-m", "autotune", "lab", *words], env=env, capture_output=True, text=True
    )


def test_stock_and_the_plugin_side_by_side(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    out, port = tmp_path / "lab", str(free_ports(4))
    small = ["--layers", "2", "--concurrency", "1", "--requests", "4", "--prompts", "64:256", "--output", "8"]
    # Given, not measured: nothing else on the GPU may give memory back while vLLM measures.
    memory = ["--gpu-memory", "0.1", "--serve-arg=--kv-cache-memory-bytes", "--serve-arg=2G"]
    words = [*small, *memory, "--port", port, "--env", "VLLM_DEEP_GEMM_WARMUP=skip"]
    ran = lab("run", "--out", str(out), *words, "--start-at-once")
    assert ran.returncode == 0, ran.stderr[-5000:]
    report = json.loads(lab("report", str(out), "--json").stdout)
    assert report["pairs"] == report["pairs_wanted"] == 3
    stock, plugin = Folder(out).starts()[::-1]
    assert (stock.arm, plugin.arm) == ("stock", "all")
    assert not [line for line in stock.lines if "autotune:" in line]
    assert [line for line in plugin.lines if "autotune: mode route" in line], plugin.lines
    for start in (stock, plugin):
        assert start.memory["kv_cache_gib"] == 2
        assert start.memory_mib is not None
        assert start.memory_mib > 1000
        assert start.place.gpus
    tokens = next(c for c in report["comparisons"] if c["metric"] == "output_throughput")
    assert tokens["reference"] > 10
    asked = lab("outputs", str(out), "--prompts", "2", "--tokens", "8", "--port", port, "--json")
    assert asked.returncode in (0, 1), asked.stderr[-5000:]
    assert asked.stdout, asked.stderr[-5000:]
    (compared,) = json.loads(asked.stdout)
    assert compared["tokens"] == 16
    # Random weights: some token may flip, but not what both servers read of the same text.
    assert compared["largest"] < 1.0
