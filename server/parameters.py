"""Query parameters: read into a model, with errors that name the parameter and the known ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from autotune.vocabulary.errors import UnknownNameError, UsageError

M = TypeVar("M", bound=BaseModel)


def parameters(model: type[M]) -> Callable[[Request], M]:
    """A dependency that reads the query string into `model`.

    Raises (the dependency):
        UnknownNameError: for a parameter that the model does not have.
        UsageError: for one that is missing, given twice or does not fit.
    """
    known = list(model.model_fields)

    def read(request: Request) -> M:
        values: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name not in known:
                raise UnknownNameError("parameter", name[:100], known)
            if name in values:
                raise UsageError(f"Parameter {name} is given twice.", "Give it once.")
            if "\x00" in value:
                raise UsageError(f"Parameter {name} contains a NUL character.", "Leave it out.")
            values[name] = value
        try:
            return model.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else "query"
            if first["type"] == "missing":
                required = [key for key, field in model.model_fields.items() if field.is_required()]
                raise UsageError(
                    f"Parameter {name} is missing.",
                    f"Required: {', '.join(required)}. Known: {', '.join(known)}.",
                ) from error
            message = str(first["msg"]).removeprefix("Value error, ")
            raise UsageError(
                f"Parameter {name}: {message} (got {values.get(name, '')[:100]!r}).",
                f"Known parameters: {', '.join(known)}.",
            ) from error

    return read


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` that lists the model's fields as query parameters."""
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    return {
        "parameters": [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": field.pop("description", ""),
                "schema": field,
            }
            for name, field in schema["properties"].items()
        ]
    }
