"""Findings about a table file: what is broken, and what looks wrong although it can be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

from autotune.vocabulary.errors import TableError, UsageError
from autotune.vocabulary.files import read_text, reason
from autotune.vocabulary.problem import PartialProblem
from autotune.vocabulary.table import Route, RoutingTable, Verdict
from autotune.vocabulary.wire import decode_tables

VLLM_KEYS = frozenset(
    ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SPLIT_K", "num_warps", "num_stages",
     "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
)  # fmt: skip
"""Keys that reach the kernel's launch; vLLM fails inside it for any other."""


def lint_file(path: Path) -> list[str]:
    """Findings, empty if there are none: a routing table, the service's list, or a vLLM config file.

    Raises:
        UsageError: if there is no such file.
    """
    if not is_file(path):
        raise UsageError(f"There is no file {path}.", "Name a table or a vLLM config file.")
    try:
        data = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        return [f"it is not readable JSON: {reason(error)}"]
    if path.name.startswith("E="):
        return lint_vllm_config(path.name, data)
    try:
        if isinstance(data, dict) and "tables" in data:
            tables, broken = decode_tables(data)
            found = list(broken)
            for published in tables:
                if published.table:
                    found += [f"{published.problem}: {f}" for f in lint_table(published.table)]
            return found
        return lint_table(RoutingTable.from_json_data(data))
    except TableError as error:
        return [str(error)]


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is one that does not exist."""
    try:
        return path.is_file()
    except OSError:
        return False


def lint_table(table: RoutingTable) -> list[str]:
    """Findings about a table that is valid: figures that contradict each other, ranges, versions."""
    unnamed = [n for n in ("vllm", "torch", "triton") if getattr(table.environment, n) is None]
    found = [f"the environment names no {name} version: it matches no vLLM" for name in unnamed]
    backends = {c.backend for r in table.routes for c in (r.winner, r.baseline)}
    if "flashinfer_cutlass" in backends and table.environment.flashinfer is None:
        found.append("FlashInfer is used, but its version is not named")
    if table.recording.last < table.recording.first:
        found.append("the recording ends before it begins")
    for route in table.routes:
        found += [f"{route.first}..{route.last}: {text}" for text in _lint_route(route, table.margin)]
    return found


def _lint_route(route: Route, margin: float) -> list[str]:
    found: list[str] = []
    timings = [("winner", route.winner_timing), ("baseline", route.baseline_timing)]
    timings += [(str(a.candidate), a.timing) for a in route.alternatives]
    found += [f"{who}: p95 is below p50" for who, timing in timings if timing.p95_us < timing.p50_us]
    if route.verdict is Verdict.WIN and route.speedup:
        if route.speedup.low <= 1 + margin:
            found.append(
                f"a win whose lower bound {route.speedup.low:.3f} does not clear the margin {margin:g}"
            )
        if route.speedup.median < route.speedup.low:
            found.append("the median speed-up is below its lower bound")
        if len(route.evidence) < 3:
            found.append(
                f"a win on {len(route.evidence)} measurements; finalists are re-timed in three processes"
            )
    digests = (*route.evidence, *(d for a in route.alternatives for d in a.evidence))
    if any(not re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests):
        found.append("evidence is not cited by content digests")
    if not route.winner.servable:
        found.append(f"{route.winner} is no choice: vLLM tunes FlashInfer when it warms up")
    backends = [a.candidate.backend for a in route.alternatives if a.candidate.servable]
    if len(set(backends)) != len(backends):
        found.append("a backend has two alternatives")
    return found


def lint_vllm_config(name: str, data: object) -> list[str]:
    """Findings about a vLLM tuned-config file."""
    try:
        PartialProblem.parse_file_name(name)
    except UsageError as error:
        return [error.message]
    return [*vllm_config_faults(data), *vllm_config_doubts(data)]


def vllm_config_faults(data: object) -> list[str]:
    """What vLLM would fail on, or could not use at all."""
    if not isinstance(data, dict):
        return ["it is not a JSON object"]
    found: list[str] = []
    counts = 0
    for key, config in data.items():
        if key == "triton_version":
            continue
        if not re.fullmatch(r"[0-9]{1,9}", key, re.ASCII):
            found.append(f"key {key!r} is not an integer: vLLM raises on it")
            continue
        counts += 1
        if not isinstance(config, dict):
            found.append(f"{key}: not an object")
            continue
        unknown = sorted(set(config) - VLLM_KEYS)
        if unknown:
            found.append(f"{key}: {', '.join(unknown)} would fail inside the kernel's launch")
        missing = [k for k in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K") if k not in config]
        if missing:
            found.append(f"{key}: {', '.join(missing)} is missing")
        wrong = [k for k, v in config.items() if k in VLLM_KEYS and not _is_size(v)]
        if wrong:
            found.append(f"{key}: {', '.join(wrong)} is not an integer of 0 or more")
    return found if counts else [*found, "it holds no token counts"]


def vllm_config_doubts(data: object) -> list[str]:
    """What can be read and used, but looks wrong."""
    if not isinstance(data, dict):
        return []
    found: list[str] = []
    counts = [int(key) for key in data if re.fullmatch(r"[0-9]{1,9}", key, re.ASCII)]
    if counts and min(counts) > 16:
        found.append(f"the smallest key is {min(counts)}, and vLLM uses it for 1 token too")
    if "triton_version" not in data:
        found.append("it names no triton_version: nobody can tell whether it still fits")
    return found


def _is_size(value: object) -> bool:
    # 0 is what AMD's files hold for waves_per_eu.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
