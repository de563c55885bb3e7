"""Queries on routing tables, revisions and channels."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import Select, exc, func, select, text

from autotune.db.engine import ReadSession, WriteSession
from autotune.db.keys import environment_data, environment_digest
from autotune.db.models import ChannelMoveRow, ChannelRow, RevisionRow
from autotune.db.tables import read_stored, store_table, stored_contents
from autotune.db.urls import shown
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import DatabaseError, NotFoundError, ShapeError, TableError, UnknownNameError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import RoutingTable

log = logging.getLogger(__name__)
_RESTORE = "It was changed from outside; restore the database from a copy."
_MOST_TOLD = 1000
_told: set[tuple[str, int]] = set()
"""Unreadable revisions that the log has named already: a service reads them for every request."""
_PUBLISH_LOCK = 0x6D6F6570  # "moep": one publisher at a time, so that the channel it saw is still true


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Key(_Frozen):
    """What a channel belongs to."""

    problem: Problem
    environment: Environment
    checkpoint: Checkpoint

    def columns(self) -> dict[str, str]:
        """As column values."""
        return {
            "problem": str(self.problem),
            "environment_digest": environment_digest(self.environment),
            "checkpoint": self.checkpoint,
        }


class Revision(Key):
    """A published table; `table_digest` is null for "none". `channels` are those that point at it now."""

    number: int
    table_digest: str | None
    author: str
    reason: str
    created_at: datetime
    channels: tuple[str, ...] = ()


class ChannelMove(_Frozen):
    """One move of a channel; None is before its first revision, where it points nowhere."""

    channel: str
    from_revision: int | None
    to_revision: int | None
    author: str
    reason: str
    moved_at: datetime


class RevisionRepository:
    """Revisions are added and read; only channels move, and every move is kept."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    def get(self, number: int) -> Revision:
        """One revision.

        Raises:
            NotFoundError: if there is none of that number.
            DatabaseError: if what is stored under it cannot be read.
        """
        # Beyond SQL's 64 bits there can be none, and the driver would fail on it.
        query = select(RevisionRow).where(RevisionRow.number == min(number, 2**62))
        unread: dict[int, str] = {}
        if found := self._revisions(query, unread):
            return found[0]
        if unread:
            raise DatabaseError(f"The stored revision {number} cannot be read: {unread[number]}.", _RESTORE)
        raise NotFoundError(f"There is no revision {number}.", "List them with `autotune revisions`.")

    def newest(
        self,
        *,
        gpu: str | None = None,
        problem: Problem | None = None,
        checkpoint: Checkpoint | None = None,
        vllm: str | None = None,
        environment: str | None = None,
        limit: int | None = None,
    ) -> list[Revision]:
        """Those that fit, newest first.

        Args:
            vllm: the environment's vLLM version.
            environment: how the environment's digest begins.
        """
        query = select(RevisionRow).order_by(RevisionRow.number.desc()).limit(limit)
        if gpu is not None:
            query = query.where(RevisionRow.gpu == gpu)
        if problem is not None:
            query = query.where(RevisionRow.problem == str(problem))
        if checkpoint is not None:
            query = query.where(RevisionRow.checkpoint == checkpoint)
        if vllm is not None:
            query = query.where(RevisionRow.environment["vllm"].as_string() == vllm)
        if environment is not None:
            query = query.where(RevisionRow.environment_digest.startswith(environment, autoescape=True))
        return self._revisions(query)

    def current(self, gpu: str | None, channel: str) -> list[Revision]:
        """What a channel points at now, for every problem and environment, in a fixed order."""
        query = (
            select(RevisionRow)
            .join(ChannelRow, ChannelRow.revision == RevisionRow.number)
            .where(ChannelRow.channel == channel)
            .order_by(RevisionRow.gpu, RevisionRow.problem, RevisionRow.checkpoint, RevisionRow.number)
        )
        return self._revisions(query if gpu is None else query.where(RevisionRow.gpu == gpu))

    def pointed(self, key: Key, channel: str) -> Revision | None:
        """What the channel of one key points at now; None too if that cannot be read."""
        number = self.pointed_number(key, channel)
        found = [] if number is None else self._revisions(select(RevisionRow).filter_by(number=number))
        return found[0] if found else None

    def pointed_number(self, key: Key, channel: str) -> int | None:
        """The number of what the channel of one key points at, whether or not it can be read."""
        return self._session.scalar(select(ChannelRow.revision).filter_by(**key.columns(), channel=channel))

    def channels(self) -> list[str]:
        """Names of all channels in use."""
        return list(self._session.scalars(select(ChannelRow.channel).distinct().order_by(ChannelRow.channel)))

    def history(self, key: Key, channel: str) -> list[ChannelMove]:
        """The channel's moves, oldest first."""
        query = select(ChannelMoveRow).filter_by(**key.columns(), channel=channel).order_by(ChannelMoveRow.id)
        return [ChannelMove.model_validate(row, from_attributes=True) for row in self._session.scalars(query)]

    def table(self, revision: Revision) -> RoutingTable | None:
        """The table of a revision; None for "none".

        Raises:
            TableError: if what is stored does not match its digest, or is gone.
        """
        if revision.table_digest is None:
            return None
        content = stored_contents(self._session, [revision.table_digest]).get(revision.table_digest)
        try:
            return read_stored(revision.table_digest, content)
        except TableError as error:
            raise TableError(f"Revision {revision.number}: {error.message}", error.hint) from error

    def store(self, table: RoutingTable) -> bool:
        """Store a table if it is new, and mend it if it is damaged; only then True."""
        return store_table(self._writing(), table)

    def lock(self) -> None:
        """Let one publisher work at a time until the transaction ends (SQLite's writers do so anyway)."""
        if self._writing().get_bind().dialect.name == "postgresql":
            self._session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PUBLISH_LOCK})

    def add(self, key: Key, table: RoutingTable | None, author: str, reason: str) -> Revision:
        """Store the table, if it is new, and a revision of it. Points no channel at it."""
        session = self._writing()
        if table is not None:
            store_table(session, table)
        row = RevisionRow(
            **key.columns(),
            gpu=key.environment.gpu,
            environment=environment_data(key.environment),
            table_digest=None if table is None else table.digest,
            author=author,
            reason=reason,
            created_at=datetime.now(UTC),
        )
        session.add(row)
        session.flush()
        return self.get(row.number)

    def move(self, channel: str, to: Revision, author: str, reason: str) -> Revision:
        """Point a channel of the revision's key at it and record the move."""
        self._point(to, channel, to.number, author, reason)
        return self.get(to.number)

    def withdraw(self, channel: str, key: Key, author: str, reason: str) -> None:
        """Have the channel of a key point nowhere, as before its first revision, and record the move."""
        self._point(key, channel, None, author, reason)

    def _point(self, key: Key, channel: str, to: int | None, author: str, reason: str) -> None:
        session = self._writing()
        row = session.scalar(select(ChannelRow).filter_by(**key.columns(), channel=channel))
        move = ChannelMoveRow(
            **key.columns(),
            channel=channel,
            from_revision=None if row is None else row.revision,
            to_revision=to,
            author=author,
            reason=reason,
            moved_at=datetime.now(UTC),
        )
        if to is None:
            if row is not None:
                session.delete(row)
        elif row is None:
            session.add(ChannelRow(**key.columns(), channel=channel, revision=to))
        else:
            row.revision = to
        session.add(move)
        session.flush()

    def count(self) -> int:
        """How many revisions there are."""
        return self._session.scalar(select(func.count()).select_from(RevisionRow)) or 0

    def _writing(self) -> WriteSession:
        if not isinstance(self._session, WriteSession):
            raise TypeError("this needs a write session")
        return self._session

    def _revisions(self, query: Select[Any], unread: dict[int, str] | None = None) -> list[Revision]:
        """Those of a query. What cannot be read is left out, and logged unless `unread` takes it."""
        missed: dict[int, str] = {}
        rows = self._rows(query, missed)
        pointing = self._pointing([row.number for row in rows])
        found: list[Revision] = []
        for row in rows:
            try:
                found.append(_revision(row, tuple(pointing.get(row.number, ()))))
            except (ShapeError, UnknownNameError, ValueError) as error:
                missed[row.number] = _why(error)
        if unread is not None:
            unread.update(missed)
        elif missed:
            self._tell(missed)
        return found

    def _rows(self, query: Select[Any], missed: dict[int, str]) -> list[RevisionRow]:
        try:
            return list(self._session.scalars(query))
        except (ValueError, TypeError, exc.OperationalError) as error:
            # SQLite takes any value in any column, and one that does not decode fails the whole query.
            first = error
        rows: list[RevisionRow] = []
        for number in self._session.scalars(query.with_only_columns(RevisionRow.number)).all():
            try:
                rows += self._session.scalars(select(RevisionRow).where(RevisionRow.number == number))
            except (ValueError, TypeError, exc.OperationalError) as error:
                missed[number] = _why(error)
        if not missed:
            raise first
        return rows

    def _tell(self, missed: dict[int, str]) -> None:
        where = shown(self._session.get_bind().engine.url)
        for number, why in missed.items():
            if (where, number) not in _told and len(_told) < _MOST_TOLD:
                _told.add((where, number))
                log.warning("revision %s in %s cannot be read and is left out: %s", number, where, why)

    def _pointing(self, numbers: list[int]) -> dict[int, list[str]]:
        pointing: dict[int, list[str]] = {}
        if not numbers:
            return pointing
        query = (
            select(ChannelRow.revision, ChannelRow.channel)
            .where(ChannelRow.revision.between(min(numbers), max(numbers)))
            .order_by(ChannelRow.channel)
        )
        for number, channel in self._session.execute(query):
            pointing.setdefault(number, []).append(channel)
        return pointing


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    original = getattr(error, "orig", None) or getattr(error, "message", None) or error
    return (str(original).splitlines() or [type(error).__name__])[0].rstrip(".")


def _revision(row: RevisionRow, channels: tuple[str, ...]) -> Revision:
    return Revision(
        number=row.number,
        problem=Problem.parse(row.problem),
        environment=Environment.model_validate(row.environment),
        checkpoint=row.checkpoint,
        table_digest=row.table_digest,
        author=row.author,
        reason=row.reason,
        created_at=row.created_at,
        channels=channels,
    )
