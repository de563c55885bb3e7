"""The service: one FastAPI application over one database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI

from autotune import __version__
from autotune.db.engine import Database, open_database
from autotune.db.source import DatabaseSource
from autotune.server import dashboard, health, measurements, problems, revisions, routing, telemetry
from autotune.server.head import Head
from autotune.server.limits import BodyLimit
from autotune.server.metrics import Metrics, Observed
from autotune.server.settings import ServerSettings
from autotune.server.starters import WithStarters
from autotune.server.state import State
from autotune.vocabulary.table import PublishedTable


def create_app(
    database: Database | str,
    settings: ServerSettings | None = None,
    starters: Sequence[PublishedTable] = (),
) -> FastAPI:
    """Build the application.

    Args:
        database: an open database, which the caller closes, or a URL, which is opened now (and upgraded
            if it is older) and closed when the application shuts down.
        settings: default: read from the process environment.
        starters: tables that answer for layers of which the database says nothing.

    Raises:
        DatabaseError: if the URL cannot be opened.
        UsageError: if AUTOTUNE_TOKENS does not parse.
    """
    settings = settings or ServerSettings.from_env()
    owned = isinstance(database, str)
    opened = open_database(database) if isinstance(database, str) else database
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if owned:
            opened.close()

    app = FastAPI(
        title="moe-autotune",
        version=__version__,
        summary="Which kernel runs a fused MoE layer fastest, per GPU and token count.",
        lifespan=lifespan,
        # Their pages load scripts from a CDN; the description itself is at /openapi.json.
        docs_url=None,
        redoc_url=None,
    )
    app.state.autotune = State(opened, WithStarters(DatabaseSource(opened), starters), metrics, settings)
    problems.install(app)
    for part in (routing, measurements, revisions, telemetry, health, dashboard):
        app.include_router(part.router)
    app.add_middleware(BodyLimit, limit=settings.body_limit)
    app.add_middleware(Head)
    app.add_middleware(Observed, metrics=metrics)
    return app
