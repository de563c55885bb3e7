"""Databases that earlier releases made, kept as SQL text, still open, upgrade and read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from autotune.db.engine import open_database
from autotune.db.revisions import Key, RevisionRepository
from autotune.db.schema import configuration
from autotune.db.source import DatabaseSource
from autotune.db.store import DatabaseStore
from autotune.db.telemetry import TelemetryRepository
from autotune.vocabulary.measurement import Status
from tests.factories import H200, OTHER_PROBLEM, PROBLEM

GOLDEN = sorted((Path(__file__).parent / "golden").glob("schema_*.sql"))


def test_every_schema_has_its_golden_database() -> None:
    scripts = ScriptDirectory.from_config(configuration())
    assert {f"schema_{s.revision}" for s in scripts.walk_revisions()} == {path.stem for path in GOLDEN}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_old_databases_open_and_read(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(golden.read_text(encoding="utf-8"))
    with open_database(f"sqlite:///{path}") as database:
        database.check()
        store = DatabaseStore(database)
        measurements = store.measurements(PROBLEM)
        assert [m.tokens for m in measurements] == [8, 8, 8, 1, 1]
        assert measurements[-1].status is Status.OUT_OF_RESOURCES
        assert store.runs(PROBLEM, H200, "fp8", "uniform") == ["run-1", "run-2"]
        (published,) = DatabaseSource(database).tables("NVIDIA_H200")
        assert published.revision == 1
        assert published.table is not None
        assert [route.last for route in published.table.routes] == [1, 8]
        (none,) = DatabaseSource(database).tables(None, "canary")
        assert (none.problem, none.table) == (OTHER_PROBLEM, None)
        with database.read() as session:
            key = Key(problem=PROBLEM, environment=H200, checkpoint="fp8")
            moves = RevisionRepository(session).history(key, "stable")
            assert [(m.from_revision, m.to_revision) for m in moves] == [(None, 1), (1, 2), (2, 1)]
            if golden.stem >= "schema_0002":
                other = Key(problem=OTHER_PROBLEM, environment=H200, checkpoint="fp8")
                moves = RevisionRepository(session).history(other, "beta")
                assert [(m.from_revision, m.to_revision) for m in moves] == [(None, 4), (4, None)]
            assert TelemetryRepository(session).totals() == {("route", ""): 12}
