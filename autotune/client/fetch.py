"""One GET under a total time limit: name look-up, connecting and slow bodies included."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.client.unpack import ACCEPTED, Body, UnpackError

if TYPE_CHECKING:
    import httpx

BODY_LIMIT = 32 * 1024 * 1024
"""Bytes of an answer, unpacked; a GPU's tables take about 50 kB each."""
_MOST_REDIRECTS = 20


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

    address = httpx.URL(url)
    # Kept out of the URL, which httpx logs.
    auth = (address.username, address.password) if address.userinfo else None
    address = address.copy_with(userinfo=b"")
    with _client(max(0.05, deadline - time.monotonic()), auth) as client:
        request = client.build_request(
            "GET", address, params=params, headers={"Accept-Encoding": ACCEPTED, **headers}
        )
        response = client.send(request, stream=True)
        # Not by httpx, which reads the body of each redirect whole, however large it unpacks.
        for _ in range(_MOST_REDIRECTS):
            if response.next_request is None:
                break
            response.close()
            if time.monotonic() > deadline:
                raise UnreachableError("the answer came too slowly")
            # What may be sent to the next address is in its headers; a password in that address is not used.
            response = client.send(response.next_request, stream=True, auth=httpx.Auth())
        with contextlib.closing(response):
            if response.next_request is not None:
                raise UnreachableError(f"it redirects more than {_MOST_REDIRECTS} times")
            return Answer(response.status_code, _body(response, deadline), response.headers.get("etag"))


@contextlib.contextmanager
def _client(timeout_s: float, auth: tuple[str, str] | None) -> Iterator[httpx.Client]:
    import httpx

    try:
        client = httpx.Client(timeout=timeout_s, auth=auth)
    except OSError as error:
        # Certificates are read here, also for http://; neither Python nor httpx says which.
        for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            if given := os.environ.get(name):
                raise UnreachableError(f"{name}={given} cannot be used: {error}") from error
        raise
    with client:
        yield client


def _body(response: httpx.Response, deadline: float) -> bytes:
    try:
        body = Body(response.headers.get("content-encoding", ""), BODY_LIMIT)
    except UnpackError as error:
        if response.status_code == 200:
            raise UnreachableError(f"the answer {error}") from error
        return b""  # the status says enough
    try:
        for chunk in response.iter_raw(64 * 1024):
            body.add(chunk)
            if time.monotonic() > deadline:
                raise UnreachableError("the answer came too slowly")
        return body.content()
    except UnpackError as error:
        raise UnreachableError(f"the answer {error}") from error


def _reason(error: BaseException | None) -> str:
    if isinstance(error, UnreachableError):
        return str(error)
    return f"{type(error).__name__}: {error}" if error is not None and str(error) else type(error).__name__
