"""Starts a server, waits until it answers, watches it, and stops it."""

from __future__ import annotations

import http.client
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.lab.children import dies_with_parent, stop
from autotune.vocabulary.errors import AutotuneError, ConflictError
from autotune.vocabulary.files import reason


@dataclass
class Server:
    """A server process.

    Args:
        name: of its arm, for messages.
        log: where its output goes.
    """

    name: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    begun: float = field(default_factory=time.monotonic)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def check(self) -> None:
        """Raises:
        AutotuneError: if it has ended.
        """
        code = self.process.poll()
        if code is not None:
            raise AutotuneError(f"The server of {self.name} ended with {code}.", f"Read {self.log}.")

    def wait_ready(
        self, limit_s: float, path: str = "/health", hint: str = "or allow more with --start-limit."
    ) -> float:
        """Seconds from the start until the path answers.

        Raises:
            AutotuneError: if the server ends or the time is up.
        """
        while time.monotonic() - self.begun < limit_s:
            self.check()
            try:
                with urllib.request.urlopen(f"{self.address}{path}", timeout=2):
                    return time.monotonic() - self.begun
            except (urllib.error.URLError, http.client.HTTPException, OSError):
                time.sleep(0.2)
        raise AutotuneError(
            f"The server of {self.name} was not ready within {limit_s:.0f} s.",
            f"Read {self.log}, {hint}",
        )

    def stop(self) -> None:
        """End it and its children."""
        stop(self.process)


def start(name: str, command: Sequence[str], env: Mapping[str, str], port: int, log: Path) -> Server:
    """Start a server on a free port.

    Args:
        name: of its arm, for messages.

    Raises:
        AutotuneError: if there is no such program, or it cannot be run.
        ConflictError: if the port is taken.
    """
    refuse_taken(port)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        try:
            process = subprocess.Popen(
                command,
                env=env,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dies_with_parent,
            )
        except OSError as error:
            said = shlex.join(command)
            raise AutotuneError(
                f"The server of {name} cannot be started: {reason(error)}. Its command: {said[:300]}",
                "Let the plan's `server` begin with a program that can be run here.",
            ) from error
    return Server(name, process, port, log)


def refuse_taken(port: int) -> None:
    """A server that somebody left running would answer in place of the one that is meant.

    Raises:
        ConflictError: if anything listens on the port.
    """
    with socket.socket() as probe:
        probe.settimeout(5)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ConflictError(f"Port {port} is taken.", "Stop what listens there, or pass another --port.")
