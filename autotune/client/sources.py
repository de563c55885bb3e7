"""Where tables come from: an explicit file or folder, else the service, else the starter tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from autotune.client.addresses import address_fault, channel_fault, masked, shown
from autotune.client.cache import Kept, LastKnownGood
from autotune.client.fetch import UnreachableError, get
from autotune.client.snapshot import DIGEST_VARIABLE, Snapshot, take_over
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.files import read_text
from autotune.vocabulary.files import reason as why_unread
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import Miss, PublishedTable, RoutingTable
from autotune.vocabulary.wire import decode_tables, of_file

STARTER = "starter"


def resolve(settings: Settings, gpu: str | None, env: dict[str, str] | None = None) -> Snapshot:
    """Read the configured source once. Never raises for a source that is missing, slow or broken.

    Args:
        gpu: vLLM's device name; a service is asked for its tables.
        env: where a parent process named its snapshot; None for the process environment.
    """
    import os

    environ = dict(os.environ) if env is None else env
    inherited, why = take_over(settings, environ)
    if inherited is not None:
        return inherited
    if settings.table is not None:
        own = from_path(settings.table)
    elif settings.url is not None:
        own = from_url(settings, gpu)
    else:
        own = starter()
    if not why:
        return own
    announced = environ.get(DIGEST_VARIABLE, "")
    if own.digest == announced or "other settings" in why:
        return own
    # Ranks that decide differently would run different kernels: better none at all.
    return Snapshot(
        source=own.source,
        reasons=(f"{why}, and {own.source} answers something else ({own.digest[:12]})", *own.reasons),
        miss=Miss.BROKEN_TABLE,
    )


def from_path(path: Path) -> Snapshot:
    """Read a table file, or all `*.json` of a folder. Each table is used whole or not at all."""
    try:
        # Not by glob, to which a folder that may not be read is an empty one.
        files = sorted(f for f in path.iterdir() if f.name.endswith(".json")) if path.is_dir() else [path]
    except OSError as error:
        reason = f"{path} cannot be read: {why_unread(error)}"
        return Snapshot(source=str(path), reasons=(reason,), miss=Miss.BROKEN_TABLE)
    snapshot = _read_all(files, str(path))
    if not files:
        return Snapshot(source=str(path), reasons=(f"{path} holds no *.json",), miss=Miss.BROKEN_TABLE)
    return snapshot


def starter() -> Snapshot:
    """The tables that come with this package."""
    folder = resources.files("autotune").joinpath("data", "tables")
    if not folder.is_dir():
        return Snapshot(source=STARTER)
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return _read_all(files, STARTER)


def from_url(settings: Settings, gpu: str | None) -> Snapshot:
    """Ask the service; its answer is final. The last known good serves if it cannot be reached."""
    assert settings.url is not None
    url = settings.url.rstrip("/")
    name = shown(url)
    fault = channel_fault(settings.channel)
    if not fault and (what := address_fault(url)):
        fault = f"{name} {what}"
    if fault:
        return Snapshot(source=name, reasons=(fault,), miss=Miss.UNREACHABLE)
    store = LastKnownGood(settings.cache, url, gpu, settings.channel)
    kept, ignored = store.read()
    reasons = (ignored,) if ignored else ()
    params = {"channel": settings.channel, **({"gpu": gpu} if gpu else {})}
    headers = {"If-None-Match": kept.etag} if kept and kept.etag else {}
    try:
        answer = get(f"{url}/routing/tables", params, headers, settings.timeout_s)
        if answer.status == 304 and not headers:
            raise UnreachableError("it answered HTTP 304 to a request that named no version")
        if answer.status == 304 and kept:
            tables, broken = decode_tables(kept.body)
            return Snapshot(tables, name, (*reasons, *broken), _nothing_usable(tables, broken))
        if answer.status in (408, 429) or answer.status >= 500:
            raise UnreachableError(f"it answered HTTP {answer.status}")
        if answer.status != 200:
            reason = f"{name} was reached, but answered HTTP {answer.status}: {_excerpt(answer.body)}"
            return Snapshot(source=name, reasons=(*reasons, reason), miss=Miss.UNREACHABLE)
        body = json.loads(answer.body)
        tables, broken = decode_tables(body)
    except (UnreachableError, TableError, ValueError, RecursionError) as error:
        broken_answer = not isinstance(error, UnreachableError)
        reason = f"{name} gave no usable answer: {masked(str(error), url)}"
        return _last_known_good(name, kept, (*reasons, reason), broken_answer)
    # What was kept may hold the very table that cannot be read now.
    failed = "not all of its tables can be read" if broken else store.write(body, answer.etag)
    reasons = (*reasons, *broken)
    if failed:
        reasons = (*reasons, f"the answer is not kept for later: {failed}")
    return Snapshot(tables, name, reasons, _nothing_usable(tables, broken))


def _last_known_good(name: str, kept: Kept | None, reasons: tuple[str, ...], broken_answer: bool) -> Snapshot:
    miss = Miss.BROKEN_TABLE if broken_answer else Miss.UNREACHABLE
    if kept is None:
        return Snapshot(source=name, reasons=reasons, miss=miss)
    try:
        tables, broken = decode_tables(kept.body)
    except TableError as error:
        return Snapshot(source=name, reasons=(*reasons, f"and what was kept is broken: {error}"), miss=miss)
    source = f"{name} (last known good of {kept.saved_at})"
    if kept.saved_after(datetime.now(UTC)):
        # It serves all the same: nothing here is decided by the clock.
        reasons = (*reasons, f"what serves was kept at {kept.saved_at}, ahead of this machine's clock")
    return Snapshot(tables, source, (*reasons, *broken), _nothing_usable(tables, broken))


def _read_all(files: list[Path] | list[Traversable], source: str) -> Snapshot:
    tables: list[PublishedTable] = []
    broken: list[str] = []
    for file in files:
        try:
            found, left_out = read_file(file)
            tables += found
            broken += [f"{file.name}: {reason}" for reason in left_out]
        except TableError as error:
            broken.append(f"{file.name}: {error.message}")
    return Snapshot(tuple(tables), source, tuple(broken), _nothing_usable(tables, broken))


def read_file(file: Path | Traversable) -> tuple[tuple[PublishedTable, ...], tuple[str, ...]]:
    """Read one file: a routing table, or a list of published ones as the service sends it.

    Raises:
        TableError: if it cannot be read or is neither.
    """
    try:
        data = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        hint = "Export it again with `autotune table export`."
        raise TableError(f"{file} cannot be read: {why_unread(error)}.", hint) from error
    if isinstance(data, dict) and "tables" in data:
        return decode_tables(data)
    return (of_file(RoutingTable.from_json_data(data)),), ()


def _nothing_usable(tables: object, broken: object) -> Miss | None:
    return Miss.BROKEN_TABLE if broken and not tables else None


def _excerpt(body: bytes) -> str:
    return " ".join(body[:200].decode(errors="replace").split()) or "no text"
