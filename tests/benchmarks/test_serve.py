"""The serving benchmark without a GPU: its client is vLLM's own, the server a stand-in that streams words."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from autotune.lab.client import FIGURES, bench_arguments, client
from autotune.lab.plan import Point
from autotune.lab.servers import refuse_taken
from autotune.vocabulary.errors import AutotuneError, ConflictError
from tests.lab.labs import vllm_path
from tests.lab.stand_in import Words

ROOT = Path(__file__).parents[2]


@pytest.fixture
def words() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Words)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


def test_a_port_that_is_taken_is_refused(words: int) -> None:
    with pytest.raises(ConflictError, match=f"Port {words} is taken"):
        refuse_taken(words)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    refuse_taken(port)


@pytest.mark.slow
def test_vllms_client_runs_all_points(words: int, tmp_path: Path) -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": vllm_path()}
    model = tmp_path / "model"
    make = "import pathlib, sys, autotune.lab.model as m; m.write_model(pathlib.Path(sys.argv[1]), 'fp8_tensor', 2)"  # noqa: E501
    subprocess.run([sys.executable, "-c", make, str(model)], env=env, check=True, timeout=100)
    with client(tmp_path / "client.log", env) as bench:
        for concurrency in (1, 3):
            point = Point(concurrency=concurrency, shortest=8, longest=24, output=4, requests=2 * concurrency)
            kept = bench.measure(bench_arguments(point, model, words, seed=1), point, lambda: None, 200)
            assert set(kept) == set(FIGURES)
            assert kept["p50_ttft_ms"] >= 4
            assert kept["total_output_tokens"] == 8 * concurrency
            assert 8 * 2 * concurrency <= kept["total_input_tokens"] <= 24 * 2 * concurrency
        # A point that fails is told as such, and the next one runs.
        closed = bench_arguments(point, model, words, seed=1)
        closed[closed.index("--random-output-len") + 1] = "not a number"
        with pytest.raises(AutotuneError, match="The benchmark failed"):
            bench.measure(closed, point, lambda: None, 200)
        assert bench.measure(bench_arguments(point, model, words, seed=2), point, lambda: None, 200)


def test_the_benchmark_says_what_it_takes() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "serve_with_plugin.py"), "--help"],
        env=env, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--scheme" in done.stdout
