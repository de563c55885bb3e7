"""Findings about a table file: what is broken, and what looks wrong although it can be read."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

from autotune.vocabulary.candidate import not_compilable
from autotune.vocabulary.errors import TableError, UsageError
from autotune.vocabulary.files import read_given, reason
from autotune.vocabulary.problem import PartialProblem
from autotune.vocabulary.table import Route, RoutingTable, Verdict
from autotune.vocabulary.text import counted
from autotune.vocabulary.wire import decode_tables

_POWERS = frozenset(1 << n for n in range(11))
VLLM_KEYS: dict[str, tuple[Container[int], str]] = {
    "BLOCK_SIZE_M": (_POWERS - {1, 2, 4}, "a power of two from 8 to 1024"),
    "BLOCK_SIZE_N": (_POWERS - {1, 2, 4, 8}, "a power of two from 16 to 1024"),
    "BLOCK_SIZE_K": (_POWERS - {1, 2, 4, 8}, "a power of two from 16 to 1024"),
    "GROUP_SIZE_M": (range(1, 1025), "from 1 to 1024"),
    "SPLIT_K": (range(1, 129), "from 1 to 128"),
    "num_warps": (_POWERS - {64, 128, 256, 512, 1024}, "a power of two from 1 to 32"),
    "num_stages": (range(17), "from 0 to 16"),
    "num_ctas": (_POWERS - {32, 64, 128, 256, 512, 1024}, "a power of two from 1 to 16"),
    "maxnreg": (range(1, 65_537), "from 1 to 65536"),
    "waves_per_eu": (range(17), "from 0 to 16"),
    "matrix_instr_nonkdim": (range(129), "from 0 to 128"),
    "kpack": (range(1, 9), "from 1 to 8"),
}
"""Keys that reach the kernel's launch, and what Triton can compile; vLLM fails inside it for any other."""


def lint_file(path: Path) -> list[str]:
    """Findings, empty if there are none: a routing table, the service's list, or a vLLM config file.

    Raises:
        UsageError: if there is no such file, or none that can be read.
    """
    if not is_file(path):
        raise UsageError(f"There is no regular file {path}.", "Name a table or a vLLM config file.")
    content = read_given(path, "Name a table or a vLLM config file.")
    try:
        text = content.decode("utf-8-sig")
        if path.name.startswith("E="):
            return lint_vllm_config(path.name, read_vllm_config(text))
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return [f"it is not readable JSON: {reason(error)}"]
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
                f"a win on {counted(len(route.evidence), 'measurement')}; "
                "finalists are re-timed in three processes"
            )
    digests = (*route.evidence, *(d for a in route.alternatives for d in a.evidence))
    if any(not re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests):
        found.append("evidence is not cited by content digests")
    named = dict.fromkeys((route.winner, route.baseline, *(a.candidate for a in route.alternatives)))
    found += [f"{one}: {what}: no GPU can run it" for one in named for what in not_compilable(one)]
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


class _Object(dict[str, Any]):
    """A JSON object that remembers which keys it was given twice: only the last value of each is seen."""

    repeated: tuple[str, ...] = ()


def read_vllm_config(text: str) -> Any:
    """The JSON of a vLLM tuned-config file, with repeated keys noted for `vllm_config_faults`.

    Raises:
        ValueError, RecursionError: if it is no JSON.
    """

    def noted(pairs: list[tuple[str, Any]]) -> _Object:
        made = _Object(pairs)
        if len(made) < len(pairs):
            times = Counter(name for name, _ in pairs)
            made.repeated = tuple(sorted(name for name, count in times.items() if count > 1))
        return made

    return json.loads(text, object_pairs_hook=noted)


def vllm_config_faults(data: object) -> list[str]:
    """What vLLM would fail on, or could not use at all."""
    if not isinstance(data, dict):
        return ["it is not a JSON object"]
    found = _repeated("the file", data)
    spelt: dict[int, str] = {}
    for key, config in data.items():
        if key == "triton_version":
            continue
        if not re.fullmatch(r"[0-9]{1,9}", key, re.ASCII):
            found.append(f"key {key!r} is not an integer: vLLM raises on it")
            continue
        if int(key) == 0:
            found.append(f"key {key!r} is no token count: vLLM would take it for 1")
        if (other := spelt.setdefault(int(key), key)) != key:
            found.append(f"keys {other!r} and {key!r} are one token count: vLLM takes the last")
        if not isinstance(config, dict):
            found.append(f"{key}: not an object")
            continue
        found += _repeated(key, config)
        unknown = sorted(set(config) - set(VLLM_KEYS))
        if unknown:
            found.append(f"{key}: {', '.join(unknown)} would fail inside the kernel's launch")
        missing = [k for k in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K") if k not in config]
        if missing:
            found.append(f"{key}: {', '.join(missing)} is missing")
        for name, value in config.items():
            fitting, said = VLLM_KEYS.get(name, (None, ""))
            if fitting is not None and not (type(value) is int and value in fitting):
                found.append(f"{key}: {name} is not an integer that Triton takes: {said}")
    return found if spelt else [*found, "it holds no token counts"]


def _repeated(where: str, data: dict[str, Any]) -> list[str]:
    names = getattr(data, "repeated", ())
    return [f"{where}: {', '.join(map(repr, names))} is given twice: vLLM takes the last"] if names else []


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
    elif not isinstance(data["triton_version"], str):
        found.append("its triton_version is no text: nobody can tell whether it still fits")
    return found
