"""Revisions over HTTP: list, publish, activate, withdraw, compare."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from autotune import publish as publishing
from autotune.db.revisions import Revision, RevisionRepository
from autotune.server.bodies import MalformedBodyError, json_body, read_model
from autotune.server.parameters import documented, parameters
from autotune.server.queries import GpuName, Whole
from autotune.server.state import Shared, requires
from autotune.vocabulary.environment import Environment, gpu_name
from autotune.vocabulary.errors import UsageError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import RoutingTable

router = APIRouter(tags=["revisions"])
Number = Annotated[str, Path(description="a revision's number")]


class ListParameters(BaseModel):
    """Parameters of GET /revisions."""

    gpu: GpuName | None = None
    shape: str | None = None
    limit: Whole = 100


class Publish(BaseModel):
    """Body of POST /revisions: a table, or null with what it is for."""

    model_config = ConfigDict(extra="forbid")

    table: dict[str, Any] | None
    problem: Problem | None = Field(default=None, description="needed if the table is null")
    environment: Environment | None = Field(default=None, description="needed if the table is null")
    checkpoint: Checkpoint | None = Field(default=None, description="needed if the table is null")
    author: str
    reason: str
    channel: str = "stable"


class Activate(BaseModel):
    """Body of POST /revisions/{number}/activate and /revisions/{number}/withdraw."""

    model_config = ConfigDict(extra="forbid")

    author: str
    reason: str
    channel: str = "stable"


class Published(BaseModel):
    """The revision, and whether the channel moved."""

    revision: Revision
    channel: str
    changed: bool
    previous: int | None
    mended: bool = Field(description="the channel pointed at it already, but what was stored was damaged")


class Withdrawn(BaseModel):
    """A channel that points at no revision any more, or did not before (`changed` is false then)."""

    revision: None = None
    channel: str
    changed: bool
    previous: int | None


@router.get("/revisions", openapi_extra=documented(ListParameters))
def list_revisions(
    asked: Annotated[ListParameters, Depends(parameters(ListParameters))], shared: Shared
) -> dict[str, list[Revision]]:
    """Published revisions, newest first, with the channels that point at each."""
    gpu = gpu_name(asked.gpu) if asked.gpu else None
    problem = Problem.parse(asked.shape) if asked.shape else None
    with shared.database.read() as session:
        return {"revisions": publishing.revisions(session, gpu=gpu, problem=problem, limit=asked.limit)}


@router.post(
    "/revisions",
    dependencies=[Depends(requires("publish"))],
    response_model=Published,
    status_code=201,
)
def post_revision(body: Annotated[Any, Depends(json_body)], shared: Shared, response: Response) -> Published:
    """Publish a table or "none". 201 with a new revision; 200 if the channel points at this table already."""
    asked = read_model(Publish, body)
    table = _table(asked.table) if asked.table is not None else None
    problem = asked.problem or (table.problem if table else None)
    environment = asked.environment or (table.environment if table else None)
    checkpoint = asked.checkpoint or (table.checkpoint if table else None)
    if problem is None or environment is None or checkpoint is None:
        raise MalformedBodyError(
            'Publishing "none" needs problem, environment and checkpoint.',
            "Say for what nothing is to be applied.",
        )
    with shared.database.write() as session:
        done = publishing.publish(
            session, table, problem=problem, environment=environment, checkpoint=checkpoint,
            author=asked.author, reason=asked.reason, channel=asked.channel,
        )  # fmt: skip
    if not done.changed:
        response.status_code = 200
    response.headers["Location"] = f"/revisions/{done.revision.number}"
    return _published(done)


@router.post("/revisions/{number}/activate", dependencies=[Depends(requires("publish"))])
def activate_revision(number: Number, body: Annotated[Any, Depends(json_body)], shared: Shared) -> Published:
    """Point a channel of the revision's problem and environment at it; this is how one rolls back."""
    asked = read_model(Activate, body)
    with shared.database.write() as session:
        done = publishing.activate(
            session, _number(number), author=asked.author, reason=asked.reason, channel=asked.channel
        )
    return _published(done)


@router.post("/revisions/{number}/withdraw", dependencies=[Depends(requires("publish"))])
def withdraw_revision(number: Number, body: Annotated[Any, Depends(json_body)], shared: Shared) -> Withdrawn:
    """Take a channel that points at the revision back to before its first one; 409 if it points elsewhere."""
    asked = read_model(Activate, body)
    with shared.database.write() as session:
        done = publishing.withdraw(
            session, _number(number), author=asked.author, reason=asked.reason, channel=asked.channel
        )
    previous = None if done is None else done.previous.number
    return Withdrawn(channel=asked.channel, changed=done is not None, previous=previous)


@router.get("/revisions/{number}")
def one_revision(number: Number, shared: Shared) -> Response:
    """One revision with its table, or null for "none"."""
    with shared.database.read() as session:
        repository = RevisionRepository(session)
        revision = repository.get(_number(number))
        table = repository.table(revision)
    data = {**revision.model_dump(mode="json"), "table": table.to_json_data() if table else None}
    return Response(json.dumps(data, ensure_ascii=False), media_type="application/json")


@router.get("/revisions/{before}/diff/{after}")
def diff_revisions(before: Number, after: Number, shared: Shared) -> dict[str, Any]:
    """What another revision runs instead, range by range of token counts."""
    with shared.database.read() as session:
        repository = RevisionRepository(session)
        old, new = (repository.get(_number(number)) for number in (before, after))
        publishing.check_comparable(old, new)
        rows = publishing.diff(repository.table(old), repository.table(new))
    return {"before": old.number, "after": new.number, "rows": rows}


def _table(data: dict[str, Any]) -> RoutingTable:
    try:
        return RoutingTable.from_json_data(data)
    except (ValueError, OverflowError) as error:
        # A text such as "1e999" is a number too large that no JSON parser sees as one.
        raise MalformedBodyError(
            f"The table cannot be stored: {error}.", "Nothing was stored; send one that was not changed."
        ) from error


def _published(done: publishing.Publication) -> Published:
    return Published(
        revision=done.revision,
        channel=done.channel,
        changed=done.changed,
        previous=done.previous,
        mended=done.mended,
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise UsageError(f"{text[:40]!r} is no revision number.", "GET /revisions lists them.")
    return int(text)
