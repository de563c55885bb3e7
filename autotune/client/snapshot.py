"""What a source answered, as one immutable value, and how a parent process hands it to its children."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autotune.client.addresses import shown
from autotune.client.cache import write_atomically
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import Miss, PublishedTable
from autotune.vocabulary.wire import decode_tables, encode_tables

PATH_VARIABLE = "AUTOTUNE_SNAPSHOT"
DIGEST_VARIABLE = "AUTOTUNE_SNAPSHOT_DIGEST"


@dataclass(frozen=True)
class Snapshot:
    """The tables that a process decides with.

    Args:
        tables: what may be used.
        source: where they came from, for a person.
        reasons: what went wrong or was left out, in sentences; empty if all went well.
        miss: why there is nothing at all, if that is a failure rather than an answer.
    """

    tables: tuple[PublishedTable, ...] = ()
    source: str = ""
    reasons: tuple[str, ...] = ()
    miss: Miss | None = None

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
    """Write the snapshot to a file and name it, with its digest, in `env` for child processes.

    Returns:
        Why it was not possible, or None. Children then resolve by themselves.
    """
    body = {**encode_tables(snapshot.tables), "source": snapshot.source, "asked": _asked(settings)}
    text = json.dumps(body)
    path = settings.cache / "snapshots" / f"{snapshot.digest[:32]}.json"
    problem = write_atomically(path, text)
    if problem:
        try:
            path = Path(tempfile.mkdtemp(prefix="moe-autotune-")) / "snapshot.json"
        except OSError as error:
            return f"{problem}; {error}"
        problem = write_atomically(path, text)
        if problem:
            return problem
    env[PATH_VARIABLE] = str(path)
    env[DIGEST_VARIABLE] = snapshot.digest
    return None


def take_over(settings: Settings, env: Mapping[str, str] | None = None) -> tuple[Snapshot | None, str]:
    """The snapshot that a parent handed over.

    Returns:
        The snapshot, or None and the reason (empty if there was no hand-over). One that the parent
        resolved for another table, URL or channel than this process is set to does not count.
    """
    env = os.environ if env is None else env
    path, digest = env.get(PATH_VARIABLE, ""), env.get(DIGEST_VARIABLE, "")
    if not path or not digest:
        return None, ""
    try:
        body = json.loads(Path(path).read_text())
        tables, broken = decode_tables(body)
    except (OSError, ValueError, RecursionError, TableError) as error:
        return None, f"the parent's snapshot {path} cannot be used: {error}"
    if body["digest"] != digest or broken:
        return None, f"the parent's snapshot {path} is not the one announced ({digest[:12]})"
    if body.get("asked") != _asked(settings):
        return None, f"the snapshot {path} was resolved for other settings"
    return Snapshot(tables=tables, source=str(body.get("source", path))), ""


def _asked(settings: Settings) -> list[str | None]:
    # The file outlives the process: no password in it.
    url = shown(settings.url) if settings.url else None
    return [str(settings.table) if settings.table else None, url, settings.channel]


def joined(reasons: Iterable[str]) -> str:
    """Reasons one after the other; no full stop at the end, whether or not they have one each."""
    return "; ".join(reason.rstrip(". ") for reason in reasons)
