"""GET /healthz, /readyz and /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from autotune import __version__
from autotune.server.state import Shared

router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process runs. Touches nothing else, so that a lost database does not restart the service."""
    return {"status": "ok", "version": __version__}


@router.get("/readyz")
def readyz(shared: Shared) -> dict[str, str]:
    """The database answers and has this release's schema; a 503 problem otherwise."""
    shared.database.check()
    return {"status": "ready"}


@router.get("/metrics")
async def metrics(shared: Shared) -> Response:
    """Prometheus' text format."""
    return Response(shared.metrics.text(), media_type=CONTENT_TYPE_LATEST)
