"""Entity tags: a body named by its digest need not be sent again."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request, Response


def tagged_json(request: Request, body: Any, digest: str, headers: dict[str, str] | None = None) -> Response:
    """JSON with its digest as ETag; 304 without a body to a client that has it already."""
    tag = f'"{digest}"'
    # Clients ask again each time, which costs little, and never act on an old table unknowingly.
    sent = {"ETag": tag, "Cache-Control": "no-cache", **(headers or {})}
    if _matches(request.headers.getlist("if-none-match"), tag):
        return Response(status_code=304, headers=sent)
    return Response(json.dumps(body, ensure_ascii=False), media_type="application/json", headers=sent)


def _matches(headers: list[str], tag: str) -> bool:
    listed = [item.strip().removeprefix("W/") for header in headers for item in header.split(",")]
    return tag in listed or "*" in listed
