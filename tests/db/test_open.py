"""Opening: migrations, versions, locks, and every way in which a database can be unusable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from autotune.db import engine as engine_module
from autotune.db import schema
from autotune.db.engine import Database, open_database
from autotune.db.models import Base
from autotune.db.schema import VERSION_TABLE, is_ours
from autotune.db.store import DatabaseStore
from autotune.db.urls import parse_url
from autotune.vocabulary.errors import DatabaseError, MissingDependencyError, SchemaVersionError
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
        with pytest.raises(SchemaVersionError, match="pip install --upgrade moe-autotune"):
            open_database(url, upgrade=upgrade)


def test_empty_database_without_upgrade_names_the_command(url: str) -> None:
    with pytest.raises(SchemaVersionError, match="autotune db upgrade"):
        open_database(url, upgrade=False)


def test_older_database_without_upgrade_names_the_command(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_database(url).close()
    # There is one schema so far; an older one is what a release with one more would see.
    newer = (frozenset({"0001", "0002"}), frozenset({"0002"}))
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
    ("bad", "expected"),
    [
        ("autotune.db", "sqlite:///autotune.db"),
        ("not a url", "does not parse"),
        ("", "does not parse"),
        ("postgresql://host:port/x", "does not parse"),
        ("mysql://root@localhost/x", "mysql databases are not supported"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:////no/such/folder/x.db", "Create its folder"),
        ("postgresql://user:hunter2@127.0.0.1:1/x", "Check that the server runs"),
    ],
)
def test_unusable_urls_say_what_to_do(bad: str, expected: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        open_database(bad)
    assert expected in str(caught.value)
    assert caught.value.hint
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgres_urls_get_psycopg_3(scheme: str) -> None:
    assert parse_url(f"{scheme}://u@h/n").drivername == "postgresql+psycopg"


def test_missing_postgres_database(postgres_url: str) -> None:
    with pytest.raises(DatabaseError, match=r"does not exist.*createdb"):
        open_database(parse_url(postgres_url).set(database="nowhere").render_as_string(hide_password=False))


def test_missing_driver_names_the_extra() -> None:
    with pytest.raises(MissingDependencyError, match=r"moe-autotune\[server\]"):
        open_database("postgresql+psycopg2://u@127.0.0.1:1/x")


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("shopping list\n" * 100)
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match="not a database"):
        open_database(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="unable to open"):
        open_database(f"sqlite:///{tmp_path}")


def test_another_programs_table_in_the_way(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE measurements (x INTEGER)"))
    with pytest.raises(DatabaseError, match="database of its own"):
        open_database(f"sqlite:///{tmp_path / 'x.db'}")
    # Nothing of ours was left behind by the migration that failed.
    assert inspect(engine).get_table_names() == ["measurements"]


def test_a_missing_file_is_not_made_by_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "absent.db"
    with pytest.raises(DatabaseError, match="There is no database at"):
        open_database(f"sqlite:///{path}", create=False)
    assert not path.exists()


def test_a_read_only_file_can_be_read_but_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with open_database(f"sqlite:///{path}") as database:
        DatabaseStore(database).append(make_measurement())
    # The URI form asks SQLite itself for read-only access, which holds for root as well.
    engine = engine_module._engine(
        parse_url(f"sqlite:///{path}").set(database=f"file:{path}", query={"mode": "ro", "uri": "true"})
    )
    with Database(engine) as read_only:
        assert read_only.upgrade() is False
        assert len(DatabaseStore(read_only).measurements(PROBLEM)) == 1
        with pytest.raises(DatabaseError, match="Make the file and its folder writable"):
            DatabaseStore(read_only).append(make_measurement(tokens=2))


def test_a_writer_that_cannot_get_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BUSY_TIMEOUT_S", 0.2)
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with open_database(url) as first, open_database(url) as second, first.write() as session:
        session.execute(text("DELETE FROM telemetry"))
        assert DatabaseStore(second).measurements(PROBLEM) == []
        with pytest.raises(DatabaseError, match="Another process is writing"):
            DatabaseStore(second).append(make_measurement())
