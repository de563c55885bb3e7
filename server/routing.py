"""GET /routing, /routing/table and /routing/tables."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from autotune.db.revisions import RevisionRepository
from autotune.server.etags import tagged_json
from autotune.server.parameters import documented, parameters
from autotune.server.queries import GpuParameters, RoutingParameters, TableParameters, build_query
from autotune.server.state import Shared, State
from autotune.server.texts import over_http
from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.decide import decide, select_table
from autotune.vocabulary.environment import gpu_name
from autotune.vocabulary.errors import NotFoundError
from autotune.vocabulary.table import Decision, Miss, PublishedTable
from autotune.vocabulary.wire import encode_tables

router = APIRouter(tags=["routing"])


@router.get("/routing", response_model=Decision, openapi_extra=documented(RoutingParameters))
def routing(
    request: Request,
    asked: Annotated[RoutingParameters, Depends(parameters(RoutingParameters))],
    shared: Shared,
) -> Response:
    """Answer one look-up. A miss is an answer too: `fallback` with its reason, status 200."""
    tables = shared.source.tables(None, asked.channel)
    query = build_query(asked, tables)
    decision = decide(tables, query, asked.tokens, source=f"service, channel {asked.channel}")
    if decision.reason is Miss.UNKNOWN_PROBLEM and not tables:
        decision = decision.model_copy(update={"detail": _nothing_published(shared, asked.channel)})
    decision = decision.model_copy(update={"detail": over_http(decision.detail)})
    shared.metrics.decided(decision)
    body = decision.model_dump(mode="json")
    return tagged_json(request, body, content_digest(body))


@router.get("/routing/table", openapi_extra=documented(TableParameters))
def routing_table(
    request: Request,
    asked: Annotated[TableParameters, Depends(parameters(TableParameters))],
    shared: Shared,
) -> Response:
    """The table that answers a problem, as `autotune publish` takes it; its digest is the ETag."""
    tables = shared.source.tables(None, asked.channel)
    selection = select_table(tables, build_query(asked, tables))
    table, published = selection.table, selection.published
    if table is None or published is None:
        detail = selection.detail if tables else _nothing_published(shared, asked.channel)
        raise NotFoundError(detail, "GET /routing/tables lists what there is.")
    numbered = {} if published.revision is None else {"X-Autotune-Revision": str(published.revision)}
    headers = {
        **numbered,
        "X-Autotune-Channel": asked.channel,
        "X-Autotune-Inferred": str(selection.inferred).lower(),
    }
    return tagged_json(request, table.to_json_data(), table.digest, headers)


@router.get("/routing/tables", openapi_extra=documented(GpuParameters))
def routing_tables(
    request: Request, asked: Annotated[GpuParameters, Depends(parameters(GpuParameters))], shared: Shared
) -> Response:
    """All current tables of a channel, for one GPU or all; `digest` covers the list and is the ETag."""
    gpu = gpu_name(asked.gpu) if asked.gpu else None
    tables: list[PublishedTable] = shared.source.tables(gpu, asked.channel)
    body = encode_tables(tables)
    return tagged_json(request, body, body["digest"])


def _nothing_published(shared: State, channel: str) -> str:
    with shared.database.read() as session:
        repository = RevisionRepository(session)
        channels, revisions = repository.channels(), repository.count()
    if not channels and revisions:
        return "No channel points at a revision any more. `autotune rollback --to N` puts one back."
    if not channels:
        return "Nothing is published here yet. Publish a table with `autotune publish`."
    return f"Channel {channel!r} has no tables; there are: {', '.join(channels)}."
