"""One GET under a total time limit: name look-up, connecting and slow bodies included."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

BODY_LIMIT = 32 * 1024 * 1024
"""Bytes of an answer, decompressed; a GPU's tables take about 50 kB each."""


class UnreachableError(Exception):
    """No usable answer came; the message says why."""


@dataclass(frozen=True)
class Answer:
    """What the service answered."""

    status: int
    body: bytes
    etag: str | None


@dataclass
class _Box:
    answer: Answer | None = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


def get(url: str, params: dict[str, str], headers: dict[str, str], timeout_s: float) -> Answer:
    """Fetch a URL within `timeout_s` seconds in all.

    The request runs in a thread that is left behind when the time is over, since neither a name look-up
    nor a trickle of single bytes can be interrupted from outside.

    Raises:
        UnreachableError: for every failure to get a complete answer in time.
    """
    box = _Box()
    deadline = time.monotonic() + timeout_s
    threading.Thread(
        target=_run, args=(box, url, params, headers, deadline), name="autotune-fetch", daemon=True
    ).start()
    if not box.done.wait(max(0.0, deadline - time.monotonic())):
        raise UnreachableError(f"no complete answer within {timeout_s:g} s")
    if box.answer is None:
        raise UnreachableError(_reason(box.error))
    return box.answer


def _run(box: _Box, url: str, params: dict[str, str], headers: dict[str, str], deadline: float) -> None:
    try:
        box.answer = _request(url, params, headers, deadline)
    except BaseException as error:
        # Carried to the waiting thread: nobody reads a traceback of this one.
        box.error = error
    finally:
        box.done.set()


def _request(url: str, params: dict[str, str], headers: dict[str, str], deadline: float) -> Answer:
    import httpx

    left = max(0.05, deadline - time.monotonic())
    address = httpx.URL(url)
    # Kept out of the URL, which httpx logs.
    auth = (address.username, address.password) if address.userinfo else None
    address = address.copy_with(userinfo=b"")
    with (
        httpx.Client(timeout=left, follow_redirects=True, auth=auth) as client,
        client.stream("GET", address, params=params, headers=headers) as response,
    ):
        body = bytearray()
        for chunk in response.iter_bytes(64 * 1024):
            body += chunk
            if len(body) > BODY_LIMIT:
                raise UnreachableError(f"the answer exceeds {BODY_LIMIT // 2**20} MiB")
            if time.monotonic() > deadline:
                raise UnreachableError("the answer came too slowly")
        return Answer(response.status_code, bytes(body), response.headers.get("etag"))


def _reason(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if error is not None and str(error) else type(error).__name__
