"""HEAD wherever there is GET: the same answer without its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Head:
    """ASGI middleware that answers HEAD as GET and keeps the body back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        # A scope of its own: the server looks at the first one's method to frame the answer.
        inner = {**scope, "method": "GET"}
        try:
            await self._app(inner, receive, without_body)
        finally:
            if "route" in inner:
                scope["route"] = inner["route"]
