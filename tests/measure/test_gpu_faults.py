"""What a sweep does about faults of a real GPU. Run these alone: they time, and look at who else uses it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.vocabulary.measurement import Stage, Status
from autotune.vocabulary.problem import Problem
from tests.factories import BASELINE
from tests.measure import faulty_gpu_worker
from tests.measure.faulty_gpu_worker import ASSERTS, HANGS, candidate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
SHAPE = "E=16,N=384,K=1024,topk=4,scheme=fp8_block128"
SWEEP = ("sweep", "--gpu", "h200", "--shape", SHAPE, "--backends", "triton,fused_triton")


def test_a_candidate_that_takes_the_gpu_down_with_it_is_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.measure import gpu_runner
    from autotune.measure.task import Task

    # Whether the GPU is idle does not matter here.
    monkeypatch.setattr(gpu_runner, "wait_until_ready", lambda *args, **named: None)
    told: list[str] = []
    runner = gpu_runner.GpuRunner(
        tell=told.append, worker_main=faulty_gpu_worker.main, candidate_timeout_s=15.0
    )
    given = (candidate(), candidate(ASSERTS), candidate(2), candidate(HANGS), candidate(1, 128))
    task = Task(
        problem=Problem.parse(SHAPE), checkpoint="fp8", tokens=8, baseline=BASELINE, candidates=given,
        stage=Stage.SCREEN, run="faults", process=0, seed=5,
    )  # fmt: skip
    try:
        found = list(runner.measure(task))
    finally:
        runner.close()
    assert [m.candidate for m in found] == list(given)
    wanted = [Status.OK, Status.CRASHED, Status.OK, Status.TIMEOUT, Status.OK]
    assert [m.status for m in found] == wanted, [m.reason for m in found]
    assert "device-side assert" in found[1].reason
    assert "no answer within 15 s" in found[3].reason
    assert len([line for line in told if "GPU process replaced" in line]) == 2


@pytest.fixture
def _nobody_else() -> None:
    """An earlier test of this very process may hold the GPU, and a sweep would rightly wait for it."""
    import torch

    assert not torch.cuda.is_initialized(), "run this file in a pytest of its own: `make test-gpu`"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "AUTOTUNE_DB": f"sqlite:///{folder / 'own.db'}", "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *words],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@contextmanager
def other_work(seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that keeps the GPU busy for so long."""
    code = f"""if True:
        import time, torch
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        a @ a; torch.cuda.synchronize(); print("busy", flush=True)
        end = time.monotonic() + {seconds}
        while time.monotonic() < end:
            for _ in range(20): a @ a
            torch.cuda.synchronize()
    """
    busy = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert busy.stdout is not None
    assert busy.stdout.readline() == b"busy\n"
    time.sleep(2)  # NVML averages over a sample period
    try:
        yield busy
    finally:
        busy.kill()
        busy.wait()


def test_a_busy_gpu_is_refused_with_what_was_seen(tmp_path: Path) -> None:
    with other_work(120):
        refused = start(tmp_path, *SWEEP, "--tokens", "8", "--budget", "20s")
        _, err = refused.communicate(timeout=100)
    assert refused.returncode == 1, err
    assert "The GPU is not fit to be timed: " in err
    assert "% busy" in err or "use it" in err
    assert "--wait SECONDS" in err


@pytest.mark.usefixtures("_nobody_else")
def test_a_sweep_waits_its_turn_and_goes_on_after_kill_9(tmp_path: Path) -> None:
    """A busy GPU is waited for; killed once some measurements are stored, none is lost or stored twice."""
    words = (
        *SWEEP, "--tokens", "8,64", "--trials", "12", "--budget", "60s", "--wait", "60",
        "--routing", "zipf:1.2",
    )  # fmt: skip
    with other_work(12):
        sweep = start(tmp_path, *words)
        deadline = time.monotonic() + 240
        while len(stored(tmp_path)) < 5:
            assert sweep.poll() is None, sweep.communicate()[1][-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        os.kill(sweep.pid, signal.SIGKILL)  # its processes must notice by themselves
        _, err = sweep.communicate(timeout=60)
    assert "waiting for the GPU: " in err
    before = stored(tmp_path)
    assert len(before) >= 5
    resumed = start(tmp_path, *words, "--resume", "--json")
    out, err = resumed.communicate(timeout=400)
    assert resumed.returncode == 0, err[-3000:]
    assert json.loads(out)["routing"] == "zipf:1.2"
    after = stored(tmp_path)
    assert len(after) > len(before)
    assert set(before) <= set(after)
    assert {row[0] for row in after} == {"zipf:1.2"}
    assert len({row[1] for row in after}) == 1  # one run
    assert len(set(after)) == len(after)


def stored(folder: Path) -> list[tuple[str, ...]]:
    """Of each measurement: its routing, its run, and what makes it one of a kind there."""
    file = folder / "own.db"
    if not file.exists():
        return []
    query = (
        "select routing, run, stage, json_extract(content, '$.process'), tokens, "
        "json_extract(content, '$.seed'), candidate_digest from measurements"
    )
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as db:
        try:
            return db.execute(query).fetchall()
        except sqlite3.OperationalError:  # the tables are being made
            return []
