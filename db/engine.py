"""Opening a database: SQLite files and Postgres servers, with read and write sessions kept apart."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc
from sqlalchemy.orm import Session

from autotune.db.failures import translated
from autotune.db.identity import FileIdentity
from autotune.db.schema import SchemaState, inspect_schema, refuse_foreign, require_current, upgrade_schema
from autotune.db.urls import parse_url, shown
from autotune.vocabulary.errors import DatabaseError, MissingDependencyError, UsageError
from autotune.vocabulary.installing import install_extra

BUSY_TIMEOUT_S = 30.0
"""How long a SQLite writer waits for another one."""
CONNECT_TIMEOUT_S = 5
SILENCE_S = 15
"""How long a Postgres host may leave packets unanswered, by TCP, before a connection counts as lost."""
STATEMENT_TIMEOUT_S = 30
"""How long Postgres works on one statement; migrations are exempt."""
POOL_TIMEOUT_S = 5.0
"""How long a request waits for a free connection."""


class ReadSession(Session):
    """A session whose transaction the database itself keeps read-only."""


class WriteSession(ReadSession):
    """A session that may write; whoever opened it commits, nobody else does."""


class Database:
    """An open database with the schema of this release. Close it, or use it in a `with`."""

    def __init__(self, engine: Engine, url: URL | None = None) -> None:
        self._engine = engine
        self._url = url or engine.url
        self._file: FileIdentity | None = None
        reading: dict[str, Any] = {"autotune_read_only": True}
        if engine.dialect.name == "postgresql":
            reading["postgresql_readonly"] = True
        self._reading = engine.execution_options(**reading)

    @property
    def name(self) -> str:
        """The URL without its password."""
        return shown(self._url)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @contextmanager
    def read(self) -> Iterator[ReadSession]:
        """One read-only transaction.

        Raises:
            DatabaseError: if the database cannot be reached or refuses.
        """
        self._check_file()
        with translated(self.name), ReadSession(self._reading, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[WriteSession]:
        """One transaction, committed when the block ends and rolled back when it raises.

        Raises:
            DatabaseError: if the database cannot be reached or refuses.
            ConflictError: if the work contradicts what somebody else stored at the same time.
        """
        self._check_file()
        with translated(self.name), WriteSession(self._engine, expire_on_commit=False) as session:
            yield session
            session.commit()
        # Nothing may be acknowledged that went into a file which is no longer there to be read.
        self._check_file()

    def check(self) -> None:
        """Make sure that the database answers and has this release's schema.

        Raises:
            DatabaseError, SchemaVersionError: if not.
        """
        self._check_file()
        with translated(self.name), self._reading.connect() as connection:
            require_current(connection)

    def upgrade(self, *, adopt: bool = False) -> bool:
        """Create or upgrade the tables; False if nothing was to do. Safe beside other processes.

        Args:
            adopt: also put our tables beside those of another program.

        Raises:
            SchemaVersionError: if a newer release made the database.
            DatabaseError: if only another program's tables are in it, without `adopt`.
        """
        with translated(self.name):
            with self._reading.connect() as connection:
                state = inspect_schema(connection)
                if state is SchemaState.CURRENT:
                    return False
                if state is SchemaState.EMPTY and not adopt:
                    refuse_foreign(connection)
            if self.dialect == "sqlite":
                _use_write_ahead_log(self._engine)
            with self._engine.begin() as connection:
                return upgrade_schema(connection)

    def remember_file(self) -> None:
        """From now on refuse to work once another file, or none, stands at a SQLite database's path."""
        if self.dialect == "sqlite":
            self._file = FileIdentity.of(Path(str(self._url.database)), self.name)

    def _check_file(self) -> None:
        if self._file is not None:
            self._file.check()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_database(url: str, *, upgrade: bool = True, create: bool = True, adopt: bool = False) -> Database:
    """Open a database and bring its schema up to date. A SQLite file that may not be written opens to read.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://user@host/name`.
        upgrade: False refuses a database that is not up to date instead of upgrading it.
        create: False refuses a SQLite file that does not exist instead of making one.
        adopt: put our tables into a database that holds only another program's.

    Raises:
        UsageError: for a URL that is malformed, or names another kind of database or no file that can be had.
        DatabaseError: for an unreachable server, a file that is no database, or another program's.
        SchemaVersionError: for a schema that a newer release made, or, without `upgrade`, an older one.
        MissingDependencyError: if the database's driver is not installed.
    """
    parsed = parse_url(url)
    try:
        if parsed.get_backend_name() == "sqlite":
            _check_path(Path(str(parsed.database)), create)
        engine = _engine(_read_only(parsed))
    except OSError as error:
        # Such as a working folder that was removed, or that may not be entered.
        raise DatabaseError(
            f"{shown(parsed)} cannot be reached: {error.strerror}.",
            "Work in a folder that is there and that you may enter, or name a whole path with --db.",
        ) from error
    database = Database(engine, parsed)
    try:
        if upgrade:
            database.upgrade(adopt=adopt)
        else:
            database.check()
        database.remember_file()
    except BaseException:
        database.close()
        raise
    return database


def _check_path(path: Path, create: bool) -> None:
    if not path.exists():
        if not create:
            raise UsageError(
                f"There is no database at {path}.",
                "Make one with `autotune sweep` or `autotune publish`, or name another with --db.",
            )
        if not path.parent.is_dir():
            raise UsageError(
                f"There is no folder {path.parent} for the database {path.name}.",
                "Create its folder, or name another with --db.",
            )
    elif not path.is_file():
        raise UsageError(f"{path} is no regular file.", "Name another with --db; this one is left as it is.")


def _read_only(url: URL) -> URL:
    """The same SQLite file opened read-only, if it may not be written; else the URL as it is."""
    if url.get_backend_name() != "sqlite":
        return url
    path = Path(str(url.database)).absolute()
    if not path.is_file() or _writable(path):
        return url
    query = {"mode": "ro", "uri": "true"}
    log = path.with_name(f"{path.name}-wal")
    if not _writable(path.parent) and not (log.exists() and log.stat().st_size):
        # SQLite would make a shared index beside the file to read it. Without a log nobody is writing.
        query["immutable"] = "1"
    return url.set(database=f"file:{quote(str(path))}", query=query)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _postgres_arguments(url: URL) -> dict[str, Any]:
    """libpq's time limits, so that a host that falls silent fails a request and does not hold it for good.

    What the URL itself says wins.
    """
    ours = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": 1000 * SILENCE_S,
        "keepalives_idle": 5,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        "options": f"-c statement_timeout={STATEMENT_TIMEOUT_S}s",
    }
    return {name: value for name, value in ours.items() if name not in url.query}


def _engine(url: URL) -> Engine:
    sqlite = url.get_backend_name() == "sqlite"
    arguments: dict[str, Any] = {"timeout": BUSY_TIMEOUT_S} if sqlite else _postgres_arguments(url)
    pool: dict[str, Any] = {} if sqlite else {"pool_pre_ping": True, "pool_timeout": POOL_TIMEOUT_S}
    try:
        engine = create_engine(url, connect_args=arguments, **pool)
    except ModuleNotFoundError as error:
        ours = url.drivername == "postgresql+psycopg"
        raise MissingDependencyError(
            f"The driver for {shown(url)} is not installed ({error.name}).",
            install_extra("server") if ours else f"Install it: pip install {error.name}.",
        ) from error
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError) as error:
        raise UsageError(
            f"{shown(url)} cannot be opened: {error}.", "Use sqlite:///FILE or postgresql://USER@HOST/NAME."
        ) from error
    if sqlite:
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: Any, _record: object) -> None:
    # The driver must not begin transactions by itself: it would begin them as readers, and a reader that
    # turns writer fails at once instead of waiting for its turn.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    # A committed measurement cost GPU time: it must also survive a power cut.
    connection.execute("PRAGMA synchronous = FULL")


def _on_sqlite_begin(connection: Connection) -> None:
    read_only = connection.get_execution_options().get("autotune_read_only", False)
    connection.exec_driver_sql(f"PRAGMA query_only = {'ON' if read_only else 'OFF'}")
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _use_write_ahead_log(engine: Engine) -> None:
    """Switch the file to WAL, where readers and a writer do not wait for each other. It stays so."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    connection = engine.raw_connection()
    try:
        while True:
            try:
                connection.cursor().execute("PRAGMA journal_mode = WAL")
                return
            except Exception as error:
                # SQLite does not apply busy_timeout to this switch.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise exc.OperationalError("PRAGMA journal_mode = WAL", None, error) from error
                time.sleep(0.05)
    finally:
        connection.close()
