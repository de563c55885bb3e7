"""POST /measurements: evidence from sweeps on other machines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from autotune.db.measurements import MeasurementRepository
from autotune.server.bodies import MalformedBodyError, json_body, read_model
from autotune.server.state import Shared, requires
from autotune.vocabulary.measurement import Measurement

AHEAD = timedelta(days=1)
"""By how much a sender's clock may be ahead of ours."""
_HINT = "Nothing was stored; correct it and send all of it again."
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
    read = [_measurement(item, f"measurements.{i}") for i, item in enumerate(batch)]
    with shared.database.write() as session:
        new = MeasurementRepository(session).add_all(read)
    shared.metrics.measurements.labels("new").inc(new)
    shared.metrics.measurements.labels("known").inc(len(read) - new)
    return Stored(new=new, known=len(read) - new)


def _measurement(item: dict[str, Any], where: str) -> Measurement:
    measurement = read_model(Measurement, item, where)
    if measurement.recorded_at > datetime.now(UTC) + AHEAD:
        raise MalformedBodyError(
            f"{where}.recorded_at: {measurement.recorded_at.isoformat()} lies in the future.",
            f"Set the sender's clock. {_HINT}",
        )
    try:
        measurement.digest  # noqa: B018
        measurement.recorded_at.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        # A text such as "1e999" is a number too large that no JSON parser sees as one.
        raise MalformedBodyError(f"{where}: it cannot be stored: {error}.", _HINT) from error
    return measurement
