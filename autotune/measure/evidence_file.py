"""Recorded evidence as files: gzipped JSON lines, a header and then one measurement a line."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.vocabulary.canonical import canonical_json
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.files import read_given, reason
from autotune.vocabulary.measurement import Measurement
from autotune.vocabulary.problem import Problem

_MOST_PACKED, _MOST_UNPACKED = 64 << 20, 256 << 20
"""Bytes of a recording; one of a sweep takes 50 kB, which unpack to some MB."""
_REINSTALL = "It came with moe-autotune: install that again, or give another recording with --evidence."


class RecordingHeader(BaseModel):
    """Where a recording comes from: the first line of its file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = "moe-autotune evidence"
    version: int = 1
    command: str
    machine: str


def write_evidence(path: Path, header: RecordingHeader, measurements: Iterable[Measurement]) -> int:
    """Write a recording; returns how many measurements it holds. Equal content gives equal bytes."""
    lines = [canonical_json(header.model_dump(mode="json"))]
    lines += [canonical_json(m.model_dump(mode="json", exclude_none=True)) for m in measurements]
    # mtime 0 and no name: the same evidence compresses to the same file.
    data = gzip.compress(("\n".join(lines) + "\n").encode(), compresslevel=9, mtime=0)
    path.write_bytes(data)
    return len(lines) - 1


def read_evidence(
    source: Path | Traversable, hint: str = "Fetch or copy the file again, or give another recording."
) -> tuple[RecordingHeader, list[Measurement]]:
    """Read a recording.

    Args:
        hint: what mends a file that is not whole.

    Raises:
        UsageError: if the path names no file that can be read.
        TableError: if the file is not whole or not of this kind.
    """
    if isinstance(source, Path):
        content = read_given(source, "Name a recording: FILE.jsonl.gz.", _MOST_PACKED)
    else:
        content = source.read_bytes()
    try:
        with gzip.open(io.BytesIO(content)) as packed:
            text = packed.read(_MOST_UNPACKED + 1)
        if len(text) > _MOST_UNPACKED:
            raise ValueError(f"it unpacks to more than {_MOST_UNPACKED >> 20} MiB")
        lines = text.decode().splitlines()
        if not lines:
            raise ValueError("it is empty")
        header = RecordingHeader.model_validate_json(lines[0])
        if header.kind != "moe-autotune evidence" or header.version != 1:
            raise ValueError(f"kind {header.kind!r} version {header.version}")
        return header, [_measurement(number, line) for number, line in enumerate(lines[1:], 2)]
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise TableError(
            f"{source} is no readable evidence file: {reason(error).splitlines()[0].rstrip('.')}.",
            hint,
        ) from error


def _measurement(number: int, line: str) -> Measurement:
    try:
        return Measurement.model_validate(_data(line))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the measurement"
        raise ValueError(f"line {number}, {field}: {first['msg']}") from error


def shipped_evidence() -> list[Traversable]:
    """The recordings in this installation, by name."""
    folder = files("autotune") / "data" / "evidence"
    if not folder.is_dir():
        return []
    return sorted((f for f in folder.iterdir() if f.name.endswith(".jsonl.gz")), key=lambda f: f.name)


def find_evidence(
    problem: Problem, gpu: str, extra: Path | None = None
) -> tuple[RecordingHeader, list[Measurement]] | None:
    """The recording that holds this problem on this GPU (vLLM's device name), or None."""
    for source in [extra] if extra else shipped_evidence():
        header, measurements = read_evidence(source) if extra else read_evidence(source, _REINSTALL)
        fitting = [m for m in measurements if m.problem == problem and m.environment.gpu == gpu]
        if fitting:
            return header, fitting
    return None


def _data(line: str) -> Any:
    return json.loads(line)
