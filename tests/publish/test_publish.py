"""Publishing rules: what makes a revision, where a channel points, what differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from autotune.db.engine import Database, WriteSession, open_database
from autotune.db.revisions import Key, RevisionRepository
from autotune.publish import Publication, Withdrawal, activate, diff, publish, revisions, rollback
from autotune.vocabulary.errors import ConflictError, NotFoundError, UsageError
from autotune.vocabulary.table import RoutingTable
from tests.factories import H100, H200, OTHER_PROBLEM, PROBLEM, make_table, triton

KEY: dict[str, Any] = {"problem": PROBLEM, "environment": H200, "checkpoint": "fp8"}
WHO: dict[str, Any] = {"author": "ada", "reason": "because"}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[WriteSession]:
    database: Database
    with open_database(f"sqlite:///{tmp_path / 'x.db'}") as database, database.write() as opened:
        yield opened


def put(session: WriteSession, table: RoutingTable | None, **fields: Any) -> Publication:
    return publish(session, table, **{**KEY, **WHO, **fields})


def tables(count: int) -> list[RoutingTable]:
    return [make_table(tokens=(1, 2, 4 + i)) for i in range(count)]


def test_numbers_count_up_and_the_channel_follows(session: WriteSession) -> None:
    done = [put(session, table) for table in tables(3)]
    assert [d.revision.number for d in done] == [1, 2, 3]
    assert [d.previous for d in done] == [None, 1, 2]
    assert [(r.number, r.channels) for r in revisions(session)] == [(3, ("stable",)), (2, ()), (1, ())]


def test_the_same_table_again_makes_no_revision(session: WriteSession) -> None:
    first, second = tables(2)
    put(session, first)
    again = put(session, first)
    assert (again.changed, again.revision.number) == (False, 1)
    put(session, second)
    # Published before, but not where the channel points now: a new revision of the same table.
    back = put(session, first)
    assert (back.changed, back.revision.number) == (True, 3)
    assert back.revision.table_digest == first.digest


def test_channels_move_apart(session: WriteSession) -> None:
    first, second = tables(2)
    put(session, first)
    put(session, second, channel="canary")
    assert {r.number: r.channels for r in revisions(session)} == {1: ("stable",), 2: ("canary",)}
    activate(session, 2, **WHO)
    assert {r.number: r.channels for r in revisions(session)} == {1: (), 2: ("canary", "stable")}


def test_a_table_of_another_key_is_refused(session: WriteSession) -> None:
    for other in ({"problem": OTHER_PROBLEM}, {"environment": H100}, {"checkpoint": "unquantized"}):
        with pytest.raises(ConflictError, match="The table is for"):
            put(session, make_table(), **other)
    assert revisions(session) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"author": " "},
        {"reason": ""},
        {"reason": "a\nb"},
        {"reason": "x" * 1001},
        {"channel": ""},
        {"channel": "Stable"},
        {"channel": "x" * 64},
    ],
)
def test_texts_that_could_not_be_read_later(session: WriteSession, bad: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        put(session, make_table(), **bad)


def test_the_character_that_does_not_print_is_named(session: WriteSession) -> None:
    for text, shown in (("a\u00a0b", r"without '\\xa0'"), ("J\udcc3", r"without '\\udcc3'")):
        with pytest.raises(UsageError, match=shown):
            put(session, make_table(), reason=text)


def test_rolling_back_step_by_step(session: WriteSession) -> None:
    for table in tables(3):
        put(session, table)
    assert rollback(session, **KEY, **WHO).revision.number == 2
    assert rollback(session, **KEY, **WHO).revision.number == 1
    # Before the first the channel pointed nowhere.
    gone = rollback(session, **KEY, **WHO)
    assert isinstance(gone, Withdrawal)
    assert (gone.previous.number, gone.channel) == (1, "stable")
    assert [r.channels for r in revisions(session)] == [(), (), ()]
    for to in (None, "unpublished"):
        with pytest.raises(ConflictError, match="points at no revision"):
            rollback(session, **KEY, **WHO, to=to)  # type: ignore[arg-type]
    assert rollback(session, **KEY, **WHO, to=3).previous is None  # type: ignore[union-attr]
    assert isinstance(rollback(session, **KEY, **WHO), Withdrawal), "what was withdrawn is not returned to"


def test_every_move_is_kept_and_one_channel_alone_is_withdrawn(session: WriteSession) -> None:
    first, second = tables(2)
    put(session, first)
    put(session, second)
    put(session, second, channel="canary")
    assert isinstance(rollback(session, **KEY, **WHO, to="unpublished"), Withdrawal)
    assert {r.number: r.channels for r in revisions(session)} == {1: (), 2: (), 3: ("canary",)}
    moves = RevisionRepository(session).history(Key(**KEY), "stable")
    assert [(m.from_revision, m.to_revision) for m in moves] == [(None, 1), (1, 2), (2, None)]
    assert put(session, second).previous is None


def test_rolling_back_does_not_return_to_what_was_rolled_back(session: WriteSession) -> None:
    first, bad, fixed = tables(3)
    put(session, first)
    put(session, bad)
    rollback(session, **KEY, **WHO)
    put(session, fixed)
    assert rollback(session, **KEY, **WHO).revision.table_digest == first.digest


def test_rolling_back_to_a_number_or_none(session: WriteSession) -> None:
    for table in tables(3):
        put(session, table)
    assert rollback(session, **KEY, **WHO, to=1).revision.number == 1
    none = rollback(session, **KEY, **WHO, to="none")
    assert (none.revision.number, none.revision.table_digest) == (4, None)
    assert rollback(session, **KEY, **WHO).revision.number == 1
    with pytest.raises(NotFoundError):
        rollback(session, **KEY, **WHO, to=99)


def test_rolling_back_to_another_problems_revision_is_refused(session: WriteSession) -> None:
    put(session, make_table())
    put(session, make_table(problem=OTHER_PROBLEM), problem=OTHER_PROBLEM)
    with pytest.raises(ConflictError, match="Revision 2 is for"):
        rollback(session, **KEY, **WHO, to=2)


def test_sessions_are_not_committed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Session) -> None:
        raise AssertionError("only the edge commits")

    def work(session: WriteSession) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Session, "commit", refuse)
            put(session, make_table())
            put(session, None)
            rollback(session, **KEY, **WHO)
            activate(session, 2, **WHO)
        raise KeyError

    with open_database(f"sqlite:///{tmp_path / 'x.db'}") as database:
        with pytest.raises(KeyError), database.write() as session:
            work(session)
        with database.read() as reading:
            assert revisions(reading) == []


def test_diff_splits_at_every_boundary() -> None:
    before = make_table(tokens=(1, 8, 64), wins={8: 1.2})
    after = make_table(tokens=(1, 16, 64, 128), wins={16: 1.3}, firsts={64: 32})
    rows = diff(before, after)
    assert [(r.first, r.last, r.before.answer, r.after.answer, r.changed) for r in rows] == [
        (1, 1, "no_benefit", "no_benefit", False),
        (2, 8, "win", "win", False),
        (9, 16, "no_benefit", "win", True),
        (17, 31, "no_benefit", "fallback", False),
        (32, 64, "no_benefit", "no_benefit", False),
        (65, 128, "fallback", "no_benefit", False),
    ]
    assert (rows[1].before.speedup, rows[1].after.speedup) == (1.2, 1.3)


def test_diff_sees_another_winner_with_the_same_verdict() -> None:
    rows = diff(make_table(tokens=(8,)), make_table(tokens=(8,), winner=triton(32)))
    assert [r.changed for r in rows] == [True]


def test_diff_with_none() -> None:
    table = make_table(tokens=(1, 8))
    assert diff(None, None) == []
    assert [r.after.answer for r in diff(table, None)] == ["fallback", "fallback"]
    assert [r.before.answer for r in diff(None, table)] == ["fallback", "fallback"]
    assert not any(r.changed for r in diff(table, table))
