"""Publishing routing tables: revisions, channels, rolling back, and what differs between two.

Functions take an open write session; whoever opened it commits.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from autotune.db.engine import ReadSession, WriteSession
from autotune.db.revisions import ChannelMove, Key, Revision, RevisionRepository
from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import ConflictError, UsageError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import Miss, RoutingTable, Verdict

_CHANNEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_MAX_TEXT = 1000


@dataclass(frozen=True)
class Publication:
    """What publishing or moving did. `changed` is False if the channel pointed there already."""

    revision: Revision
    channel: str
    changed: bool
    previous: int | None
    """The revision that the channel pointed at before."""
    mended: bool = False
    """The channel pointed at this table already, but what was stored of it was damaged; it is whole now."""


@dataclass(frozen=True)
class Withdrawal:
    """A channel was rolled back to before its first revision: it points nowhere again."""

    previous: Revision
    """The revision that the channel pointed at before."""
    channel: str


def publish(
    session: WriteSession,
    table: RoutingTable | None,
    *,
    problem: Problem,
    environment: Environment,
    checkpoint: Checkpoint,
    author: str,
    reason: str,
    channel: str = "stable",
) -> Publication:
    """Make a revision of a table, or of "none", and point the channel at it.

    A table that the channel points at already makes no new revision (`changed` is False); it is stored again
    if it was damaged.

    Raises:
        UsageError: for an empty author or reason, or a bad channel name.
        ConflictError: if the table is of another problem, environment or checkpoint.
    """
    check_texts(author, reason, channel)
    key = Key(problem=problem, environment=environment, checkpoint=checkpoint)
    if table is not None:
        theirs = Key(problem=table.problem, environment=table.environment, checkpoint=table.checkpoint)
        if theirs != key:
            raise ConflictError(
                f"The table is for {table.problem} on {table.environment}, checkpoint {table.checkpoint}, "
                f"not for {problem} on {environment}, checkpoint {checkpoint}.",
                "Publish it under its own problem, environment and checkpoint.",
            )
    repository = RevisionRepository(session)
    repository.lock()
    now = repository.pointed(key, channel)
    previous = None if now is None else now.number
    digest = None if table is None else table.digest
    if now is not None and now.table_digest == digest:
        mended = table is not None and repository.store(table)
        return Publication(now, channel, changed=False, previous=previous, mended=mended)
    revision = repository.add(key, table, author.strip(), reason.strip())
    return Publication(
        repository.move(channel, revision, author.strip(), reason.strip()), channel, True, previous
    )


def activate(
    session: WriteSession, number: int, *, author: str, reason: str, channel: str = "stable"
) -> Publication:
    """Point a channel of the revision's problem and environment at it.

    Raises:
        NotFoundError: if there is no such revision.
        TableError: if its stored table is damaged, so that it would answer nothing.
        UsageError: for an empty author or reason, or a bad channel name.
    """
    check_texts(author, reason, channel)
    repository = RevisionRepository(session)
    repository.lock()
    target = repository.get(number)
    now = repository.pointed(target, channel)
    previous = None if now is None else now.number
    repository.table(target)
    if previous == number:
        return Publication(target, channel, changed=False, previous=previous)
    moved = repository.move(channel, target, author.strip(), reason.strip())
    return Publication(moved, channel, changed=True, previous=previous)


def withdraw(
    session: WriteSession, number: int, *, author: str, reason: str, channel: str = "stable"
) -> Withdrawal | None:
    """Take a channel that points at a revision back to before its first one; None if it is there already.

    Naming the revision keeps a move that somebody else made meanwhile from being undone unseen.

    Raises:
        NotFoundError: if there is no such revision.
        ConflictError: if the channel points at another one.
        UsageError: for an empty author or reason, or a bad channel name.
    """
    check_texts(author, reason, channel)
    repository = RevisionRepository(session)
    repository.lock()
    target = repository.get(number)
    now = repository.pointed_number(target, channel)
    if now is None:
        return None
    if now != number:
        raise ConflictError(
            f"Channel {channel!r} of {target.problem} points at revision {now}, not at {number}.",
            f"If that one is to be taken away, name revision {now}.",
        )
    repository.withdraw(channel, target, author.strip(), reason.strip())
    return Withdrawal(target, channel)


def rollback(
    session: WriteSession,
    *,
    problem: Problem,
    environment: Environment,
    checkpoint: Checkpoint,
    author: str,
    reason: str,
    to: int | Literal["none", "unpublished"] | None = None,
    channel: str = "stable",
) -> Publication | Withdrawal:
    """Point a channel back: at the revision before, a given one, "none", or nowhere.

    The one before is what the channel pointed at when the present one was put on it; revisions rolled
    back earlier are not returned to. Before the first revision the channel pointed nowhere, and what
    answered then answers again; `unpublished` goes there from any revision.

    Raises:
        ConflictError: if the channel points nowhere, or the given revision is of another problem.
        NotFoundError: if there is no revision of that number.
        TableError: if its stored table is damaged.
        UsageError: for an empty author or reason, or a bad channel name.
    """
    key = Key(problem=problem, environment=environment, checkpoint=checkpoint)
    if to == "none":
        return publish(
            session, None, problem=problem, environment=environment, checkpoint=checkpoint,
            author=author, reason=reason, channel=channel,
        )  # fmt: skip
    check_texts(author, reason, channel)
    repository = RevisionRepository(session)
    repository.lock()
    if to is None or to == "unpublished":
        stack = _stack(repository.history(key, channel))
        now = repository.pointed_number(key, channel)
        if now is None or not stack:
            raise ConflictError(
                f"Channel {channel!r} of {problem} points at no revision: there is nothing to go back from.",
                "Give a revision with --to N, or --to none to have nothing applied.",
            )
        if to == "unpublished" or len(stack) < 2:
            repository.withdraw(channel, key, author.strip(), reason.strip())
            return Withdrawal(repository.get(now), channel)
        to = stack[-2]
    target = repository.get(to)
    if target.columns() != key.columns():
        raise ConflictError(
            f"Revision {to} is for {target.problem} on {target.environment}, checkpoint "
            f"{target.checkpoint}, not for {problem} on {environment}, checkpoint {checkpoint}.",
            "List the fitting ones with `autotune revisions`.",
        )
    return activate(session, to, author=author, reason=reason, channel=channel)


def revisions(
    session: ReadSession,
    *,
    gpu: str | None = None,
    problem: Problem | None = None,
    vllm: str | None = None,
    environment: str | None = None,
    limit: int | None = None,
) -> list[Revision]:
    """Published revisions, newest first; `environment` is how the environment's digest begins."""
    return RevisionRepository(session).newest(
        gpu=gpu, problem=problem, vllm=vllm, environment=environment, limit=limit
    )


def check_texts(author: str, reason: str, channel: str) -> None:
    """Refuse what could not be read later.

    Raises:
        UsageError: for an empty or overlong author or reason, or a bad channel name.
    """
    for name, value in (("author", author), ("reason", reason)):
        if not value.strip() or len(value) > _MAX_TEXT or not value.isprintable():
            odd = next((c for c in value if not c.isprintable()), "")
            raise UsageError(
                f"The {name} must be one line of 1 to {_MAX_TEXT} characters"
                f"{f', without {odd!a}' if odd else ''}.",
                f"Say it with --{name}.",
            )
    if not _CHANNEL.fullmatch(channel):
        raise UsageError(
            f"{channel!r} is no channel name.",
            "Use lower-case letters, digits, '.', '_' and '-', such as stable or canary.",
        )


def _stack(history: list[ChannelMove]) -> list[int]:
    """Revisions that lead to the present one: a move back drops those that it passed."""
    stack: list[int] = []
    for move in history:
        if move.to_revision is None:
            stack.clear()
        elif move.to_revision in stack:
            del stack[stack.index(move.to_revision) + 1 :]
        else:
            stack.append(move.to_revision)
    return stack


class Side(BaseModel):
    """What one table answers for a range of token counts."""

    model_config = ConfigDict(frozen=True)

    answer: Literal["win", "no_benefit", "fallback"]
    winner: Candidate | None = None
    speedup: float | None = None
    low: float | None = None
    p50_us: float | None = None

    @property
    def runs(self) -> Candidate | None:
        """What is applied; None is whatever vLLM runs unaided, be it measured or not."""
        return self.winner if self.answer == "win" else None


class DiffRow(BaseModel):
    """Token counts `first..last`, over which both tables give one answer each."""

    model_config = ConfigDict(frozen=True)

    first: int
    last: int
    before: Side
    after: Side
    changed: bool
    """Another thing runs; False if only the figures differ, or if vLLM's own choice stays either way."""


def check_comparable(before: Key | None, after: Key | None) -> None:
    """Refuse to compare tables of two layers or GPUs: no range of one means anything for the other.

    Args:
        before, after: what each table is for; None for a bare "none", which compares with anything.

    Raises:
        UsageError: naming both.
    """
    if before is None or after is None:
        return
    one, other = (f"{key.problem} on {key.environment.gpu}" for key in (before, after))
    if one != other:
        raise UsageError(
            f"These are for different layers: {one}; and {other}.",
            "Compare two of one problem and GPU; `autotune revisions` lists them.",
        )


def diff(before: RoutingTable | None, after: RoutingTable | None) -> list[DiffRow]:
    """Compare two tables over every range that either of them distinguishes; None stands for "none"."""
    routes = [route for table in (before, after) if table is not None for route in table.routes]
    starts = sorted({route.first for route in routes} | {route.last + 1 for route in routes})
    rows: list[DiffRow] = []
    for first, following in itertools.pairwise(starts):
        old, new = _side(before, first), _side(after, first)
        if old.answer == new.answer == "fallback":
            continue
        rows.append(
            DiffRow(first=first, last=following - 1, before=old, after=new, changed=old.runs != new.runs)
        )
    return rows


def _side(table: RoutingTable | None, tokens: int) -> Side:
    route = None if table is None else table.lookup(tokens)
    if route is None or isinstance(route, Miss):
        return Side(answer="fallback")
    return Side(
        answer="win" if route.verdict is Verdict.WIN else "no_benefit",
        winner=route.winner,
        speedup=None if route.speedup is None else route.speedup.median,
        low=None if route.speedup is None else route.speedup.low,
        p50_us=route.winner_timing.p50_us,
    )
