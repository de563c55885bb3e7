"""The routing service beside a server under test, its table published as the first revision."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.lab.servers import Server, start
from autotune.vocabulary.errors import AutotuneError
from autotune.vocabulary.installing import install_extra


@contextmanager
def service(table: Path, folder: Path, port: int) -> Iterator[Server]:
    """A service whose fresh database holds the table as the published revision 1.

    Raises:
        AutotuneError: if the table cannot be published or the service does not start.
        ConflictError: if the port is taken.
    """
    database = folder / "autotune.db"
    for left in (database, Path(f"{database}-wal"), Path(f"{database}-shm")):
        left.unlink(missing_ok=True)
    autotune = [sys.executable, "-m", "autotune"]
    db = ["--db", f"sqlite:///{database}"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNE_")}
    for command in (
        ["db", "upgrade", *db],
        ["publish", str(table), *db, "--reason", "serving experiment", "--author", "lab"],
    ):
        done = subprocess.run([*autotune, *command], env=env, capture_output=True, text=True)
        if done.returncode != 0:
            raise AutotuneError(
                f"`autotune {command[0]}` ended with {done.returncode}: {done.stderr.strip()[-500:]}",
                f"Read what it says; it needs the extras server and tune. {install_extra('server', 'tune')}",
            )
    server = start(
        "the service", [*autotune, "serve", *db, "--port", str(port)], env, port, folder / "service.log"
    )
    try:
        server.wait_ready(60.0, "/healthz", hint="or see whether something holds the machine up.")
        yield server
    finally:
        server.stop()
