"""Queries on routing tables, revisions and channels."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Select, func, select, text
from sqlalchemy.dialects import postgresql, sqlite

from autotune.db.engine import ReadSession, WriteSession
from autotune.db.keys import environment_data, environment_digest
from autotune.db.models import ChannelMoveRow, ChannelRow, RevisionRow, RoutingTableRow
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import NotFoundError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import RoutingTable

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
        """
        # Beyond SQL's 64 bits there can be none, and the driver would fail on it.
        found = self._revisions(select(RevisionRow).where(RevisionRow.number == min(number, 2**62)))
        if not found:
            raise NotFoundError(f"There is no revision {number}.", "List them with `autotune revisions`.")
        return found[0]

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
        """What the channel of one key points at now."""
        number = self._session.scalar(select(ChannelRow.revision).filter_by(**key.columns(), channel=channel))
        return None if number is None else self.get(number)

    def channels(self) -> list[str]:
        """Names of all channels in use."""
        return list(self._session.scalars(select(ChannelRow.channel).distinct().order_by(ChannelRow.channel)))

    def history(self, key: Key, channel: str) -> list[ChannelMove]:
        """The channel's moves, oldest first."""
        query = select(ChannelMoveRow).filter_by(**key.columns(), channel=channel).order_by(ChannelMoveRow.id)
        return [ChannelMove.model_validate(row, from_attributes=True) for row in self._session.scalars(query)]

    def contents(self, digests: Collection[str]) -> dict[str, dict[str, Any]]:
        """Stored tables as plain data, by digest, not yet checked."""
        query = select(RoutingTableRow.digest, RoutingTableRow.content).where(
            RoutingTableRow.digest.in_(digests)
        )
        return dict(self._session.execute(query).all())

    def table(self, revision: Revision) -> RoutingTable | None:
        """The table of a revision; None for "none".

        Raises:
            TableError: if what is stored does not match its digest.
        """
        if revision.table_digest is None:
            return None
        content = self.contents([revision.table_digest])[revision.table_digest]
        return RoutingTable.from_json_data({**content, "digest": revision.table_digest})

    def lock(self) -> None:
        """Let one publisher work at a time until the transaction ends (SQLite's writers do so anyway)."""
        if self._writing().get_bind().dialect.name == "postgresql":
            self._session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PUBLISH_LOCK})

    def add(self, key: Key, table: RoutingTable | None, author: str, reason: str) -> Revision:
        """Store the table, if it is new, and a revision of it. Points no channel at it."""
        session = self._writing()
        if table is not None:
            insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
            session.execute(
                insert(RoutingTableRow)
                .values(digest=table.digest, content=table.content())
                .on_conflict_do_nothing(index_elements=["digest"])
            )
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

    def _revisions(self, query: Select[Any]) -> list[Revision]:
        rows: list[RevisionRow] = list(self._session.scalars(query))
        pointing = self._pointing([row.number for row in rows])
        return [
            Revision(
                number=row.number,
                problem=Problem.parse(row.problem),
                environment=Environment.model_validate(row.environment),
                checkpoint=row.checkpoint,
                table_digest=row.table_digest,
                author=row.author,
                reason=row.reason,
                created_at=row.created_at,
                channels=tuple(pointing.get(row.number, ())),
            )
            for row in rows
        ]

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
