"""Sends counts to the service (`POST /telemetry`), from a thread that serving never waits for."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter

from autotune.client.addresses import address_fault, masked, shown
from autotune.vllm_plugin.log import info_once, warn_once
from autotune.vllm_plugin.served import Served
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.settings import Settings

SEND_S = 30.0
"""Seconds between two reports."""
CLOSE_S = 1.0
"""Seconds that the end of the process waits for the last one."""
MOST = 1000
"""Different counts kept until they are sent, and in one report; a service takes 2,000."""

Key = tuple[Problem, int, str, str, int | None]


class NotSentError(Exception):
    """A report did not arrive; the message says why.

    Args:
        again: it was surely not stored, so it may be sent again.
    """

    def __init__(self, message: str, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


class Sender:
    """Adds counts up and reports them now and then. What cannot be kept or sent is dropped and counted.

    Args:
        url: the service, as in `AUTOTUNE_URL`.
        token: bearer token with the scope `telemetry`; None sends none.
        instance: who reports.
        timeout_s: for one report, seconds.
        every_s: between two reports, seconds.
    """

    def __init__(
        self, url: str, token: str | None, instance: str, gpu: str, timeout_s: float, every_s: float = SEND_S
    ) -> None:
        self.url = url
        self.instance = instance
        self.gpu = gpu
        self.sent = 0
        self.dropped = 0
        """Steps that are in no report, or in one that may not have arrived."""
        self._token = token
        self._timeout_s = timeout_s
        self._every_s = every_s
        self._waiting: Counter[Key] = Counter()
        self._compiled = 0
        self._in_flight = 0
        self._complained = False
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autotune-telemetry", daemon=True)
        self._thread.start()

    def add(self, problem: str, tokens: int, served: Served, revision: int | None, count: int) -> None:
        """Count steps, except those that the service has no words for.

        These are a layer that is no problem of the vocabulary, and an unknown answer.
        """
        if served.answer == "unknown" or not problem.startswith("E="):
            return
        reason = served.reason if served.answer == "fallback" else ""
        key = (Problem.parse(problem), tokens, served.answer, reason, revision)
        with self._lock:
            if key in self._waiting or len(self._waiting) < MOST:
                self._waiting[key] += count
            else:
                self.dropped += count

    def add_compiled(self, count: int) -> None:
        """Count Triton variants that a worker compiled after it was ready."""
        with self._lock:
            self._compiled += count

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Send what is left, within `wait_s` seconds; log what was dropped."""
        self._stopping.set()
        self._thread.join(wait_s)
        left = self.dropped + self._waiting.total() + (self._in_flight if self._thread.is_alive() else 0)
        if left:
            info_once(f"telemetry: {left} steps were not reported to {shown(self.url)}, {self.sent} were")

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._report()
        self._report()

    def _report(self) -> None:
        with self._lock:
            counts, self._waiting = self._waiting, Counter()
            compiled, self._compiled = self._compiled, 0
            self._in_flight = counts.total()
        if not counts and not compiled:
            return
        again = False
        try:
            self._post(counts, compiled)
        except NotSentError as error:
            again = error.again
            self._complain(str(error))
        except Exception as error:
            # In a thread that nobody watches.
            self._complain(f"{type(error).__name__}: {error}")
        else:
            self.sent += self._in_flight
            self._in_flight = 0
            return
        with self._lock:
            self._in_flight = 0
            self._compiled += compiled if again else 0
            for key, count in counts.items():
                if again and (key in self._waiting or len(self._waiting) < MOST):
                    self._waiting[key] += count
                else:
                    self.dropped += count

    def _complain(self, reason: str) -> None:
        if not self._complained:
            self._complained = True
            reason = masked(reason, self.url)
            warn_once(f"telemetry does not reach {shown(self.url)} (said once): {reason}")

    def _post(self, counts: Counter[Key], compiled: int) -> None:
        import httpx

        body = {
            "instance": self.instance,
            "gpu": self.gpu,
            # Left out where it says nothing: a service of before would refuse the report for it.
            **({"compiled": compiled} if compiled else {}),
            "counts": [
                {
                    "problem": problem.model_dump(mode="json"), "tokens": tokens, "answer": answer,
                    "reason": reason or None, "revision": revision, "count": count,
                }
                for (problem, tokens, answer, reason, revision), count in counts.items()
            ],
        }  # fmt: skip
        address = httpx.URL(f"{self.url.rstrip('/')}/telemetry")
        auth = (address.username, address.password) if address.userinfo and not self._token else None
        address = address.copy_with(userinfo=b"")
        # What is read of the answer goes into the log at most: as it comes, so that nothing is unpacked.
        headers = {"accept-encoding": "identity"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        deadline = time.monotonic() + self._timeout_s
        try:
            with (
                httpx.Client(timeout=self._timeout_s, auth=auth) as client,
                client.stream("POST", address, json=body, headers=headers) as response,
            ):
                status, text = response.status_code, b""
                for chunk in response.iter_raw():
                    text += chunk
                    if len(text) > 4096 or time.monotonic() > deadline:
                        break
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotSentError(f"{type(error).__name__}: {error}", again=True) from error
        except httpx.HTTPError as error:
            raise NotSentError(f"{type(error).__name__}: {error}") from error
        if status != 202:
            raise NotSentError(f"HTTP {status}: {text[:300].decode(errors='replace')}", again=status == 503)


def make_sender(settings: Settings, gpu: str | None) -> tuple[Sender | None, str]:
    """The sender of this process, or None and why there is none."""
    if settings.url is None:
        return None, "AUTOTUNE_TELEMETRY is 1, but AUTOTUNE_URL names no service"
    fault = address_fault(settings.url)
    if fault or not gpu:
        return None, f"AUTOTUNE_URL {fault}" if fault else "the GPU has no name"
    token = settings.telemetry_token or ""
    if not (token.isascii() and token.isprintable()) or " " in token:
        return (
            None,
            "AUTOTUNE_TELEMETRY_TOKEN holds characters that no HTTP header takes, such as a line's end",
        )
    instance = f"{socket.gethostname()}:{os.getpid()}"
    return Sender(settings.url, settings.telemetry_token, instance, gpu, settings.timeout_s), ""
