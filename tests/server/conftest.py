"""A service over a fresh SQLite database, spoken to in process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from autotune.db.engine import Database, open_database
from autotune.publish import Publication, publish
from autotune.server.app import create_app
from autotune.server.settings import ServerSettings
from autotune.server.tokens import read_tokens
from autotune.vocabulary.table import RoutingTable

TOKENS = "measure-token-0123:measure,publish-token-0123:publish,all-token-01234567:measure+publish+telemetry"
Put = Callable[..., Publication]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(f"sqlite:///{tmp_path / 'service.db'}") as opened:
        yield opened


@pytest.fixture
def client(database: Database) -> Iterator[TestClient]:
    settings = ServerSettings(tokens=read_tokens(TOKENS), body_limit=300_000, batch_limit=50)
    with TestClient(create_app(database, settings), raise_server_exceptions=False) as opened:
        yield opened


@pytest.fixture
def put(database: Database) -> Put:
    """Publish a table without going over HTTP."""

    def publish_table(table: RoutingTable, channel: str = "stable", none: bool = False) -> Publication:
        with database.write() as session:
            return publish(
                session, None if none else table, problem=table.problem, environment=table.environment,
                checkpoint=table.checkpoint, author="tester", reason="a test", channel=channel,
            )  # fmt: skip

    return publish_table


def bearer(token: str = "all-token-01234567") -> dict[str, str]:
    """The header of a caller with a token."""
    return {"Authorization": f"Bearer {token}"}
