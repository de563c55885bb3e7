"""Waiting for a GPU that is fit to be timed, with made-up readings."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.measure import gpu_state
from autotune.measure.detect import gpu_handle
from autotune.measure.gpu_state import GpuState, wait_until_ready
from autotune.vocabulary.errors import GpuNotReadyError

IDLE = GpuState(0, 0, (), (), 40)
BUSY = dataclasses.replace(IDLE, utilization_percent=57)
SHARED = dataclasses.replace(IDLE, other_processes=(4242,))
HOT = dataclasses.replace(IDLE, throttle=("hardware thermal slowdown",), temperature_c=91)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes only by sleeping."""
    slept: list[float] = []
    monkeypatch.setattr(gpu_state.time, "sleep", slept.append)
    monkeypatch.setattr(gpu_state.time, "monotonic", lambda: sum(slept))
    return slept


class Readings:
    """Answers in turn; the last one stays."""

    def __init__(self, *states: GpuState | None) -> None:
        self.states = list(states)
        self.own: list[frozenset[int]] = []

    def __call__(self, own: frozenset[int]) -> GpuState | None:
        self.own.append(own)
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


@pytest.mark.parametrize(
    ("state", "words"),
    [(BUSY, "57% busy"), (SHARED, "processes 4242"), (HOT, "hardware thermal slowdown at 91 C")],
)
def test_an_unfit_gpu_is_refused_with_what_was_seen(state: GpuState, words: str, naps: list[float]) -> None:
    with pytest.raises(GpuNotReadyError, match=words) as caught:
        wait_until_ready(0.0, read=Readings(state))
    assert "--wait" in caught.value.hint
    assert naps == []


def test_it_waits_until_the_gpu_is_idle(naps: list[float]) -> None:
    told: list[str] = []
    readings = Readings(SHARED, BUSY, HOT, IDLE)
    wait_until_ready(10.0, own=frozenset({7}), read=readings, tell=told.append)
    assert sum(naps) == 3.0
    assert ["4242" in told[0], "57%" in told[1], "slowdown" in told[2]] == [True] * 3
    assert readings.own == [frozenset({7})] * 4


def test_it_gives_up_when_the_time_is_up(naps: list[float]) -> None:
    with pytest.raises(GpuNotReadyError, match="57% busy"):
        wait_until_ready(5.0, read=Readings(BUSY))
    assert sum(naps) == 5.0


@pytest.mark.parametrize("state", [IDLE, None, dataclasses.replace(IDLE, utilization_percent=10)])
def test_an_idle_or_unreadable_gpu_is_taken_at_once(state: GpuState | None, naps: list[float]) -> None:
    wait_until_ready(0.0, read=Readings(state))
    assert naps == []


class ThreeGpus:
    """As much of NVML as finding a GPU takes; a handle is its number."""

    UUIDS = ("GPU-8932f937-d72c", "GPU-8a11c0de-0001", b"GPU-f00dcafe-2222")

    nvmlDeviceGetCount = staticmethod(lambda: 3)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda number: number)
    nvmlDeviceGetUUID = staticmethod(lambda number: ThreeGpus.UUIDS[number])
    nvmlDeviceGetHandleByUUID = staticmethod(lambda uuid: uuid)


@pytest.mark.parametrize(
    ("visible", "handle"),
    [
        (None, 0), ("2", 2), (" 1,0", 1), ("GPU-8a", 1), ("GPU-f00dcafe-2222,0", 2),
        ("MIG-0a1b,0", "MIG-0a1b"),
        # CUDA sees nothing.
        ("", None), ("-1", None), ("NoDevFiles", None), ("GPU-zzz", None), ("3", None), ("GPU-8", None),
        ("1abc", None), ("+1", None), ("\u00b2", None), ("9" * 5000, None),
    ],
)  # fmt: skip
def test_the_gpu_that_is_looked_at_is_the_one_that_cuda_sees_first(
    visible: str | None, handle: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_handle(ThreeGpus) == handle
