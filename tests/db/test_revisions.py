"""Revisions, channels and the database as a source of tables."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from autotune.db.engine import Database
from autotune.db.keys import environment_digest
from autotune.db.measurements import MeasurementRepository
from autotune.db.revisions import Key, RevisionRepository
from autotune.db.source import DatabaseSource
from autotune.db.store import DatabaseStore
from autotune.publish import publish
from autotune.vocabulary.decide import Query, decide
from autotune.vocabulary.errors import ConflictError, DatabaseError, NotFoundError
from autotune.vocabulary.table import Miss, RoutingTable
from autotune.vocabulary.wire import decode_tables, encode_tables
from tests.factories import H100, H200, PROBLEM, make_measurement, make_table


def put(database: Database, table: RoutingTable, channel: str = "stable") -> int:
    with database.write() as session:
        return publish(
            session, table, problem=table.problem, environment=table.environment,
            checkpoint=table.checkpoint, author="a", reason="r", channel=channel,
        ).revision.number  # fmt: skip


def test_a_table_survives_unchanged(database: Database) -> None:
    table = make_table(wins={8: 1.234567})
    number = put(database, table)
    with database.read() as session:
        repository = RevisionRepository(session)
        revision = repository.get(number)
        assert repository.table(revision) == table
    assert revision.table_digest == table.digest
    assert revision.created_at.tzinfo is not None
    assert revision.channels == ("stable",)


def test_unknown_number(database: Database) -> None:
    for number in (1, 0, -1, 2**70):
        with pytest.raises(NotFoundError, match="autotune revisions"), database.read() as session:
            RevisionRepository(session).get(number)


def test_revisions_cannot_be_changed(database: Database) -> None:
    put(database, make_table())
    for table in ("revisions SET author", "routing_tables SET digest"):
        with pytest.raises((ConflictError, DatabaseError), match="immutable"), database.write() as session:
            session.execute(text(f"UPDATE {table} = 'x'"))


def test_numbers_are_not_used_again(database: Database) -> None:
    first = put(database, make_table())
    with database.write() as session:
        for table in ("channel_history", "channels", "revisions"):
            session.execute(text(f"DELETE FROM {table}"))
    assert put(database, make_table()) > first


def test_many_publishers_at_once(database: Database) -> None:
    tables = [make_table(tokens=(1, 2, 4 + i)) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda table: put(database, table), tables))
    assert len(set(numbers)) == 8
    key = Key(problem=PROBLEM, environment=H200, checkpoint="fp8")
    with database.read() as session:
        repository = RevisionRepository(session)
        moves = repository.history(key, "stable")
        now = repository.pointed(key, "stable")
    assert [m.from_revision for m in moves] == [None, *(m.to_revision for m in moves[:-1])]
    assert now is not None
    assert now.number == moves[-1].to_revision


def test_source_lists_what_channels_point_at(database: Database) -> None:
    here, there = make_table(), make_table(environment=H100)
    put(database, make_table(tokens=(1, 2)))
    number = put(database, here)
    put(database, there)
    put(database, make_table(tokens=(1,)), channel="canary")
    source = DatabaseSource(database)
    (published,) = source.tables("NVIDIA_H200")
    assert (published.table, published.revision, published.channel) == (here, number, "stable")
    assert {t.environment.gpu for t in source.tables(None)} == {H100.gpu, H200.gpu}
    assert [t.table.routes[-1].last for t in source.tables(None, "canary") if t.table] == [1]
    assert source.tables("NVIDIA_L4") == []


def test_source_hands_out_none(database: Database) -> None:
    put(database, make_table())
    with database.write() as session:
        publish(session, None, problem=PROBLEM, environment=H200, checkpoint="fp8", author="a", reason="r")
    (published,) = DatabaseSource(database).tables("NVIDIA_H200")
    assert published.table is None
    assert published.revision is not None


def test_a_broken_table_comes_with_its_reason(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    bad = make_table()
    put(database, make_table(environment=H100))
    put(database, bad)
    with database.write() as session:
        drop = "routing_tables_immutable" + (" ON routing_tables" if database.dialect == "postgresql" else "")
        session.execute(text(f"DROP TRIGGER {drop}"))
        # A literal, since bound text would be taken as text and not as JSON by Postgres.
        session.execute(
            text("UPDATE routing_tables SET content = '{\"schema_version\": 1}' WHERE digest = :d"),
            {"d": bad.digest},
        )
    with caplog.at_level(logging.WARNING):
        tables = DatabaseSource(database).tables(None)
    (good, broken) = tables
    assert (good.environment, good.broken) == (H100, "")
    assert good.table is not None
    assert (broken.environment, broken.table) == (H200, None)
    assert "malformed" in broken.broken
    assert bad.digest[:12] in caplog.text
    query = Query(PROBLEM, environment=H200)
    decision = decide(tables, query, 8)
    assert (decision.answer, decision.reason, decision.revision) == ("fallback", Miss.BROKEN_TABLE, 2)
    assert "malformed" in decision.detail
    # The same after it has travelled.
    received, unread = decode_tables(json.loads(json.dumps(encode_tables(tables))))
    assert unread == ()
    assert decide(received, query, 8).reason is Miss.BROKEN_TABLE
    assert decide(received, Query(PROBLEM, environment=H100), 8).answer == "route"


def test_revisions_are_found_by_their_environment(database: Database) -> None:
    newer = H200.model_copy(update={"vllm": "0.26.0"})
    put(database, make_table())
    put(database, make_table(environment=newer))
    with database.read() as session:
        repository = RevisionRepository(session)
        assert [r.number for r in repository.newest(vllm="0.26.0")] == [2]
        assert [r.number for r in repository.newest(environment=environment_digest(H200)[:4])] == [1]
        assert repository.newest(environment="%") == []
        assert repository.newest(vllm="0.2") == []


def test_where_a_problem_was_measured(database: Database) -> None:
    newer = H200.model_copy(update={"vllm": "0.26.0"})
    store = DatabaseStore(database)
    for environment, tokens in ((newer, 1), (H200, 1), (newer, 2), (H100, 1)):
        store.append(make_measurement(environment=environment, tokens=tokens))
    with database.read() as session:
        found = MeasurementRepository(session).environments(H200.gpu, PROBLEM)
    assert found == [(H200, "fp8"), (newer, "fp8")]
