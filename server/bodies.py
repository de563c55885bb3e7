"""Request bodies: read into a model, with errors that say where."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from autotune.db.strict_json import UnstorableError, read_json
from autotune.server.texts import shortened
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
        MalformedBodyError: if it holds a value that cannot be stored.
    """
    body = await request.body()
    try:
        return read_json(body)
    except UnstorableError as error:
        raise MalformedBodyError(
            f"The body cannot be stored: {error}.", "Nothing was stored; correct it and send all of it again."
        ) from error
    except ValueError as error:
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
        place = ".".join(shortened(str(part)) for part in (where, *first["loc"]) if str(part))
        message = shortened(first["msg"], 500)
        raise MalformedBodyError(
            f"{shortened(place) or 'The body'}: {message} ({error.error_count()} errors in all).",
            "Nothing was stored; correct it and send all of it again.",
        ) from error
