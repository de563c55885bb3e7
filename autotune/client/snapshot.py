"""What a source answered, as one immutable value, and how a parent process hands it to its children."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.util import Finalize
from pathlib import Path

from autotune.client.addresses import shown
from autotune.client.cache import write_atomically
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.files import MAX_BYTES, read_text
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import Miss, PublishedTable
from autotune.vocabulary.text import printable
from autotune.vocabulary.wire import decode_tables, encode_tables

PATH_VARIABLE = "AUTOTUNE_SNAPSHOT"
DATA_VARIABLE = "AUTOTUNE_SNAPSHOT_DATA"
DIGEST_VARIABLE = "AUTOTUNE_SNAPSHOT_DIGEST"
DATA_LIMIT = 96 * 1024
"""Longest value, bytes: Linux starts no process with one of 128 KiB or more (MAX_ARG_STRLEN)."""
INHERITED = ", taken over from a parent process"
"""After the source's name, where the tables were not read from it."""
_LONGEST = 5000
"""Characters of a reason: a path of 4096 fits."""
_BODY_LIMIT = MAX_BYTES
"""Bytes that a value may unpack to, as for an answer of the service."""


@dataclass(frozen=True)
class Snapshot:
    """The tables that a process decides with.

    Args:
        tables: what may be used.
        source: where they came from, for a person.
        reasons: what went wrong or was left out, in sentences; empty if all went well.
        miss: why there is nothing at all, if that is a failure rather than an answer.

    Source and reasons are made printable: they quote files, paths and what services answer, and go to logs.
    """

    tables: tuple[PublishedTable, ...] = ()
    source: str = ""
    reasons: tuple[str, ...] = ()
    miss: Miss | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", printable(self.source, _LONGEST))
        object.__setattr__(self, "reasons", tuple(printable(reason, _LONGEST) for reason in self.reasons))

    @cached_property
    def digest(self) -> str:
        """Content digest of the tables: equal on all ranks that decide alike."""
        return str(encode_tables(self.tables)["digest"])

    @property
    def routes(self) -> int:
        """Routes in all tables."""
        return sum(len(t.table.routes) for t in self.tables if t.table)

    @property
    def why(self) -> str:
        """All reasons as one text that ends with a full stop."""
        return f"{joined(self.reasons)}."

    def with_reason(self, reason: str) -> Snapshot:
        return replace(self, reasons=(*self.reasons, reason))


def hand_over(snapshot: Snapshot, settings: Settings, env: MutableMapping[str, str]) -> str | None:
    """Name the snapshot, with its digest, in `env` for child processes.

    One that was itself taken over stays as its parent named it.

    It goes there as the path of a file, and by value where that is short enough: a Ray worker on another
    host has the environment but not the file.

    Returns:
        Why neither was possible, or None. Children then resolve by themselves.
    """
    inherited = snapshot.source.endswith(INHERITED)
    if inherited and env.get(DIGEST_VARIABLE) == snapshot.digest:
        return None
    source = snapshot.source.removesuffix(INHERITED)
    body = {**encode_tables(snapshot.tables), "source": source, "asked": _asked(settings)}
    text = json.dumps(body)
    path, problem = _written(settings.cache / "snapshots" / f"{snapshot.digest[:32]}.json", text)
    data = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    given = {
        PATH_VARIABLE: str(path) if path else "",
        DATA_VARIABLE: data if len(data) <= DATA_LIMIT else "",
    }
    for name in (PATH_VARIABLE, DATA_VARIABLE, DIGEST_VARIABLE):
        env.pop(name, None)
    env.update({name: value for name, value in given.items() if value})
    if not any(given.values()):
        return printable(problem, _LONGEST)
    env[DIGEST_VARIABLE] = snapshot.digest
    return None


def _written(path: Path, text: str) -> tuple[Path | None, str]:
    """Where the text lies: at `path`, else in a folder that goes with this process, else nowhere and why."""
    problem = write_atomically(path, text)
    if not problem:
        return path, ""
    try:
        folder = Path(tempfile.mkdtemp(prefix="moe-autotune-snapshot-"))
    except OSError as error:
        return None, f"{problem}; {error}"
    # Not in a fork of this process; below 0 means after its children have ended.
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=-1)
    elsewhere = write_atomically(folder / "snapshot.json", text)
    return (None, f"{problem}; {elsewhere}") if elsewhere else (folder / "snapshot.json", "")


def take_over(settings: Settings, env: Mapping[str, str] | None = None) -> tuple[Snapshot | None, str]:
    """The snapshot that a parent handed over: from its file, else by value.

    Returns:
        The snapshot, or None and the reason (empty if there was no hand-over). One that the parent
        resolved for another table, URL or channel than this process is set to does not count.
    """
    env = os.environ if env is None else env
    path, data, digest = (env.get(name, "") for name in (PATH_VARIABLE, DATA_VARIABLE, DIGEST_VARIABLE))
    forms: list[tuple[str, Callable[[], str]]] = []
    if path:
        forms.append((path, lambda: read_text(Path(path), 4 * _BODY_LIMIT)))
    if data:
        forms.append((f"in {DATA_VARIABLE}", lambda: _unpacked(data)))
    reasons = []
    for name, read in forms if digest else ():
        found, why = _read(name, read, digest, settings)
        if found is not None:
            return found, ""
        reasons.append(why)
    return None, joined(reasons)


def _read(name: str, read: Callable[[], str], digest: str, settings: Settings) -> tuple[Snapshot | None, str]:
    try:
        body = json.loads(read())
        tables, broken = decode_tables(body)
    except (OSError, ValueError, RecursionError, zlib.error, TableError) as error:
        return None, f"the parent's snapshot {name} cannot be used: {error}"
    if body["digest"] != digest or broken:
        return None, f"the parent's snapshot {name} is not the one announced ({digest[:12]})"
    if body.get("asked") != _asked(settings):
        return None, f"the snapshot {name} was resolved for other settings"
    return Snapshot(tables=tables, source=f"{body.get('source', name)}{INHERITED}"), ""


def _unpacked(data: str) -> str:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(base64.b64decode(data, validate=True), _BODY_LIMIT)
    if not unpacking.eof:
        raise ValueError(f"it is cut off, or longer than {_BODY_LIMIT} bytes")
    return text.decode()


def _asked(settings: Settings) -> list[str | None]:
    # The file outlives the process: no password in it.
    url = shown(settings.url) if settings.url else None
    return [str(settings.table) if settings.table else None, url, settings.channel]


def joined(reasons: Iterable[str]) -> str:
    """Reasons one after the other; no full stop at the end, whether or not they have one each."""
    return "; ".join(reason.rstrip(". ") for reason in reasons)
