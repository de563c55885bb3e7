"""The store keeps evidence: in order, once, and through a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import text

from autotune.db.engine import Database, open_database
from autotune.db.measurements import MeasurementRepository
from autotune.db.store import DatabaseStore
from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.errors import ConflictError, DatabaseError, SchemaVersionError
from autotune.vocabulary.measurement import Status
from tests.factories import H100, H200, OTHER_PROBLEM, PROBLEM, make_measurement, triton


def test_reads_back_what_was_appended(database: Database) -> None:
    store = DatabaseStore(database)
    measurement = make_measurement(tokens=16, compile_s=1.25, relative_error=0.0123456789)
    assert store.append(measurement) is True
    (found,) = store.measurements(PROBLEM)
    assert found == measurement
    assert found.digest == measurement.digest


def test_the_same_content_is_stored_once(database: Database) -> None:
    store = DatabaseStore(database)
    assert [store.append(make_measurement()) for _ in range(3)] == [True, False, False]
    assert len(store.measurements(PROBLEM)) == 1


def test_recorded_order_not_arrival_order(database: Database) -> None:
    store = DatabaseStore(database)
    for offset in (5, 1, 3):
        store.append(make_measurement(offset_s=offset))
    late_zone = datetime(2026, 11, 29, 16, 0, 2, tzinfo=timezone(timedelta(hours=4)))
    store.append(make_measurement().model_copy(update={"recorded_at": late_zone}))
    seconds = [m.recorded_at.astimezone(UTC).second for m in store.measurements(PROBLEM)]
    assert seconds == [1, 2, 3, 5]


def test_filters(database: Database) -> None:
    store = DatabaseStore(database)
    kept = make_measurement(run="b", routing="zipf:1.2", checkpoint="compressed-tensors")
    others = (
        make_measurement(run="a"),
        make_measurement(environment=H100),
        make_measurement(problem=OTHER_PROBLEM),
        make_measurement(status=Status.TIMEOUT),
    )
    for measurement in (kept, *others):
        store.append(measurement)
    assert store.measurements(PROBLEM, environment=H100) == [others[1]]
    assert store.measurements(PROBLEM, checkpoint="compressed-tensors") == [kept]
    assert store.measurements(PROBLEM, routing="zipf:1.2") == [kept]
    assert store.measurements(PROBLEM, run="a") == [others[0]]
    assert store.measurements(PROBLEM, environment=H200, run="none") == []


def test_runs_in_the_order_in_which_they_were_stored_last(database: Database) -> None:
    """Whatever their own times say: a clock may have been ahead."""
    store = DatabaseStore(database)
    for run, offset in (("z", 1), ("a", 9), ("m", 3), ("z", 5)):
        store.append(make_measurement(run=run, offset_s=offset))
    store.append(make_measurement(run="elsewhere", environment=H100, offset_s=99))
    store.append(make_measurement(run="skewed", routing="zipf:1.2", offset_s=98))
    store.append(make_measurement(run="packed", checkpoint="compressed-tensors", offset_s=97))
    assert store.runs(PROBLEM, H200, "fp8", "uniform") == ["a", "m", "z"]
    assert store.runs(PROBLEM, H200, "fp8", "zipf:1.2") == ["skewed"]
    assert store.runs(PROBLEM, H200, "compressed-tensors", "uniform") == ["packed"]
    assert store.runs(PROBLEM, H200, "compressed-tensors", "zipf:1.2") == []


def test_many_writers_at_once_lose_nothing(database: Database) -> None:
    store = DatabaseStore(database)
    items = [make_measurement(tokens=1 + i % 20, process=i % 20) for i in range(60)]
    with ThreadPoolExecutor(6) as pool:
        stored = list(pool.map(store.append, items))
    assert sum(stored) == 20
    assert len(store.measurements(PROBLEM)) == 20


def test_evidence_cannot_be_changed(database: Database) -> None:
    DatabaseStore(database).append(make_measurement())
    with pytest.raises((DatabaseError, ConflictError), match="immutable"), database.write() as session:
        session.execute(text("UPDATE measurements SET tokens = 1"))


def test_a_row_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path / 'x.db'}") as database:
        store = DatabaseStore(database)
        store.append(make_measurement(candidate=triton(32)))
        with database.write() as session:
            session.execute(text("DROP TRIGGER measurements_immutable"))
            session.execute(text("UPDATE measurements SET content = replace(content, '80.0', '8.0')"))
        with pytest.raises(DatabaseError, match="does not match its digest"):
            store.measurements(PROBLEM)


def test_a_measurement_of_a_later_release_asks_for_an_upgrade(tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path / 'x.db'}") as database:
        store = DatabaseStore(database)
        store.append(make_measurement(candidate=triton(32)))
        content = make_measurement(candidate=triton(32)).model_dump(mode="json") | {"twist": 3}
        with database.write() as session:
            session.execute(text("DROP TRIGGER measurements_immutable"))
            session.execute(
                text("UPDATE measurements SET content = :content, digest = :digest"),
                {"content": json.dumps(content), "digest": content_digest(content)},
            )
        with pytest.raises(SchemaVersionError, match="later release") as caught:
            store.measurements(PROBLEM)
        assert "Upgrade the package" in caught.value.hint


def test_reading_sessions_cannot_write(database: Database) -> None:
    with pytest.raises(TypeError), database.read() as session:
        MeasurementRepository(session).add(make_measurement())
    with pytest.raises(DatabaseError), database.read() as session:
        session.execute(text("DELETE FROM telemetry"))


def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    def interrupted() -> None:
        with database.write() as session:
            MeasurementRepository(session).add(make_measurement())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert DatabaseStore(database).measurements(PROBLEM) == []


APPENDER = textwrap.dedent(
    """
    import sys
    from autotune.db.engine import open_database
    from autotune.db.store import DatabaseStore
    from tests.factories import make_measurement

    store = DatabaseStore(open_database(sys.argv[1]))
    for number in range(int(sys.argv[2]), 100_000):
        store.append(make_measurement(tokens=number + 1, offset_s=number))
        print(number + 1, flush=True)
    """
)


def test_kill_9_loses_no_committed_row_and_stores_none_twice(url: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    acknowledged = 0
    for attempt in range(3):
        # Begin a few rows back, as a resumed sweep may: what is there already must not come twice.
        start = max(0, acknowledged - 5)
        output = tmp_path / f"acknowledged-{attempt}"
        with output.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-c", APPENDER, url, str(start)],
                stdout=stream,
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root)},
            )
            deadline = time.monotonic() + 60
            while len(output.read_text().split()) < 20:
                assert process.poll() is None, "the appender ended by itself"
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
        acknowledged = int(output.read_text().rpartition("\n")[0].split()[-1])
        with open_database(url) as database:
            stored = [m.tokens for m in DatabaseStore(database).measurements(PROBLEM)]
        # One more than acknowledged may be there: killed between the commit and the print.
        assert stored in (
            list(range(1, acknowledged + 1)),
            list(range(1, acknowledged + 2)),
        )
