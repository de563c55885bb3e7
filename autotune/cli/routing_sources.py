"""Where `route` and `table` read tables: a file, a service, a database, or the starter tables."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from autotune.client import Snapshot
from autotune.client.addresses import address_fault, channel_fault, shown
from autotune.vocabulary.decide import Query, Selection, select_table
from autotune.vocabulary.environment import gpu_name
from autotune.vocabulary.errors import (
    AutotuneError,
    MissingDependencyError,
    NotFoundError,
    TableError,
    UnknownNameError,
    UsageError,
)
from autotune.vocabulary.files import reason, require_file
from autotune.vocabulary.installing import install_extra
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.settings import DEFAULT_DB, Settings
from autotune.vocabulary.table import Miss, PublishedTable

if TYPE_CHECKING:
    from autotune.db.engine import Database
    from autotune.db.revisions import Revision

CHANNEL_HINT = "Use lower-case letters, digits, '.', '_' and '-', such as stable or canary."
DEFAULT_FILE = Path("autotune.db")


@dataclass(frozen=True)
class Wanted:
    """What the options `--gpu`, `--model` or `--shape` name; no problem means all of the GPU's."""

    gpu: str
    problem: Problem | None
    checkpoint: Checkpoint | None

    def selection(self, snapshot: Snapshot) -> Selection:
        """The table among those of a source."""
        assert self.problem is not None
        query = Query(self.problem, gpu=self.gpu, checkpoint=self.checkpoint)
        return select_table(snapshot.tables, query)


@dataclass(frozen=True)
class Sources:
    """The options that name a source, as given."""

    table: Path | None = None
    url: str | None = None
    db: str | None = None
    channel: str | None = None


def wanted(
    gpu: str, model: str | None, shape: str | None, tp: int, ep: int, checkpoint: str | None,
    required: bool = True,
) -> Wanted:  # fmt: skip
    """Resolve the options.

    Raises:
        UsageError: if they contradict each other, or name what does not exist.
    """
    from autotune.cli.problems import resolve

    name = gpu_name(gpu)
    if not name.isprintable():
        raise UsageError(f"{name!r} is no GPU's name.", "Give one such as --gpu h200.")
    if model is None and shape is None and not required:
        if (tp, ep) != (1, 1):
            raise UsageError("--tp and --ep go with --model.", "Name the model, or leave them out.")
        return Wanted(name, None, _checkpoint(checkpoint))
    problem, kind = resolve(model or "", shape or "", tp, ep, checkpoint or "")
    # A shape alone means any checkpoint format that has a table.
    return Wanted(name, problem, kind if model or checkpoint else None)


def read_source(want: Wanted, given: Sources) -> Snapshot:
    """Read tables from the one source that counts; the reasons say what a reader should know about it.

    An option, else `AUTOTUNE_TABLE`, `AUTOTUNE_URL`, `AUTOTUNE_DB` in this order; each of them is final.
    Else, for each layer, the database `autotune.db` of this folder, if the channel says anything on it;
    else the starter tables.

    Raises:
        UsageError: for several sources at once, a file that does not exist, or a bad URL or channel.
        TableError: if an explicit file holds nothing usable.
        DatabaseError: if the database cannot be read.
    """
    from autotune.client.sources import from_url, starter

    settings = Settings.from_env()
    if given.channel is not None:
        settings = dataclasses.replace(settings, channel=given.channel)
    if fault := channel_fault(settings.channel):
        raise UsageError(f"{fault}.", CHANNEL_HINT)
    if sum(source is not None for source in (given.table, given.url, given.db)) > 1:
        raise UsageError("--table, --url and --db exclude each other.", "Name one source.")
    table, url, db = given.table, given.url, given.db
    if table is None and url is None and db is None:
        table, url = settings.table, settings.url
        # Setting the variable to the default's own value makes it explicit.
        explicit = settings.db != DEFAULT_DB or os.environ.get("AUTOTUNE_DB", "").strip()
        db = settings.db if explicit else None
    if table is not None:
        return _from_path(table)
    if url is not None:
        if fault := address_fault(url):
            raise UsageError(
                f"{shown(url)!r} {fault}.", "Give the service's address, such as http://host:8765."
            )
        settings = dataclasses.replace(settings, url=url)
        return _with_channels(from_url(settings, want.gpu), settings)
    if db is not None:
        return _from_database(db, want, settings.channel)
    try:
        if not DEFAULT_FILE.is_file():
            return starter()
    except OSError as error:  # a working folder that may not be entered
        return starter().with_reason(f"{DEFAULT_FILE} cannot be looked for in this folder: {error.strerror}")
    own = _from_database(DEFAULT_DB, want, settings.channel)
    if _answers(own, want):
        return own
    shipped = starter()
    if own.tables and not _answers(shipped, want):
        # All of a GPU's tables, or a layer that neither has: each layer as it would be answered alone.
        fitting = [t for t in own.tables if want.checkpoint in (None, t.checkpoint)]
        said = {(t.problem, t.environment.gpu) for t in fitting}
        more = tuple(t for t in shipped.tables if (t.problem, t.environment.gpu) not in said)
        return dataclasses.replace(own, tables=(*own.tables, *more))
    reasons = own.reasons
    if own.tables:
        reasons = (f"{DEFAULT_FILE} has no table for {want.problem}: the starter tables answer", *reasons)
    return dataclasses.replace(shipped, reasons=(*shipped.reasons, *reasons))


def read_plugins_source(want: Wanted, table: Path | None) -> Snapshot:
    """Read tables as the plugin does: `table`, `AUTOTUNE_TABLE` or `AUTOTUNE_URL`, else the starter tables.

    Raises:
        UsageError, TableError: as `read_source`.
    """
    from autotune.client.sources import starter

    settings = Settings.from_env()
    if table is None and settings.table is None and settings.url is None:
        return starter()
    return read_source(want, Sources(table, None, None, None))


def _answers(snapshot: Snapshot, want: Wanted) -> bool:
    """Whether a source says anything on what is wanted; that nothing is to be applied counts too."""
    return want.problem is not None and want.selection(snapshot).published is not None


def _from_path(table: Path) -> Snapshot:
    from autotune.client.sources import from_path

    try:
        exists = table.exists()
    except PermissionError as error:
        raise UsageError(
            f"{table} cannot be read: {error.strerror}.", "Name one that you may read."
        ) from error
    except OSError:
        exists = False  # such as a name that is too long for any file
    hint = "Name a file, or a folder of *.json."
    if not exists:
        raise UsageError(f"There is no table {table}.", hint)
    if not table.is_dir():
        require_file(table, hint)
    elif not _listed(table, hint):
        raise UsageError(f"{table} holds no *.json.", hint)
    snapshot = from_path(table)
    if snapshot.miss:
        raise TableError(snapshot.why, "Look closer with `autotune table lint`.")
    return snapshot


def _listed(folder: Path, hint: str) -> bool:
    """Whether a folder holds files of tables."""
    try:
        return any(file.name.endswith(".json") for file in folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {reason(error)}.", hint) from error


def _from_database(db: str, want: Wanted, channel: str) -> Snapshot:
    try:
        from autotune.db.engine import open_database
        from autotune.db.source import DatabaseSource
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"Reading the database {shown(db)} needs {error.name}.",
            f"{install_extra('tune')} Or name another source with --table or --url.",
        ) from error

    with open_database(db, create=False) as database:
        source = DatabaseSource(database)
        snapshot = Snapshot(tuple(source.tables(want.gpu, channel)), source.name)
        if snapshot.tables if want.problem is None else _answers(snapshot, want):
            return snapshot
        for hint in _hints(database, want, channel):
            snapshot = snapshot.with_reason(hint)
    return snapshot


def _hints(database: Database, want: Wanted, channel: str) -> list[str]:
    """Why a database has no answer: another channel was meant, or nothing was published yet."""
    from autotune.db.measurements import MeasurementRepository
    from autotune.db.revisions import RevisionRepository

    hints = []
    with database.read() as session:
        repository = RevisionRepository(session)
        channels = repository.channels()
        if channels and channel not in channels:
            hints.append(_no_channel(channel, database.name, channels))
        published = repository.newest(gpu=want.gpu, problem=want.problem, checkpoint=want.checkpoint)
        if want.problem is not None and published:
            hints.append(_elsewhere(published, want.problem, channel, database.name))
        elif want.problem is not None:
            measured = MeasurementRepository(session).find(want.problem, checkpoint=want.checkpoint)
            if any(m.environment.gpu == want.gpu for m in measured):
                hints.append(
                    f"{database.name} holds measurements of {want.problem}, swept but not published: "
                    "the same sweep with --resume --publish publishes them"
                )
    return hints


def _elsewhere(published: list[Revision], problem: Problem, channel: str, source: str) -> str:
    """Where the channel says nothing on a problem that was published all the same."""
    pointing = [r for r in published if r.channels]
    if not pointing:
        newest = published[0]
        command = (
            f"autotune rollback --to {newest.number} --gpu {newest.environment.gpu} --shape {problem} "
            f"--channel {channel} --reason why"
        )
        return (
            f"{source} has revision {newest.number} of {problem}, at which no channel points; "
            f"`{command}` puts {channel} there"
        )
    there = "; ".join(f"revision {r.number} in {' and '.join(r.channels)}" for r in pointing)
    return f"{source} has {problem} not in channel {channel!r}, but published as {there}"


def no_tables(snapshot: Snapshot, want: Wanted, said: list[PublishedTable]) -> AutotuneError:
    """Why a source has no table at all of a GPU.

    Args:
        said: what the source says on the GPU; none of it has a table that can be used.
    """
    source = snapshot.source or "no source"
    if said:
        why = "; ".join(
            f"{t.problem}: {t.broken or 'none is published, so nothing is to be applied'}" for t in said
        )
        return NotFoundError(
            f"There is no table for {want.gpu} in {source}: {why}.",
            "Publish one with `autotune publish`, or go back with `autotune rollback`.",
        )
    if snapshot.reasons:
        return NotFoundError(
            f"There is no table for {want.gpu} in {source}: {snapshot.why}", "Name another source."
        )
    others = sorted({t.environment.gpu for t in snapshot.tables})
    known = f" It has some for {', '.join(others)}." if others else ""
    return NotFoundError(
        f"There is no table for {want.gpu} in {source}.{known}", "Sweep one with `autotune sweep --publish`."
    )


def _with_channels(snapshot: Snapshot, settings: Settings) -> Snapshot:
    """A service's answer; if it is empty, with the channels that exist there."""
    from autotune.client.fetch import UnreachableError, get

    if snapshot.tables or snapshot.miss is not None or settings.url is None:
        return snapshot
    try:
        answer = get(f"{settings.url.rstrip('/')}/revisions", {}, {}, settings.timeout_s)
        listed = json.loads(answer.body)["revisions"]
        channels = sorted({str(name) for revision in listed for name in revision["channels"]})
    except (UnreachableError, ValueError, KeyError, TypeError, RecursionError):
        return snapshot  # it only explains; the answer itself stands
    if not channels:
        return snapshot.with_reason("nothing is published there yet: publish with `autotune publish`")
    return (
        snapshot
        if settings.channel in channels
        else snapshot.with_reason(_no_channel(settings.channel, snapshot.source, channels))
    )


def _no_channel(channel: str, source: str, channels: list[str]) -> str:
    return f"channel {channel!r} has no tables in {source}; there are: {', '.join(channels)}"


def select(snapshot: Snapshot, want: Wanted) -> Selection:
    """The table that answers for what is wanted."""
    if snapshot.miss is not None:
        return Selection(None, miss=snapshot.miss, detail=snapshot.why)
    selection = want.selection(snapshot)
    if selection.miss is not Miss.UNKNOWN_PROBLEM:
        return selection
    detail = selection.detail
    if snapshot.reasons:
        detail = f"No table for {want.problem} in {snapshot.source}: {snapshot.why}"
    if want.checkpoint is not None:
        # The kernels do not depend on the checkpoint's format: a person may still want to see that table.
        other = dataclasses.replace(want, checkpoint=None).selection(snapshot)
        if other.miss is None and other.published:
            detail = f"{detail} There is one for checkpoint {other.published.checkpoint}."
    return dataclasses.replace(selection, detail=detail)


def one_table(snapshot: Snapshot, want: Wanted) -> Any:
    """The published table for what is wanted.

    Raises:
        NotFoundError: if there is none.
    """
    selection = select(snapshot, want)
    if selection.table is None:
        hint = "`autotune models` names what has a starter table; --tp and --ep ask for one rank's layer."
        if selection.miss is Miss.NONE_PUBLISHED:
            hint = (
                "`autotune revisions` lists what was published and `autotune rollback --to N` puts it back; "
            )
            hint += "--table FILE reads another."
        raise NotFoundError(selection.detail, f"The source was {snapshot.source or 'empty'}. {hint}")
    return selection.published


def _checkpoint(text: str | None) -> Checkpoint | None:
    if text is None:
        return None
    if text not in get_args(Checkpoint):
        raise UnknownNameError("checkpoint format", text, get_args(Checkpoint))
    return text  # type: ignore[return-value]
