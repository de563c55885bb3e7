"""Rows that were changed from outside or damaged: one of them must not take the others with it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from autotune.db.engine import Database, open_database
from autotune.db.revisions import RevisionRepository
from autotune.db.source import DatabaseSource
from autotune.publish import Publication, activate, publish, rollback
from autotune.server.app import create_app
from autotune.vocabulary.errors import DatabaseError, TableError
from autotune.vocabulary.table import PublishedTable, RoutingTable
from tests.factories import H100, H200, PROBLEM, make_table

WHO = {"author": "a", "reason": "r"}


def put(database: Database, table: RoutingTable, channel: str = "stable") -> Publication:
    with database.write() as session:
        return publish(
            session, table, problem=table.problem, environment=table.environment,
            checkpoint=table.checkpoint, channel=channel, **WHO,
        )  # fmt: skip


def change(database: Database, statement: str, *, unguarded: str = "") -> None:
    """Run a statement as somebody would who has the file, past triggers and foreign keys.

    Args:
        unguarded: the table whose trigger is out of the way meanwhile; it is back afterwards.
    """
    if database.dialect == "sqlite":
        connection = sqlite3.connect(str(database._url.database), isolation_level=None)
        if unguarded:
            (trigger,) = connection.execute(
                "SELECT sql FROM sqlite_master WHERE name = ?", (f"{unguarded}_immutable",)
            ).fetchone()
            connection.execute(f"DROP TRIGGER {unguarded}_immutable")
        connection.execute(statement)
        if unguarded:
            connection.execute(trigger)
        connection.close()
        return
    with database.write() as session:
        for table in filter(None, (unguarded, "routing_tables")):
            session.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER ALL"))
        session.execute(text("SET LOCAL session_replication_role = replica"))
        session.execute(text(statement))
        for table in filter(None, (unguarded, "routing_tables")):
            session.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER ALL"))


DAMAGE = {
    "another content": "UPDATE routing_tables SET content = '{\"schema_version\": 1}' WHERE digest = '%s'",
    "no object": "UPDATE routing_tables SET content = '[1]' WHERE digest = '%s'",
    "no row": "DELETE FROM routing_tables WHERE digest = '%s'",
    "no JSON": "UPDATE routing_tables SET content = '{\"sche' WHERE digest = '%s'",
    "no text": "UPDATE routing_tables SET content = CAST(X'ff00fe' AS TEXT) WHERE digest = '%s'",
    "a number": "UPDATE routing_tables SET content = 7 WHERE digest = '%s'",
}
ONLY_SQLITE = ("no JSON", "no text", "a number")
"""Postgres takes no such value into the column."""


@pytest.fixture(params=DAMAGE)
def damaged(request: pytest.FixtureRequest, database: Database) -> tuple[Database, RoutingTable]:
    """A good table for the H100 as revision 1, and a damaged one for the H200 as revision 2."""
    if database.dialect != "sqlite" and request.param in ONLY_SQLITE:
        pytest.skip("Postgres refuses it")
    table = make_table()
    put(database, make_table(environment=H100))
    put(database, table)
    change(database, DAMAGE[request.param] % table.digest, unguarded="routing_tables")
    return database, table


def by_gpu(source: DatabaseSource) -> dict[str, PublishedTable]:
    return {published.environment.gpu: published for published in source.tables(None)}


def test_a_damaged_table_is_broken_alone_and_publishing_mends_it(
    damaged: tuple[Database, RoutingTable], caplog: pytest.LogCaptureFixture
) -> None:
    database, table = damaged
    source = DatabaseSource(database)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = by_gpu(source)
            assert found[H100.gpu].table is not None
            assert (found[H200.gpu].table, bool(found[H200.gpu].broken)) == (None, True)
    assert [record.message.split()[1] for record in caplog.records] == [table.digest[:12]]
    with database.read() as session:
        repository = RevisionRepository(session)
        with pytest.raises(TableError, match=r"^Revision 2: ") as caught:
            repository.table(repository.get(2))
    assert "Publish it again" in caught.value.hint

    done = put(database, table)
    assert (done.changed, done.mended, done.revision.number) == (False, True, 2)
    # Also in a service that has seen it broken.
    assert by_gpu(source)[H200.gpu].table == table
    assert by_gpu(DatabaseSource(database))[H200.gpu].table == table
    again = put(database, table)
    assert (again.changed, again.mended) == (False, False)
    with pytest.raises(Exception, match="immutable"), database.write() as session:
        session.execute(text("UPDATE routing_tables SET digest = 'x'"))


def test_nothing_is_pointed_at_a_damaged_table(damaged: tuple[Database, RoutingTable]) -> None:
    database, table = damaged
    put(database, make_table(tokens=(1, 2)))
    key = {"problem": PROBLEM, "environment": H200, "checkpoint": "fp8"}
    with pytest.raises(TableError, match="Revision 2"), database.write() as session:
        activate(session, 2, **WHO)
    with pytest.raises(TableError, match="Revision 2"), database.write() as session:
        rollback(session, **key, **WHO)  # type: ignore[arg-type]
    # Another channel with the same table mends it for all.
    assert put(database, table, "canary").changed
    with database.write() as session:
        assert rollback(session, **key, **WHO).revision.number == 2  # type: ignore[arg-type]


UNREADABLE = {
    "problem": "'zzz'",
    "checkpoint": "'none of ours'",
    "environment": "'{\"gpu\": 1}'",
    "created_at": "'yesterday'",
    "author": "CAST(X'ff00fe' AS TEXT)",
}


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    with open_database(f"sqlite:///{tmp_path / 'x.db'}") as opened:
        yield opened


@pytest.mark.parametrize("column", [*UNREADABLE, "environment that is no JSON"])
def test_a_revision_that_cannot_be_read_is_left_out_and_named(
    sqlite_database: Database, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = sqlite_database
    put(database, make_table(environment=H100))
    put(database, make_table())
    value = UNREADABLE.get(column, "'{'")
    change(
        database,
        f"UPDATE revisions SET {column.split()[0]} = {value} WHERE number = 2",
        unguarded="revisions",
    )
    source = DatabaseSource(database)
    with caplog.at_level(logging.WARNING), database.read() as session:
        repository = RevisionRepository(session)
        assert [r.number for r in repository.newest()] == [1]
        assert list(by_gpu(source)) == [H100.gpu]
        with pytest.raises(DatabaseError, match="The stored revision 2 cannot be read") as caught:
            repository.get(2)
    assert "restore the database" in caught.value.hint
    assert [record.message.split(" in ")[0] for record in caplog.records] == ["revision 2"]

    with TestClient(create_app(database), raise_server_exceptions=False) as client:
        shape = {"shape": str(PROBLEM), "gpu": "h100", "tokens": 8}
        assert client.get("/routing", params=shape).json()["answer"] == "route"
        assert len(client.get("/routing/tables").json()["tables"]) == 1
        assert client.get("/").status_code == 200
        assert [r["number"] for r in client.get("/revisions").json()["revisions"]] == [1]
        broken = client.get("/revisions/2")
        assert (broken.status_code, broken.json()["title"]) == (503, "Database error")
        assert client.get("/revisions/1/diff/2").status_code == 503
    # The way out is to publish over it.
    done = put(database, make_table())
    assert (done.changed, done.revision.number) == (True, 3)
    assert set(by_gpu(source)) == {H100.gpu, H200.gpu}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_service_answers_for_the_others(sqlite_database: Database, damage: str) -> None:
    table = make_table()
    put(sqlite_database, make_table(environment=H100))
    put(sqlite_database, table)
    change(sqlite_database, DAMAGE[damage] % table.digest, unguarded="routing_tables")
    with TestClient(create_app(sqlite_database), raise_server_exceptions=False) as client:
        for gpu, answer, reason in (("h100", "route", None), ("h200", "fallback", "broken_table")):
            found = client.get("/routing", params={"shape": str(PROBLEM), "gpu": gpu, "tokens": 8}).json()
            assert (found["answer"], found["reason"]) == (answer, reason)
        assert [bool(t["table"]) for t in client.get("/routing/tables").json()["tables"]] == [True, False]
        assert client.get("/").status_code == 200
        one = client.get("/revisions/2")
        assert (one.status_code, one.json()["title"]) == (422, "Broken routing table")
        assert client.get("/revisions/2/diff/2").status_code == 422


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"tablemeasurementsmeasurements", b"table\xff\xfe\x80surementsmeasurements"),
        (b"CREATE TABLE measurements", b"CREATE TABLX \xff\xfesurements"),
        (b"CREATE TABLE measurements", b"\xff\xfe\xfdATE TABLE measurements"),
    ],
)
def test_a_file_whose_schema_is_trash_is_a_database_error(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "x.db"
    open_database(f"sqlite:///{path}").close()
    whole = path.read_bytes()
    assert whole.count(old) == 1
    path.write_bytes(whole.replace(old, new))
    with pytest.raises(DatabaseError, match=r"cannot be used|cannot be read") as caught:
        open_database(f"sqlite:///{path}")
    assert "from a copy" in caught.value.hint


def test_one_can_roll_back_from_a_revision_that_cannot_be_read(sqlite_database: Database) -> None:
    put(sqlite_database, make_table())
    put(sqlite_database, make_table(tokens=(1, 2)))
    change(sqlite_database, "UPDATE revisions SET environment = '{' WHERE number = 2", unguarded="revisions")
    with sqlite_database.write() as session:
        back = rollback(session, problem=PROBLEM, environment=H200, checkpoint="fp8", **WHO)  # type: ignore[arg-type]
    assert isinstance(back, Publication)
    assert back.revision.number == 1
