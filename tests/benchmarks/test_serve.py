"""The serving benchmark without a GPU: its client is vLLM's own, the server a stand-in that streams words."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))


class Words(BaseHTTPRequestHandler):
    """Health, and completions of as many words as are asked for; the first of them takes 20 ms."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        time.sleep(0.02)
        for n in range(asked["max_tokens"]):
            piece = {"choices": [{"text": f"w{n} ", "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
        usage = {"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}}
        self.wfile.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True


@pytest.fixture
def words() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Words)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


def test_a_port_that_is_taken_is_refused(words: int) -> None:
    import serve_with_plugin

    with pytest.raises(RuntimeError, match=f"port {words} is taken"):
        serve_with_plugin.refuse_taken(words)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve_with_plugin.refuse_taken(port)


def vllm_path() -> str:
    """Import paths of vLLM's real source and of what it needs; skips where they were not fetched."""
    sources = ROOT / ".cache" / "vllm"
    needs = sources / f"deps-cp{sys.version_info.major}{sys.version_info.minor}"
    if not (sources / "0.25.1").is_dir() or not needs.is_dir():
        pytest.skip("the sources of vLLM were not fetched (make sources)")
    return os.pathsep.join(map(str, (ROOT, sources / "0.25.1", needs)))


def test_vllms_client_runs_all_points(words: int, tmp_path: Path) -> None:
    import argparse

    import serve_with_plugin

    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": vllm_path()}
    model = tmp_path / "model"
    make = "import pathlib, sys, serve_with_plugin as s; s.write_model(pathlib.Path(sys.argv[1]), 'fp8_tensor', 2)"  # noqa: E501
    subprocess.run(
        [sys.executable, "-c", make, str(model)], cwd=ROOT / "benchmarks", env=env, check=True, timeout=100
    )
    args = argparse.Namespace(port=words, input=16, output=4, rounds=2)
    targets = {c: tmp_path / f"c{c}.json" for c in (1, 3)}
    points = [serve_with_plugin.bench_arguments(args, model, c, target) for c, target in targets.items()]
    plan = tmp_path / "points.json"
    plan.write_text(
        json.dumps({"health": f"http://127.0.0.1:{words}/health", "limit_s": 10, "points": points})
    )
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "bench_points.py"), str(plan)],
        env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for concurrency, target in targets.items():
        kept = json.loads(target.read_text())
        assert kept["completed"] == 2 * concurrency
        assert kept["median_ttft_ms"] >= 20
        assert set(serve_with_plugin.METRICS) <= set(kept)
