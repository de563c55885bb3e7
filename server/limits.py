"""A limit on request bodies, whether or not they announce their length."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.server.problems import problem


class _TooLargeError(Exception):
    pass


class BodyLimit:
    """ASGI middleware: answers 413 to a body of more than `limit` bytes, without reading all of it."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            await self._refuse(scope, receive, send)
            return
        received = 0
        started = False

        async def counting() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise _TooLargeError
            return message

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, counting, noting)
        except _TooLargeError:
            if started:
                raise
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = problem(
            413,
            "Body too large",
            f"The body has more than {self._limit} bytes.",
            "Send it in several requests.",
            {"Connection": "close"},
        )
        await answer(scope, receive, send)
