"""Where `route` and `table` read tables: a file, a service, a database, or the starter tables."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.client import Snapshot
from autotune.vocabulary.decide import Query, Selection, select_table
from autotune.vocabulary.environment import gpu_name
from autotune.vocabulary.errors import NotFoundError, TableError, UsageError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.settings import DEFAULT_DB, Settings
from autotune.vocabulary.table import Miss


@dataclass(frozen=True)
class Wanted:
    """What the options `--gpu`, `--model` or `--shape` name."""

    gpu: str
    problem: Problem | None
    checkpoint: Checkpoint | None


def wanted(
    gpu: str, model: str | None, shape: str | None, tp: int, ep: int, checkpoint: str | None,
    required: bool = True,
) -> Wanted:  # fmt: skip
    """Resolve the options.

    Raises:
        UsageError: if they contradict each other, or name what does not exist.
    """
    from autotune.cli.publishing_lookup import find_problem

    name = gpu_name(gpu)
    if model is None and shape is None and not required:
        return Wanted(name, None, _checkpoint(checkpoint))
    problem, by_model = find_problem(model, shape, tp, ep)
    return Wanted(name, problem, _checkpoint(checkpoint) or by_model)


def read_source(
    gpu: str, table: Path | None, url: str | None, db: str | None, channel: str | None
) -> Snapshot:
    """Read tables from the first source that is named: file, URL, database, starter.

    Options count before `AUTOTUNE_*`, and among each the order is the same. The default database counts
    if its file exists.

    Raises:
        UsageError: if an explicit file does not exist.
        TableError: if an explicit file holds nothing usable.
        DatabaseError: if the database cannot be read.
    """
    from autotune.client.sources import from_path, from_url, starter

    settings = Settings.from_env()
    if channel:
        settings = dataclasses.replace(settings, channel=channel)
    if not (table or url or db):
        table, url = settings.table, settings.url
        db = settings.db if settings.db != DEFAULT_DB or Path("autotune.db").is_file() else None
    if table is not None:
        if not table.exists():
            raise UsageError(f"There is no table {table}.", "Name a file, or a folder of *.json.")
        snapshot = from_path(table)
        if snapshot.miss:
            raise TableError(f"{'; '.join(snapshot.reasons)}.", "Look closer with `autotune table lint`.")
        return snapshot
    if url is not None:
        return from_url(dataclasses.replace(settings, url=url), gpu)
    if db is not None:
        return _from_database(db, gpu, settings.channel)
    return starter()


def _from_database(db: str, gpu: str, channel: str) -> Snapshot:
    from autotune.db.engine import open_database
    from autotune.db.source import DatabaseSource

    with open_database(db, create=False) as database:
        source = DatabaseSource(database)
        return Snapshot(tuple(source.tables(gpu, channel)), source.name)


def select(snapshot: Snapshot, want: Wanted) -> Selection:
    """The table that answers for what is wanted."""
    assert want.problem is not None
    if snapshot.miss is not None:
        return Selection(None, miss=snapshot.miss, detail=f"{'; '.join(snapshot.reasons)}.")
    query = Query(want.problem, gpu=want.gpu, checkpoint=want.checkpoint)
    selection = select_table(snapshot.tables, query)
    if selection.miss is Miss.UNKNOWN_PROBLEM and want.checkpoint is not None:
        # The kernels do not depend on the checkpoint's format: a person may still want to see that table.
        other = select_table(snapshot.tables, dataclasses.replace(query, checkpoint=None))
        if other.miss is None and other.published:
            detail = f"{selection.detail} There is one for checkpoint {other.published.checkpoint}."
            return Selection(None, miss=selection.miss, detail=detail)
    return selection


def one_table(snapshot: Snapshot, want: Wanted) -> Any:
    """The published table for what is wanted.

    Raises:
        NotFoundError: if there is none.
    """
    selection = select(snapshot, want)
    if selection.table is None:
        raise NotFoundError(selection.detail, f"The source was {snapshot.source or 'empty'}.")
    return selection.published


def _checkpoint(text: str | None) -> Checkpoint | None:
    from typing import get_args

    from autotune.vocabulary.errors import UnknownNameError

    if text is None:
        return None
    if text not in get_args(Checkpoint):
        raise UnknownNameError("checkpoint format", text, get_args(Checkpoint))
    return text  # type: ignore[return-value]
