"""Errors as RFC 9457 problem details: `application/problem+json` with title, status, detail and hint."""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from autotune.server.texts import over_http, shortened
from autotune.vocabulary.errors import (
    AutotuneError,
    DatabaseError,
    ShapeError,
    UnauthorizedError,
    UnknownNameError,
)

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"


def problem(
    status: int, title: str, detail: str, hint: str = "", headers: dict[str, str] | None = None, **extra: Any
) -> Response:
    """One problem details answer; `type` is about:blank, so `title` says what it is."""
    body: dict[str, Any] = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    if hint:
        body["hint"] = hint
    # Positions and grammars are members of their own, so that a program need not read the sentence.
    text = json.dumps({**body, **extra}, ensure_ascii=True)
    return Response(text, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def of_error(error: AutotuneError) -> Response:
    """The answer to an error that was raised on purpose."""
    extra: dict[str, Any] = {}
    headers: dict[str, str] = {}
    message = error.message
    if isinstance(error, ShapeError):
        extra = {"position": error.position, "grammar": error.grammar}
        message = message.replace(repr(error.text), repr(shortened(error.text)))
    elif isinstance(error, UnknownNameError):
        extra = {"known": list(error.known), "nearest": error.nearest}
        message = message.replace(repr(error.name), repr(shortened(error.name)))
    elif isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = 'Bearer realm="moe-autotune"'
    elif isinstance(error, DatabaseError):
        headers["Retry-After"] = "5"
    return problem(
        error.http_status, error.title, over_http(message), over_http(error.hint), headers, **extra
    )


def install(app: FastAPI) -> None:
    """Answer every error of the app as a problem."""

    @app.exception_handler(AutotuneError)
    async def on_purpose(request: Request, error: AutotuneError) -> Response:
        if error.http_status >= 500:
            log.error("%s %s: %s", request.method, request.url.path, error)
        return of_error(error)

    @app.exception_handler(HTTPException)
    async def of_framework(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if headers.get("Allow") == "GET":
            headers["Allow"] = "GET, HEAD"
        hints = {404: "GET / lists what there is.", 405: f"Allowed: {headers.get('Allow', '')}."}
        return problem(
            error.status_code,
            str(error.detail),
            f"{shortened(request.method)} {shortened(request.url.path)}: {error.detail}.",
            hints.get(error.status_code, ""),
            headers,
        )

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        # No fault of the service; the answer is for the access log and the counters, nobody reads it.
        log.info("%s %s: the client left before its body was whole", request.method, request.url.path)
        return problem(400, "Body cut off", "The client left before the body was whole.", "Send it again.")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(
            500,
            "Internal error",
            "The service failed on this request.",
            "Its log has the details; report it.",
        )
