"""Write `schema_NNNN.sql`, a small database of the present schema, as SQL text.

Run it once when a schema is released, and never again for that schema: later releases must read it.

    python -m tests.db.golden.make
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from autotune.db.engine import open_database
from autotune.db.schema import VERSION_TABLE
from autotune.db.store import DatabaseStore
from autotune.db.telemetry import TelemetryCount, TelemetryRepository
from autotune.publish import publish, rollback
from autotune.vocabulary.measurement import Stage, Status
from tests.factories import H200, OTHER_PROBLEM, PROBLEM, make_measurement, make_table

FOLDER = Path(__file__).parent
WHO = {"author": "golden", "reason": "kept for later releases"}
KEY = {"problem": PROBLEM, "environment": H200, "checkpoint": "fp8"}


def main() -> None:
    """Make the database with the public calls and dump it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.db"
        with open_database(f"sqlite:///{path}") as database:
            store = DatabaseStore(database)
            for process in range(3):
                store.append(make_measurement(process=process, offset_s=process, relative_error=0.00123))
            store.append(make_measurement(tokens=1, stage=Stage.SCREEN, run="run-2", offset_s=9))
            store.append(make_measurement(tokens=1, status=Status.OUT_OF_RESOURCES, run="run-2", offset_s=10))
            with database.write() as session:
                publish(session, make_table(tokens=(1, 8), wins={8: 1.25}), **KEY, **WHO)  # type: ignore[arg-type]
                publish(session, make_table(tokens=(1, 8, 64)), **KEY, **WHO)  # type: ignore[arg-type]
                rollback(session, **KEY, **WHO)  # type: ignore[arg-type]
                other = {**KEY, "problem": OTHER_PROBLEM}
                publish(session, None, **other, **WHO, channel="canary")  # type: ignore[arg-type]
                publish(session, None, **other, **WHO, channel="beta")  # type: ignore[arg-type]
                rollback(session, **other, **WHO, channel="beta")  # type: ignore[arg-type]
                counts = [TelemetryCount(str(PROBLEM), 8, "route", "", 1, 12)]
                TelemetryRepository(session).add("node-1", H200.gpu, counts)
        with sqlite3.connect(path) as connection:
            (version,) = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
            text = "\n".join(connection.iterdump()) + "\n"
    (FOLDER / f"schema_{version}.sql").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
