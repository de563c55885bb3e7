"""Drives a server with vLLM's own benchmark client, which runs in a process of its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune.lab.children import dies_with_parent
from autotune.lab.plan import Point
from autotune.lab.results import no_figures
from autotune.vocabulary.errors import AutotuneError

LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (50, 95, 99)
FIGURES = (
    "output_throughput",
    "total_token_throughput",
    "duration",
    "total_input_tokens",
    "total_output_tokens",
    *(f"p{p}_{name}_ms" for name in LATENCIES for p in PERCENTILES),
)
"""What is kept of a result of `vllm bench serve`."""


def bench_arguments(point: Point, model: Path, port: int, seed: int, ahead: int | None = None) -> list[str]:
    """One point as the command line of `vllm bench serve`.

    Args:
        ahead: unmeasured requests; as many as are in flight if None.
    """
    middle = (point.shortest + point.longest) / 2
    # Rounded down: rounding up could leave the range.
    ratio = math.floor((point.longest - middle) / middle * 1e6) / 1e6
    options = {
        "--backend": "openai",
        "--endpoint": "/v1/completions",
        "--model": model,
        "--port": port,
        "--dataset-name": "random",
        "--random-input-len": round(middle),
        "--random-range-ratio": json.dumps({"input": ratio, "output": 0.0}),
        "--random-output-len": point.output,
        "--num-prompts": point.requests,
        "--num-warmups": point.concurrency if ahead is None else ahead,
        "--max-concurrency": point.concurrency,
        "--seed": seed,
        "--temperature": 0,
        "--percentile-metrics": ",".join(LATENCIES),
        "--metric-percentiles": ",".join(map(str, PERCENTILES)),
    }
    if ahead == 0:
        # Else the client sends a request of its own to see whether the server answers.
        options["--ready-check-timeout-sec"] = 0
    return [*(str(word) for option in options.items() for word in option), "--ignore-eos", "--disable-tqdm"]


_DYING_S = 2.0


class BenchClient:
    """The client process. `measure` runs one point; see `client`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        assert process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(process.stdout, selectors.EVENT_READ)
        self._ready = False

    def wait_ready(self, alive: Callable[[], None], limit_s: float) -> None:
        """Return when the process has imported vLLM.

        Raises:
            AutotuneError: if it ends or the time is up.
        """
        if not self._ready:
            self._answer(alive, limit_s)
            self._ready = True

    def measure(
        self, arguments: list[str], point: Point, alive: Callable[[], None], limit_s: float
    ) -> dict[str, float]:
        """Run one point and return its figures.

        Args:
            alive: called every second; raises if the server is gone.

        Raises:
            AutotuneError: if the client fails, the time is up, fewer requests or tokens came back than were
                asked for, or a figure is none.
        """
        self.wait_ready(alive, limit_s)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:  # which would pass for a terminal that is gone
            raise self._ended() from error
        result = self._answer(alive, limit_s)
        complete = result.get("completed") == point.requests
        if not complete:
            # A server that died is the better reason, and may take a moment to be seen as dead.
            time.sleep(_DYING_S)
            alive()
        if "error" in result:
            raise AutotuneError(f"The benchmark failed: {result['error']}.", f"Read {self._log}.")
        if not complete:
            raise AutotuneError(
                f"{result.get('completed')} of {point.requests} requests completed at {point}.",
                f"Read the server's log and {self._log}.",
            )
        came = result.get("total_output_tokens")
        if came != point.requests * point.output:
            raise AutotuneError(
                f"{came} of {point.requests * point.output} tokens came back at {point}.",
                f"Read the server's log and {self._log}.",
            )
        figures = {name: float(result[name]) for name in FIGURES if name in result}
        if wrong := no_figures(figures):
            raise AutotuneError(
                f"The benchmark's {', '.join(wrong)} at {point}.", f"Read the server's log and {self._log}."
            )
        return figures

    def _answer(self, alive: Callable[[], None], limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if self._selector.select(1.0):
                line = self._process.stdout.readline()
                if not line.endswith(b"\n"):  # nothing, or what it could still say
                    raise self._ended()
                answer: dict[str, Any] = json.loads(line)
                return answer
            alive()
        raise AutotuneError(f"The benchmark's client said nothing for {limit_s:.0f} s.", f"Read {self._log}.")

    def _ended(self) -> AutotuneError:
        return AutotuneError(
            f"The benchmark's client ended with {self._process.wait()}.", f"Read {self._log}."
        )


@contextmanager
def client(log: Path, env: Mapping[str, str] | None = None) -> Iterator[BenchClient]:
    """A client, ready when its first answer is wanted; its import of vLLM overlaps the servers' start."""
    environment = {**(os.environ if env is None else env), "VLLM_PLUGINS": ""}
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.lab.client_process"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            start_new_session=True,
            preexec_fn=dies_with_parent,
        )
    try:
        yield BenchClient(process, log)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                # A client that died never read its last words.
                with contextlib.suppress(OSError):
                    pipe.close()
