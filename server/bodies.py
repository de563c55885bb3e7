"""Request bodies: read into a model, with errors that say where."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from autotune.vocabulary.errors import UsageError

M = TypeVar("M", bound=BaseModel)


class MalformedBodyError(UsageError):
    """The body is JSON but not what the call takes."""

    http_status = 422
    title = "Malformed body"


async def json_body(request: Request) -> Any:
    """The body as plain data. A dependency, since only the event loop may read a body.

    Raises:
        UsageError: if it is no JSON.
    """
    body = await request.body()
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The body is no JSON: {error}.", "Send application/json in UTF-8.") from error


def read_model(model: type[M], data: Any, where: str = "") -> M:
    """Validate plain data.

    Args:
        where: what to put before the place of an error, such as `measurements.3`.

    Raises:
        MalformedBodyError: naming the first place that does not fit.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (where, *first["loc"]) if str(part))
        raise MalformedBodyError(
            f"{place or 'The body'}: {first['msg']} ({error.error_count()} errors in all).",
            "Nothing was stored; correct it and send all of it again.",
        ) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
