"""Whether the GPU is fit to be timed: idle and not throttled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune.measure.detect import _nvml, gpu_handle
from autotune.vocabulary.errors import GpuNotReadyError

BUSY_PERCENT = 10
"""Utilization (NVML: percent of the last sample period with a kernel running) that counts as busy."""


@dataclass(frozen=True)
class GpuState:
    """One look at the GPU."""

    utilization_percent: int
    memory_used_bytes: int
    other_processes: tuple[int, ...]
    throttle: tuple[str, ...]
    temperature_c: int

    def complaint(self) -> str:
        """Why it should not be timed now; empty if it may."""
        reasons = []
        if self.other_processes:
            reasons.append(f"processes {', '.join(map(str, self.other_processes))} use it")
        if self.utilization_percent > BUSY_PERCENT:
            reasons.append(f"it is {self.utilization_percent}% busy")
        if self.throttle:
            reasons.append(f"it is throttled: {', '.join(self.throttle)} at {self.temperature_c} C")
        return "; ".join(reasons)


def read_state(own: frozenset[int] = frozenset()) -> GpuState | None:
    """Ask NVML; None where there is no NVML, or no GPU that CUDA sees.

    Args:
        own: process ids that belong to this sweep.
    """
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        handle = gpu_handle(nvml)
        if handle is None:
            return None
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        # Hardware causes only: the software power cap is how a GPU under full load normally runs.
        causes = {
            "hardware slowdown": nvml.nvmlClocksThrottleReasonHwSlowdown,
            "hardware thermal slowdown": nvml.nvmlClocksThrottleReasonHwThermalSlowdown,
            "software thermal slowdown": nvml.nvmlClocksThrottleReasonSwThermalSlowdown,
            "power brake": nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        }
        processes = [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return GpuState(
            utilization_percent=nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            memory_used_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).used,
            other_processes=tuple(p for p in processes if p not in own and p != os.getpid()),
            throttle=tuple(name for name, bit in causes.items() if reasons & bit),
            temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        )
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def wait_until_ready(
    wait_s: float,
    own: frozenset[int] = frozenset(),
    read: Callable[[frozenset[int]], GpuState | None] = read_state,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """Return once the GPU is idle and not throttled; look again every second for `wait_s` seconds.

    Raises:
        GpuNotReadyError: with what was seen, when the time is up.
    """
    deadline = time.monotonic() + wait_s
    while True:
        state = read(own)
        complaint = state.complaint() if state else ""
        if not complaint:
            return
        if time.monotonic() >= deadline:
            raise GpuNotReadyError(
                f"The GPU is not fit to be timed: {complaint}.",
                "Stop the other work, or wait for it with --wait SECONDS.",
            )
        tell(f"waiting for the GPU: {complaint}")
        time.sleep(1.0)
