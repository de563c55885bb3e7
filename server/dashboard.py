"""GET /: what is published, as one page without scripts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from autotune import __version__
from autotune.db.measurements import MeasurementRepository
from autotune.db.revisions import RevisionRepository
from autotune.server.chart import Chart, draw
from autotune.server.parameters import documented, parameters
from autotune.server.queries import GpuParameters
from autotune.server.state import Shared
from autotune.vocabulary.environment import gpu_name
from autotune.vocabulary.table import PublishedTable

router = APIRouter(tags=["dashboard"])
REVISIONS_SHOWN = 30
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


@router.get("/", openapi_extra=documented(GpuParameters))
def dashboard(
    asked: Annotated[GpuParameters, Depends(parameters(GpuParameters))], shared: Shared
) -> Response:
    """Current tables with a chart each, and the newest revisions."""
    gpu = gpu_name(asked.gpu) if asked.gpu else None
    tables = shared.source.tables(gpu, asked.channel)
    with shared.database.read() as session:
        repository = RevisionRepository(session)
        revisions = repository.newest(gpu=gpu, limit=REVISIONS_SHOWN)
        channels = repository.channels()
        measurements = MeasurementRepository(session).count()
        total = repository.count()
    page = _template().render(
        version=__version__,
        channel=asked.channel,
        gpu=gpu,
        channels=channels,
        tables=[(published, _chart(published)) for published in tables],
        revisions=revisions,
        total=total,
        measurements=measurements,
    )
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


def _chart(published: PublishedTable) -> Chart | None:
    return draw(published.table) if published.table is not None else None


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template() -> Template:
    return _environment().get_template("dashboard.html")
