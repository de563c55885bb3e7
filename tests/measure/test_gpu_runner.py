"""The real runner over real processes; only what they run is fake (fake_worker.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.measure import gpu_runner
from autotune.measure.gpu_runner import GpuRunner
from autotune.measure.task import Task
from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.errors import AutotuneError, GpuNotReadyError
from autotune.vocabulary.measurement import Measurement, Stage, Status
from tests.factories import BASELINE, H200, PROBLEM
from tests.measure import fake_worker
from tests.measure.fake_worker import candidate

Touched = Callable[[], list[str]]


@pytest.fixture
def touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Touched:
    """Digests of the candidates that the processes touched, in order."""
    log = tmp_path / "touched"
    log.touch()
    monkeypatch.setenv("AUTOTUNE_TEST_LOG", str(log))
    return lambda: log.read_text().split()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def runner(touched: Touched, told: list[str]) -> Iterator[GpuRunner]:
    made = GpuRunner(
        tell=told.append, worker_main=fake_worker.main, candidate_timeout_s=1.0, setup_timeout_s=2.0
    )
    yield made
    made.close()


def task(*candidates: Candidate, baseline: Candidate = BASELINE, process: int = 0) -> Task:
    return Task(
        problem=PROBLEM, checkpoint="fp8", tokens=8, baseline=baseline, candidates=candidates,
        stage=Stage.SCREEN, run="run-1", routing="zipf:1.2", process=process, seed=5,
    )  # fmt: skip


def statuses(measurements: list[Measurement]) -> list[str]:
    return [m.status.value for m in measurements]


def test_outcomes_become_measurements(runner: GpuRunner, touched: Touched) -> None:
    given = (candidate(1, 32), candidate(fake_worker.IS_WRONG), candidate(1, 64))
    made = list(runner.measure(task(*given)))
    assert runner.machine.environment == H200
    assert [m.candidate for m in made] == list(given)
    assert statuses(made) == ["ok", "wrong", "ok"]
    first = made[0]
    assert (first.problem, first.tokens, first.baseline, first.run) == (PROBLEM, 8, BASELINE, "run-1")
    assert (first.routing, first.seed, first.process, first.driver) == ("zipf:1.2", 5, 0, "580.1")
    assert first.times is not None
    assert first.times.p50_us == 50.0
    assert (first.compile_s, first.relative_error) == (1.23, 0.01)
    assert made[1].times is None
    assert "0.5 exceeds" in made[1].reason
    assert touched() == [c.digest for c in given]


@pytest.mark.parametrize(
    ("behaviour", "status", "reason"),
    [
        (fake_worker.EXITS, Status.CRASHED, "exit code 9"),
        (fake_worker.IS_KILLED, Status.CRASHED, "signal SIGKILL"),
        (fake_worker.HANGS, Status.TIMEOUT, "no answer within 1 s"),
        (fake_worker.LOSES_CUDA, Status.CRASHED, "illegal memory access"),
        (fake_worker.FAILS, Status.CRASHED, "KeyError: 'w13'"),
    ],
)
def test_a_candidate_that_ends_its_process(
    runner: GpuRunner, touched: Touched, told: list[str], behaviour: int, status: Status, reason: str
) -> None:
    given = (candidate(1, 32), candidate(behaviour), candidate(1, 64), candidate(1, 256))
    before = runner._pids()
    made = list(runner.measure(task(*given)))
    assert [m.candidate for m in made] == list(given)
    assert statuses(made) == ["ok", status.value, "ok", "ok"]
    assert reason in made[1].reason
    assert "\n" not in made[1].reason
    assert touched() == [c.digest for c in given], "each once"
    assert not before & runner._pids(), "the process was replaced"
    assert any("GPU process replaced" in line for line in told)


def test_several_bad_candidates_in_a_row(runner: GpuRunner, touched: Touched) -> None:
    given = (candidate(fake_worker.EXITS), candidate(fake_worker.IS_KILLED), candidate(1))
    assert statuses(list(runner.measure(task(*given)))) == ["crashed", "crashed", "ok"]
    assert touched() == [c.digest for c in given]


def test_a_process_that_ends_after_an_outcome_leaves_one_measurement(
    runner: GpuRunner, touched: Touched
) -> None:
    given = (candidate(fake_worker.EXITS_AFTERWARDS), candidate(1))
    made = list(runner.measure(task(*given)))
    assert [(m.candidate, m.status.value) for m in made] == [(given[0], "ok"), (given[1], "ok")]
    assert touched() == [c.digest for c in given]


@pytest.mark.parametrize(
    ("behaviour", "reason"), [(fake_worker.EXITS, "exit code 9"), (fake_worker.HANGS, "no answer within 2 s")]
)
def test_a_baseline_that_fails_is_an_error(runner: GpuRunner, behaviour: int, reason: str) -> None:
    with pytest.raises(AutotuneError, match=r"baseline .* cannot be measured at 8 tokens") as caught:
        list(runner.measure(task(candidate(1), baseline=candidate(behaviour))))
    assert reason in caught.value.message
    assert statuses(list(runner.measure(task(candidate(1))))) == ["ok"], "the next task has a new process"


def test_a_process_that_ends_between_tasks_is_replaced(runner: GpuRunner) -> None:
    (pid,) = runner._pids()
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)
    assert statuses(list(runner.measure(task(candidate(1))))) == ["ok"]


def test_processes_are_separate(runner: GpuRunner) -> None:
    runner.start_processes(3)
    assert len(runner._pids()) == 3
    made = [m for process in range(3) for m in runner.measure(task(candidate(1), process=process))]
    assert [m.process for m in made] == [0, 1, 2]
    pids = runner._pids()
    runner.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


KEEPS_PROCESSES = """
import concurrent.futures, multiprocessing, os, sys, time
from autotune.measure import gpu_runner
from autotune.measure.compile_pool import CompilePool, _quiet
from tests.measure import fake_worker

if __name__ == "__main__":
    gpu_runner.wait_until_ready = lambda *args, **named: None
    runner = gpu_runner.GpuRunner(worker_main=fake_worker.main)
    runner.start_processes(2)
    # As the pool starts its own; what they run does not matter.
    pool = runner._pool._pool = concurrent.futures.ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("spawn"), initializer=_quiet
    )
    list(pool.map(abs, range(2)))
    print(*runner._pids(), flush=True)
    time.sleep(600)
"""


def test_no_process_outlives_a_killed_sweep(tmp_path: Path) -> None:
    """They hold the GPU: the resumed sweep would find it busy."""
    script = tmp_path / "sweep.py"
    script.write_text(KEEPS_PROCESSES)
    sweep = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert sweep.stdout is not None
    pids = [int(text) for text in sweep.stdout.readline().split()]
    assert len(pids) == 4
    assert all(map(runs, pids))
    sweep.kill()
    sweep.wait()
    deadline = time.monotonic() + 20
    while any(map(runs, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if runs(pid)]
        time.sleep(0.1)


def runs(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_vllms_tile_is_asked_of_the_process_and_may_be_missing(runner: GpuRunner) -> None:
    assert runner.vllm_triton(PROBLEM, 8) == candidate(block_n=256)
    assert runner.vllm_triton(PROBLEM, 13) is None


def test_the_baseline_is_asked_of_the_process(runner: GpuRunner) -> None:
    assert runner.baseline(PROBLEM, "fp8", 8) == candidate(block_n=64)
    with pytest.raises(AutotuneError, match="no vllm"):
        runner.baseline(PROBLEM, "fp8", 14)
    with pytest.raises(AutotuneError, match="exit code 4"):
        runner.baseline(PROBLEM, "fp8", 13)
    assert runner.baseline(PROBLEM, "fp8", 8) == candidate(block_n=64)


def test_a_process_that_cannot_measure_says_why() -> None:
    with pytest.raises(GpuNotReadyError, match="There is no CUDA GPU here") as caught:
        GpuRunner(worker_main=fake_worker.cannot)
    assert caught.value.hint == "Use --replay."
    with pytest.raises(GpuNotReadyError, match="exit code 7"):
        GpuRunner(worker_main=fake_worker.dies_at_once)


def test_a_refused_gpu_leaves_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object, **__: object) -> None:
        raise GpuNotReadyError("The GPU is not fit to be timed: it is 99% busy.", "Wait.")

    monkeypatch.setattr(gpu_runner, "wait_until_ready", busy)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(GpuNotReadyError):
        GpuRunner()
    assert list(tmp_path.iterdir()) == []


def test_the_real_process_refuses_a_machine_without_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(GpuNotReadyError, match="no CUDA GPU") as caught:
        GpuRunner()
    assert "--replay" in caught.value.hint


def test_the_process_says_which_libraries_cannot_be_used(runner: GpuRunner) -> None:
    assert runner.machine.environment == H200
    assert runner.machine.absent == ("DeepGEMM is of no known version",)
