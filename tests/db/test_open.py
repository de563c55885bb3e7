"""Opening: migrations, versions, locks, and every way in which a database can be unusable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, make_url, text

from autotune.db import engine as engine_module
from autotune.db import schema
from autotune.db.engine import Database, open_database
from autotune.db.models import Base
from autotune.db.schema import VERSION_TABLE, is_ours
from autotune.db.store import DatabaseStore
from autotune.db.telemetry import TelemetryCount, TelemetryRepository
from autotune.db.urls import parse_url
from autotune.vocabulary.errors import (
    DatabaseError,
    MissingDependencyError,
    SchemaVersionError,
    UsageError,
)
from tests.factories import PROBLEM, make_measurement


def test_migrations_make_what_the_models_say(database: Database) -> None:
    with database.read() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"version_table": VERSION_TABLE, "include_object": is_ours}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_sqlite_is_set_up_for_readers_beside_a_writer(tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path / 'x.db'}") as database, database.read() as session:
        read = {
            name: session.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    assert read == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30000, "synchronous": 2}


def test_foreign_keys_are_enforced(database: Database) -> None:
    with pytest.raises(Exception, match=r"(?i)foreign key"), database.write() as session:
        session.execute(
            text(
                "INSERT INTO channels (problem, environment_digest, checkpoint, channel, revision) "
                "VALUES ('p', 'e', 'fp8', 'stable', 999)"
            )
        )


def test_opening_again_changes_nothing(url: str) -> None:
    with open_database(url) as first:
        DatabaseStore(first).append(make_measurement())
    with open_database(url, upgrade=False) as again:
        assert again.upgrade() is False
        assert len(DatabaseStore(again).measurements(PROBLEM)) == 1


def test_newer_database_names_the_package_upgrade(url: str) -> None:
    with open_database(url) as database, database.write() as session:
        session.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    for upgrade in (True, False):
        with pytest.raises(SchemaVersionError, match=r"git pull in its clone, then pip install --upgrade \."):
            open_database(url, upgrade=upgrade)


def test_empty_database_without_upgrade_names_the_command(url: str) -> None:
    with pytest.raises(SchemaVersionError, match="autotune db upgrade"):
        open_database(url, upgrade=False)


def test_older_database_without_upgrade_names_the_command(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_database(url).close()
    # To a release with one schema more, this one is older.
    newer = (schema.released()[0] | {"9999"}, frozenset({"9999"}))
    monkeypatch.setattr(schema, "released", lambda: newer)
    with pytest.raises(SchemaVersionError, match=r"older release.*autotune db upgrade"):
        open_database(url, upgrade=False)


def test_optuna_may_use_the_same_database(url: str) -> None:
    optuna = pytest.importorskip("optuna")
    open_database(url).close()
    driver_url = parse_url(url).render_as_string(hide_password=False)
    study = optuna.create_study(storage=driver_url, study_name="s")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    with open_database(url) as database, database.read() as session:
        names = set(inspect(session.connection()).get_table_names())
    assert {"alembic_version", VERSION_TABLE, "studies", "measurements"} <= names


def test_first_opening_by_many_processes_at_once(url: str) -> None:
    code = "import sys; from autotune.db.engine import open_database; open_database(sys.argv[1]).check()"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    results = [(p.communicate(timeout=120)[1], p.returncode) for p in processes]
    assert [code for _, code in results] == [0] * 4, results


@pytest.mark.parametrize(
    ("bad", "expected", "exit_code"),
    [
        ("autotune.db", "sqlite:///autotune.db", 2),
        ("not a url", "does not parse", 2),
        ("", "does not parse", 2),
        ("postgresql://host:port/x", "does not parse", 2),
        ("mysql://root@localhost/x", "mysql databases are not supported", 2),
        ("sqlite+nothing:///x.db", "driver 'nothing' is not supported", 2),
        ("sqlite://", "needs a file", 2),
        ("sqlite:///:memory:", "needs a file", 2),
        ("sqlite:////no/such/folder/x.db", "Create its folder", 2),
        ("postgresql://user:hunter2@127.0.0.1:1/x", "Check that the server runs", 1),
    ],
)
def test_unusable_urls_say_what_to_do(bad: str, expected: str, exit_code: int) -> None:
    with pytest.raises(UsageError if exit_code == 2 else DatabaseError) as caught:
        open_database(bad)
    assert caught.value.exit_code == exit_code
    assert expected in str(caught.value)
    assert caught.value.hint
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgres_urls_get_psycopg_3(scheme: str) -> None:
    assert parse_url(f"{scheme}://u@h/n").drivername == "postgresql+psycopg"


def test_missing_postgres_database(postgres_url: str) -> None:
    with pytest.raises(DatabaseError, match=r"does not exist.*createdb"):
        open_database(parse_url(postgres_url).set(database="nowhere").render_as_string(hide_password=False))


def test_missing_driver_names_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install psycopg2\."):
        open_database("postgresql+psycopg2://u@127.0.0.1:1/x")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[server\]"):
        open_database("postgresql://u@127.0.0.1:1/x")


@pytest.mark.parametrize(
    "form",
    ["sqlite:///x.db?timeout=abc", "sqlite:///x.db?check_same_thread=x", "sqlite:///x.db?foo=1&uri=true",
     "sqlite:///x.db?mode=ro&uri=true", "sqlite:///x.db?timeout=5", "sqlite+aiosqlite:///x.db",
     "sqlite+pysqlcipher:///x.db", "postgresql+asyncpg://u@127.0.0.1:1/x",
     "postgres+psycopg_async://u@127.0.0.1:1/x"],
)  # fmt: skip
def test_options_and_drivers_that_do_not_work_are_bad_usage(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for create in (True, False):
        with pytest.raises(UsageError, match="Leave") as caught:
            open_database(form, create=create)
        assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("shopping list\n" * 100)
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match="not a database"):
        open_database(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no regular file"):
        open_database(f"sqlite:///{tmp_path}")


def make_foreign(url: str, *names: str) -> None:
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        for name in names:
            connection.execute(text(f"CREATE TABLE {name} (x INTEGER)"))
    engine.dispose()


def names_in(url: str) -> list[str]:
    engine = create_engine(parse_url(url))
    try:
        return sorted(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_another_programs_database_is_left_alone(url: str) -> None:
    make_foreign(url, "bookmarks", "cookies")
    for create in (True, False):
        with pytest.raises(DatabaseError, match=r"bookmarks, cookies.*autotune db upgrade"):
            open_database(url, create=create)
    assert names_in(url) == ["bookmarks", "cookies"]
    open_database(url, adopt=True).close()
    # From then on it is ours as well.
    open_database(url).close()
    assert {"bookmarks", "cookies", "measurements", VERSION_TABLE} <= set(names_in(url))


def test_another_programs_table_in_the_way(url: str) -> None:
    make_foreign(url, "measurements")
    with pytest.raises(DatabaseError, match="belongs to another program") as refused:
        open_database(url)
    assert "Name another with --db" in str(refused.value)
    assert "db upgrade" not in str(refused.value)
    with pytest.raises(DatabaseError, match="database of its own"):
        open_database(url, adopt=True)
    # Nothing of ours was left behind by the migration that failed.
    assert names_in(url) == ["measurements"]


def test_a_database_that_optuna_made_first_is_shared(url: str) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.create_study(storage=parse_url(url).render_as_string(hide_password=False), study_name="s")
    assert set(names_in(url)) <= schema.OPTUNA_TABLES
    open_database(url).close()
    assert {"studies", "measurements"} <= set(names_in(url))


def test_a_missing_file_is_not_made_by_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "absent.db"
    with pytest.raises(UsageError, match="There is no database at"):
        open_database(f"sqlite:///{path}", create=False)
    assert not path.exists()


@contextmanager
def not_root() -> Iterator[None]:
    """Root may write everything: act as an account that may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that another account may read."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-ro-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_read_only_file_can_be_read_but_not_written(shared_folder: Path, folder_mode: int) -> None:
    # With what a URI would take for its own.
    path = shared_folder / "a b?c#d%41.db"
    engine = engine_module._engine(parse_url("sqlite:///x").set(database=str(path)))
    with Database(engine) as database:
        database.upgrade()
        DatabaseStore(database).append(make_measurement())
    url = str(engine.url)
    assert parse_url(url).database == str(path)
    path.chmod(0o444)
    shared_folder.chmod(folder_mode)
    with not_root(), open_database(url, create=False) as read_only:
        assert read_only.name == url
        assert len(DatabaseStore(read_only).measurements(PROBLEM)) == 1
        with pytest.raises(DatabaseError, match="Make the file and its folder writable"):
            DatabaseStore(read_only).append(make_measurement(tokens=2))


def test_a_read_only_file_that_another_process_writes_shows_what_is_new(shared_folder: Path) -> None:
    url = f"sqlite:///{shared_folder / 'x.db'}"
    with open_database(url) as writer:
        (shared_folder / "x.db").chmod(0o644)
        DatabaseStore(writer).append(make_measurement())
        with not_root(), open_database(url, create=False) as reader:
            assert len(DatabaseStore(reader).measurements(PROBLEM)) == 1


@pytest.mark.parametrize("how", ["renamed", "deleted", "replaced"])
def test_a_file_that_is_taken_away_is_noticed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.db"
    with open_database(f"sqlite:///{path}") as database:
        store = DatabaseStore(database)
        store.append(make_measurement())
        kept = [path.with_name(f"x.db{end}") for end in ("", "-wal", "-shm")]
        for file in kept:
            file.rename(f"{file}.away")
        if how == "deleted":
            for file in kept:
                Path(f"{file}.away").unlink()
        elif how == "replaced":
            open_database(f"sqlite:///{path}").close()
        expected = "replaced by another file" if how == "replaced" else "no longer at its path"
        for work in (database.check, lambda: store.append(make_measurement(tokens=2)), store_reads(store)):
            with pytest.raises(DatabaseError, match=expected):
                work()
        if how == "renamed":
            for file in kept:
                Path(f"{file}.away").rename(file)
            database.check()
            assert store.append(make_measurement(tokens=2))


def store_reads(store: DatabaseStore) -> Callable[[], object]:
    return lambda: store.measurements(PROBLEM)


def test_a_file_that_goes_away_during_a_write_is_not_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database = open_database(f"sqlite:///{path}")

    def write() -> None:
        with database.write() as session:
            session.execute(text("DELETE FROM telemetry"))
            path.rename(tmp_path / "away.db")

    with database, pytest.raises(DatabaseError, match="no longer at its path"):
        write()


@pytest.mark.parametrize(("instance", "count"), [("i", 2**70), ("\ud800", 1)])
def test_values_that_cannot_be_sent_are_usage_errors(database: Database, instance: str, count: int) -> None:
    row = TelemetryCount(problem="p", tokens=1, answer="route", reason="", revision=None, count=count)

    def add() -> None:
        with database.write() as session:
            TelemetryRepository(session).add(instance, "NVIDIA_H200", [row])

    with pytest.raises(UsageError, match="cannot store a value"):
        add()


def test_a_writer_that_cannot_get_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BUSY_TIMEOUT_S", 0.2)
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with open_database(url) as first, open_database(url) as second, first.write() as session:
        session.execute(text("DELETE FROM telemetry"))
        assert DatabaseStore(second).measurements(PROBLEM) == []
        with pytest.raises(DatabaseError, match="Another process is writing"):
            DatabaseStore(second).append(make_measurement())


def test_a_database_without_its_version_or_a_table_says_so(url: str) -> None:
    with open_database(url) as database, database.write() as session:
        session.execute(text(f"DELETE FROM {VERSION_TABLE}"))
    for upgrade in (True, False):
        with pytest.raises(SchemaVersionError, match=r"which schema it has.*restore it from a copy"):
            open_database(url, upgrade=upgrade)


def test_a_table_that_was_taken_away(url: str) -> None:
    with open_database(url) as database:
        with database.write() as session:
            session.execute(text("DROP TABLE telemetry"))
        with pytest.raises(DatabaseError, match=r"gone: telemetry.*restore"), database.read() as session:
            schema.require_tables(session.connection())
        if database.dialect == "sqlite":
            with (
                pytest.raises(DatabaseError, match=r"no such table: telemetry.*restore"),
                database.read() as s,
            ):
                s.execute(text("SELECT count(*) FROM telemetry"))


def test_a_postgres_that_falls_silent_fails_a_request_in_time(postgres_url: str) -> None:
    """libpq's limits: of the server for a statement, of TCP for a host that answers nothing."""
    with open_database(postgres_url) as database, database.read() as session:
        assert session.execute(text("SHOW statement_timeout")).scalar() == "30s"
        raw: Any = session.connection().connection.driver_connection
        given = raw.info.get_parameters()
        assert (given["tcp_user_timeout"], given["keepalives_idle"]) == ("15000", "5")
    own = make_url(postgres_url).update_query_dict({"options": "-c statement_timeout=7s"})
    with open_database(own.render_as_string(hide_password=False)) as database, database.read() as session:
        assert session.execute(text("SHOW statement_timeout")).scalar() == "7s"
