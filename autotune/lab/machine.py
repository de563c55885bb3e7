"""Where a result was measured: results of one pair must come from one place."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_PACKAGES = ("vllm", "torch", "triton", "flashinfer-python", "moe-autotune")


class Place(BaseModel):
    """One boot of one machine, its GPUs, and what is installed there.

    Args:
        boot: the kernel's boot identity; empty where there is none to read.
        gpus: UUIDs that the driver reports.
        versions: of the packages that decide what runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    boot: str
    gpus: tuple[str, ...]
    versions: dict[str, str]

    def __str__(self) -> str:
        return f"boot {self.boot[:8] or 'unknown'}, {', '.join(self.gpus) or 'no GPU'}"


def this_place() -> Place:
    """The machine that this runs on."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Place(boot=boot, gpus=tuple(_nvidia_smi("uuid")), versions=versions)


def gpu_memory_mib() -> int | None:
    """Memory in use on all GPUs together, MiB; None where nvidia-smi says nothing."""
    values = [int(text) for text in _nvidia_smi("memory.used") if text.isdecimal()]
    return sum(values) if values else None


def gpu_memory_of(session: int) -> int | None:
    """Memory that a session's processes hold on all GPUs together, MiB.

    None where nvidia-smi does not tell: it names no process of the session (in a container it may number them
    as the host does), or not its memory.

    Args:
        session: the process id of the session's leader.
    """
    held = []
    for line in _nvidia_smi("pid,used_memory", of="compute-apps"):
        pid, _, mib = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and _session(int(pid)) == session:
            if not mib.isdecimal():
                return None  # a part of it would pass for the whole
            held.append(int(mib))
    return sum(held) if held else None


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _nvidia_smi(field: str, of: str = "gpu") -> list[str]:
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-{of}={field}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines()] if done.returncode == 0 else []
