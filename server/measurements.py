"""POST /measurements: evidence from sweeps on other machines."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from autotune.db.measurements import MeasurementRepository
from autotune.server.bodies import MalformedBodyError, json_body, read_model
from autotune.server.state import Shared, requires
from autotune.vocabulary.measurement import Measurement

router = APIRouter(tags=["measurements"])


class MeasurementBatch(BaseModel):
    """Body of POST /measurements."""

    model_config = ConfigDict(extra="forbid")

    # Validated one by one, so that an error can say which one it is.
    measurements: list[dict[str, Any]] = Field(min_length=1)


class Stored(BaseModel):
    """How many were new, and how many were there already."""

    new: int
    known: int


@router.post("/measurements", dependencies=[Depends(requires("measure"))])
def post_measurements(body: Annotated[Any, Depends(json_body)], shared: Shared) -> Stored:
    """Append measurements, all or none. Sending the same ones again stores nothing twice."""
    batch = read_model(MeasurementBatch, body).measurements
    if len(batch) > shared.settings.batch_limit:
        raise MalformedBodyError(
            f"{len(batch)} measurements are more than {shared.settings.batch_limit}.",
            "Send them in several requests.",
        )
    read = [read_model(Measurement, item, f"measurements.{i}") for i, item in enumerate(batch)]
    with shared.database.write() as session:
        new = MeasurementRepository(session).add_all(read)
    shared.metrics.measurements.labels("new").inc(new)
    shared.metrics.measurements.labels("known").inc(len(read) - new)
    return Stored(new=new, known=len(read) - new)
