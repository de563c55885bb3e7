"""A plan whose servers are stand-ins, the real client of vLLM's benchmark, and the command as a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.lab.plan import Arm, Plan, Point
from autotune.vocabulary.problem import Scheme
from tests.processes import takes_interrupts

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).with_name("stand_in.py")


def vllm_path(version: str = "0.25.1") -> str:
    """Import paths of vLLM's real source and of what it needs; skips where they were not fetched."""
    sources = ROOT / ".cache" / "vllm"
    needs = sources / f"deps-cp{sys.version_info.major}{sys.version_info.minor}"
    if not (sources / version).is_dir() or not needs.is_dir():
        pytest.skip("the sources of vLLM were not fetched (make sources)")
    return os.pathsep.join(map(str, (ROOT, sources / version, needs)))


def free_ports(count: int) -> int:
    """The first of some ports in a row on which nothing listens."""
    for first in range(20_000 + os.getpid() * 61 % 30_000, 60_000, 50):  # workers have pids in a row
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def stand_in_plan(
    stock: dict[str, str] | None = None, fast: dict[str, str] | None = None, **fields: object
) -> Plan:
    """Two arms whose servers are stand-ins with these environments; two points, three rounds."""
    arms = (
        Arm(name="stock", env=stock or {}),
        Arm(name="fast", env=fast or {}, against="stock"),
    )
    points = tuple(
        Point(concurrency=c, shortest=4, longest=12, output=20, requests=6) for c in (1, 2)
    )  # fmt: skip
    plan = Plan(
        scheme=Scheme.FP8_TENSOR,
        layers=2,
        arms=arms,
        points=points,
        server=("{python}", str(STAND_IN), "--port", "{port}"),
    )
    return Plan.model_validate({**plan.model_dump(), **fields})


class Lab:
    """`autotune lab` in a process of its own, with vLLM's client to import."""

    def __init__(self, folder: Path, model: Path, plan: Plan) -> None:
        self.folder, self.port = folder / "out", free_ports(4)
        self.plan_file = folder / "the-plan.json"
        self.plan_file.write_text(plan.model_dump_json())
        self._model = model
        self.env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": vllm_path()}

    def _words(self, command: str, *words: str) -> list[str]:
        lab = [sys.executable, "-m", "autotune", "lab", command]
        served = ["--port", str(self.port), "--model-folder", str(self._model)]
        if command == "run":
            return [*lab, "--out", str(self.folder), "--plan", str(self.plan_file), *served, *words]
        return [*lab, str(self.folder), *(served if command == "outputs" else []), *words]

    def start(self, command: str = "run", *words: str) -> subprocess.Popen[str]:
        """Begin, with both outputs in one pipe."""
        return subprocess.Popen(
            self._words(command, *words),
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=takes_interrupts,
        )

    def do(self, command: str, *words: str, fails: bool = False) -> str:
        """Run to the end and return standard output, or standard error of one that must fail."""
        done = subprocess.run(
            self._words(command, *words), env=self.env, capture_output=True, text=True, timeout=250
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def do_both(self, command: str, *words: str) -> str:
        """Run to the end, which must be well; both outputs."""
        run = self.start(command, *words)
        text, _ = run.communicate(timeout=250)
        assert run.returncode == 0, text
        return text
