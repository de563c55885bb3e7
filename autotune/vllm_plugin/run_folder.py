"""A folder in which the workers of one vLLM tell its front end what serves: one small file each.

The front end is another process, and vLLM's messages between them have no room for this.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from autotune.client.cache import write_atomically
from autotune.vllm_plugin.served import LayerReport

VARIABLE = "AUTOTUNE_RUN"
"""Names the folder to child processes; the process that made it is in its name."""
_PREFIX = "moe-autotune-run-"


class AmbiguousError(Exception):
    """Two engines share the folder: which of them a step belongs to cannot be told."""


@dataclass(frozen=True)
class WorkerReport:
    """What one worker says.

    Args:
        rank: over data parallel ranks too, so that no two workers of one vLLM have the same.
        no_steps: why vLLM's statistics do not tell which token count a step ran; empty if they do.
        compiled: Triton compilations since the worker was ready, by kernel.
        read: variants read from Triton's cache since then, by kernel.
        compiled_before: compilations before.
    """

    pid: int
    rank: int
    no_steps: str
    layers: tuple[LayerReport, ...]
    compiled: dict[str, int]
    read: dict[str, int]
    compiled_before: int

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "layers": [each.to_json_data() for each in self.layers]})

    @classmethod
    def from_json(cls, text: str) -> WorkerReport:
        """Raises `ValueError`, `KeyError` or `TypeError` for what `to_json` did not make."""
        data: dict[str, Any] = json.loads(text)
        return cls(**{**data, "layers": tuple(LayerReport.from_json_data(each) for each in data["layers"])})


def compile_lines(compiled: Mapping[str, int], read: Mapping[str, int], where: str = "") -> list[str]:
    """What a worker compiled, and read from Triton's cache, after it was ready, for the log."""
    said = []
    for verb, counts in (("compiled", compiled), ("read from disk", read)):
        names = ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common())
        total = sum(counts.values())
        said.append(f"Triton variants {verb} after ready{where}: {total}{names and f' ({names})'}")
    return said


def make_folder(environ: MutableMapping[str, str]) -> str:
    """Make the folder and name it in `environ`, unless a parent has; it goes when this process ends.

    Returns:
        Why there is none, or an empty string.
    """
    if environ.get(VARIABLE):
        return ""
    try:
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    except OSError as error:
        return f"no folder for the workers' counts: {error}"
    environ[VARIABLE] = folder
    # Not in a fork of this process; below 0 means after its children have ended.
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=-1)
    return ""


def is_front_end(environ: MutableMapping[str, str]) -> bool:
    """Whether this process made the folder."""
    return Path(environ.get(VARIABLE, "")).name.startswith(f"{_PREFIX}{os.getpid()}-")


def write(report: WorkerReport, environ: MutableMapping[str, str]) -> str:
    """Replace this worker's file. Returns why it failed, or an empty string."""
    folder = Path(environ.get(VARIABLE, ""))
    if not environ.get(VARIABLE) or not folder.is_dir():
        return f"{VARIABLE} names no folder on this host; the front end cannot be told what serves"
    return write_atomically(folder / f"worker-{report.rank}-{report.pid}.json", report.to_json()) or ""


def read(environ: MutableMapping[str, str]) -> tuple[list[WorkerReport], str]:
    """The reports of the workers that live, by rank, and what is wrong (empty if nothing is).

    Raises:
        AmbiguousError: if two have the same rank.
    """
    if not environ.get(VARIABLE):
        return [], f"{VARIABLE} is not set"
    found: list[WorkerReport] = []
    for path in sorted(Path(environ[VARIABLE]).glob("worker-*.json")):
        try:
            report = WorkerReport.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [], f"{path.name} cannot be read: {type(error).__name__}: {error}"
        if _lives(report.pid):
            found.append(report)
    if not found:
        return [], "no worker on this host has said what serves"
    ranks = [report.rank for report in found]
    if len(set(ranks)) < len(ranks):
        raise AmbiguousError("two engines share this process, whose steps cannot be told apart")
    return sorted(found, key=lambda report: report.rank), ""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
