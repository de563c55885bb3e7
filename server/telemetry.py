"""POST /telemetry: what serving processes looked up, as counts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator

from autotune.db.telemetry import TelemetryCount, TelemetryRepository
from autotune.server.bodies import MalformedBodyError, json_body, read_model
from autotune.server.state import Shared, requires
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import Kept, Miss

router = APIRouter(tags=["telemetry"])
_MOST = 2**53


class Count(BaseModel):
    """How often one answer was given since the last report."""

    model_config = ConfigDict(extra="forbid")

    problem: Problem
    tokens: int = Field(gt=0, le=_MOST)
    answer: Literal["route", "fallback"]
    reason: Miss | Kept | None = None
    revision: int | None = Field(default=None, ge=1, le=_MOST)
    count: int = Field(gt=0, le=_MOST)


class Report(BaseModel):
    """Body of POST /telemetry."""

    model_config = ConfigDict(extra="forbid")

    instance: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$", description="who reports")
    gpu: str = Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]+$")
    counts: list[Count]
    compiled: int = Field(
        default=0, ge=0, le=_MOST, description="Triton variants compiled after ready since the last report"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Report:
        if not self.counts and not self.compiled:
            raise ValueError("nothing is counted: counts is empty and compiled is 0")
        return self


@router.post("/telemetry", dependencies=[Depends(requires("telemetry"))], status_code=202)
def post_telemetry(body: Annotated[Any, Depends(json_body)], shared: Shared) -> dict[str, int]:
    """Add one report's counts."""
    report = read_model(Report, body)
    if len(report.counts) > shared.settings.batch_limit:
        raise MalformedBodyError(
            f"{len(report.counts)} counts are more than {shared.settings.batch_limit}.",
            "Send them in several requests.",
        )
    rows = [
        TelemetryCount(
            problem=str(c.problem),
            tokens=c.tokens,
            answer=c.answer,
            reason=c.reason.value if c.reason else "",
            revision=c.revision,
            count=c.count,
        )
        for c in report.counts
    ]
    with shared.database.write() as session:
        TelemetryRepository(session).add(report.instance, report.gpu, rows)
    for row in rows:
        shared.metrics.telemetry.labels(row.answer, row.reason).inc(row.count)
    shared.metrics.compiled.inc(report.compiled)
    return {"stored": len(rows)}
