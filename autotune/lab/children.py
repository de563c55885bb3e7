"""Processes that must not outlive an experiment: stopped with it, and after it if it was killed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STOP_S = 30.0
"""Seconds that a server has to end by itself."""
_PR_SET_PDEATHSIG = 1


def dies_with_parent() -> None:
    """Run in a child before its program: Linux sends it SIGTERM when the experiment's process is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: asked first, then killed."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    # What the leader left behind, such as a worker that still holds the GPU's memory.
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def note_running(file: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    """Write down which processes run, for `stop_leftovers` of a later run."""
    known = {str(p.pid): _started(p.pid) for p in processes if p.poll() is None}
    partial = file.with_name(f".{file.name}.part")
    partial.write_text(json.dumps(known))
    partial.replace(file)  # half a note would be none


def stop_leftovers(file: Path) -> int:
    """End processes that a killed run left behind, and return how many there were.

    A process counts only if it started when the note says: its number may have been given to another.
    """
    try:
        noted = json.loads(file.read_text())
        known = {str(int(pid)): str(started) for pid, started in noted.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return 0  # no note of ours
    left = [int(pid) for pid, started in known.items() if started and _started(int(pid)) == started]
    for pid in left:
        _signal_group(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while any(_started(pid) == known[str(pid)] for pid in left) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        if _started(pid) == known[str(pid)]:
            _signal_group(pid, signal.SIGKILL)
    file.unlink(missing_ok=True)
    return len(left)


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; empty if there is none or it only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
