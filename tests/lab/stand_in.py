"""A server that streams words at a set speed, in the place of vLLM's: `stand_in.py --port N`.

Environment: STAND_IN_MS (milliseconds a token, default 4), STAND_IN_LOSE (every n-th completion is refused),
STAND_IN_DIE (ends after n completions), STAND_IN_LOG (a line of the log at each completion),
STAND_IN_COUNT (a file that gets a byte for each completion), STAND_IN_SHIFT (added to the log probabilities),
STAND_IN_OTHER (position from which on other tokens come), STAND_IN_METRICS (what /metrics says),
STAND_IN_BUILDS (compiles as DeepGEMM does: a kernel at the start, and at each of the first n completions).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN_S = float(os.environ.get("STAND_IN_MS", "4")) / 1000
LOSE, DIE = (int(os.environ.get(f"STAND_IN_{name}", "0")) for name in ("LOSE", "DIE"))
SHIFT = float(os.environ.get("STAND_IN_SHIFT", "0"))
OTHER = int(os.environ.get("STAND_IN_OTHER", "1000000"))
BUILDS = int(os.environ.get("STAND_IN_BUILDS", "0"))
_lock = threading.Lock()
_served = 0


def build(name: str) -> None:
    """Leave what DeepGEMM leaves in its cache."""
    folder = Path(os.environ["DG_JIT_CACHE_DIR"]) / "cache" / f"kernel.{name}"
    folder.mkdir(parents=True)
    (folder / "kernel.cubin").touch()


class Words(BaseHTTPRequestHandler):
    """Health, and completions of as many words as are asked for, each as late as the speed says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        body = os.environ.get("STAND_IN_METRICS", "").encode() if self.path == "/metrics" else b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        global _served
        began = time.perf_counter()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("/completions"):
            self._json(404, {})
            return
        with _lock:
            _served += 1
            number = _served
        if DIE and number > DIE:
            os._exit(7)
        if LOSE and number % LOSE == 0:
            self._json(500, {"error": "lost"})
            return
        if "STAND_IN_LOG" in os.environ:
            print(os.environ["STAND_IN_LOG"], flush=True)
        if number <= BUILDS:
            build(f"fp8_gemm.{number}")
        if "STAND_IN_COUNT" in os.environ:
            with Path(os.environ["STAND_IN_COUNT"]).open("a") as count:
                count.write(".")
        if not asked.get("stream"):
            self._whole(asked["max_tokens"], len(asked["prompt"].split()))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for n in range(asked["max_tokens"]):
            # To the clock, so that a late wake-up does not add up.
            time.sleep(max(0.0, began + (n + 1) * TOKEN_S - time.perf_counter()))
            piece = {"choices": [{"text": f"w{n} ", "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
        usage = {"choices": [], "usage": {"completion_tokens": asked["max_tokens"]}}
        self.wfile.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True

    def _whole(self, count: int, words: int) -> None:
        tokens = [f"w{n + (n >= OTHER)}" for n in range(count)]
        logprobs = {"tokens": tokens, "token_logprobs": [-1.0 - n / 8 + SHIFT for n in range(count)]}
        # As vLLM tells it: the prompt's own token and the likeliest; at every third place they are one.
        place = {"7": {"logprob": -0.5, "rank": 1, "decoded_token": "w7"}}
        other = {"9": {"logprob": -6.0 + SHIFT, "rank": 40, "decoded_token": "w9"}}
        read = [None, *({**place, **(other if n % 3 else {})} for n in range(1, words))]
        choice = {"text": " ".join(tokens), "logprobs": logprobs, "prompt_logprobs": read}
        self._json(200, {"choices": [choice]})

    def _json(self, status: int, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    if "AUTOTUNE_URL" in os.environ:
        with urllib.request.urlopen(f"{os.environ['AUTOTUNE_URL']}/revisions", timeout=10) as answer:
            numbers = [revision["number"] for revision in json.load(answer)["revisions"]]
            print(f"autotune: the service has revisions {numbers}", flush=True)
    if BUILDS:
        build("at_start.0")
    ThreadingHTTPServer.request_queue_size = 128
    print(
        "autotune: a line of the plugin", "\nModel loading took 29.5 GiB memory and 1.0 seconds", flush=True
    )
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Words).serve_forever()
