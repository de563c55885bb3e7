"""Counts on their way to the service: the real one, and ones that are slow, gone or refuse."""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import uvicorn

from autotune.db.engine import Database, open_database
from autotune.db.telemetry import TelemetryRepository
from autotune.server.app import create_app
from autotune.server.settings import ServerSettings
from autotune.server.tokens import read_tokens
from autotune.vllm_plugin import log, run_folder
from autotune.vllm_plugin.run_folder import WorkerReport
from autotune.vllm_plugin.served import Served
from autotune.vllm_plugin.step_meter import StepMeter
from autotune.vllm_plugin.telemetry_sender import MOST, Sender, make_sender
from autotune.vocabulary.settings import Settings
from tests.client.servers import raw_server, silent
from tests.factories import PROBLEM

TOKEN = "telemetry-token-0123"
WON = Served(9, 16, "triton", "route")
GONE = Served(17, 32, "triton", "fallback", "removed")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(f"sqlite:///{tmp_path / 'service.db'}") as opened:
        yield opened


@pytest.fixture
def service(database: Database) -> Iterator[str]:
    settings = ServerSettings(tokens=read_tokens(f"{TOKEN}:telemetry,other-token-012345:publish"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(create_app(database, settings), log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.started
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """The plugin's warnings and notes; each is said once a process, so earlier tests' are forgotten."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log._said.clear()
    logger = log.logger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def sender(url: str, token: str | None = TOKEN, **changes: float) -> Sender:
    return Sender(url, token, "host:1", "NVIDIA_H200", **{"timeout_s": 5.0, "every_s": 60.0, **changes})


def totals(database: Database) -> dict[tuple[str, str], int]:
    with database.read() as session:
        return TelemetryRepository(session).totals()


def test_the_service_stores_what_was_counted(service: str, database: Database) -> None:
    to = sender(service)
    for _ in range(3):
        to.add(str(PROBLEM), 16, WON, 7, 2)
    to.add(str(PROBLEM), 24, GONE, 7, 1)
    to.add(str(PROBLEM), 8, Served(1, 8, "triton", "route", "no_benefit"), None, 4)
    to.add(str(PROBLEM), 9999, Served(65, None, "triton", "fallback", "above_range"), 7, 5)
    to.add(str(PROBLEM), 8, Served(1, 8, "unknown", "unknown", "ranks_differ"), 7, 9)
    to.add("TritonExperts", 8, Served(1, None, "triton", "fallback", "not_routed"), None, 9)
    to.close(5.0)
    assert totals(database) == {
        ("route", ""): 10,
        ("fallback", "removed"): 1,
        ("fallback", "above_range"): 5,
    }
    assert (to.sent, to.dropped) == (16, 0)


def test_compilations_reach_the_service_once_each(
    service: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers, one of which compiles once more between two looks; there need be no step."""
    monkeypatch.setenv(run_folder.VARIABLE, str(tmp_path))

    def says(rank: int, pid: int, compiled: int) -> None:
        report = WorkerReport(pid, rank, "", (), {"fused_moe_kernel": compiled}, {}, 4)
        assert run_folder.write(report, os.environ) == ""

    to = sender(service)
    meter = StepMeter(to)
    says(0, os.getpid(), 2)
    says(1, os.getppid(), 1)
    meter.flush()
    says(0, os.getpid(), 3)
    for _ in range(2):
        meter.flush()
    to.close(5.0)
    shown = httpx.get(f"{service}/metrics").text
    assert "\nautotune_telemetry_compiled_total 4.0\n" in shown
    assert totals(database) == {}


def test_compilations_wait_for_a_service_that_is_gone(service: str) -> None:
    to = sender("http://127.0.0.1:9", every_s=0.05)
    with warned() as lines:
        to.add_compiled(2)
        deadline = time.monotonic() + 10
        while not lines and time.monotonic() < deadline:
            time.sleep(0.02)
        to.url = service
        to.close(5.0)
    assert "\nautotune_telemetry_compiled_total 2.0\n" in httpx.get(f"{service}/metrics").text


def test_it_reports_while_it_serves(service: str, database: Database) -> None:
    to = sender(service, every_s=0.05)
    to.add(str(PROBLEM), 16, WON, 7, 2)
    deadline = time.monotonic() + 10
    while not totals(database) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert totals(database) == {("route", ""): 2}
    to.close()


@pytest.mark.parametrize(("token", "status"), [(None, "401"), ("other-token-012345", "403")])
def test_a_refusal_is_said_once_and_counted(
    service: str, database: Database, token: str | None, status: str
) -> None:
    with warned() as lines:
        to = sender(service, token, every_s=0.05)
        for count in (1, 2):
            to.add(str(PROBLEM), 16, WON, 7, count)
            deadline = time.monotonic() + 10
            while to.dropped < 2 * count - 1 and time.monotonic() < deadline:
                time.sleep(0.02)
        to.close()
    (said, end) = lines
    assert f"HTTP {status}" in said
    assert "telemetry" in said
    assert "3 steps were not reported" in end
    assert totals(database) == {}


def test_a_service_that_never_answers_delays_nothing() -> None:
    with raw_server(silent) as url, warned() as lines:
        to = sender(url, every_s=0.01, timeout_s=30.0)
        to.add(str(PROBLEM), 16, WON, 7, 1)
        time.sleep(0.1)  # it is waiting for the answer now
        started = time.monotonic()
        for tokens in range(1, 1001):
            to.add(str(PROBLEM), tokens, WON, 7, 1)
        adding = time.monotonic() - started
        started = time.monotonic()
        to.close()
        closing = time.monotonic() - started
    assert adding < 0.5
    assert closing < 1.5
    assert any("1001 steps were not reported" in line for line in lines)


def test_a_dead_service_gets_the_counts_when_it_is_back(service: str, database: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    with warned() as lines:
        to = sender(dead, every_s=0.05)
        to.add(str(PROBLEM), 16, WON, 7, 3)
        deadline = time.monotonic() + 10
        while not lines and time.monotonic() < deadline:
            time.sleep(0.02)
        to.url = service
        while not totals(database) and time.monotonic() < deadline:
            time.sleep(0.02)
        to.close()
    assert totals(database) == {("route", ""): 3}
    (line,) = lines
    assert "does not reach" in line


def test_what_it_keeps_is_bounded() -> None:
    to = sender("http://127.0.0.1:9", every_s=60.0)
    for tokens in range(1, MOST + 11):
        to.add(str(PROBLEM), tokens, WON, 7, 1)
    to.add(str(PROBLEM), 1, WON, 7, 1)
    assert to.dropped == 10
    to.close()


def test_a_password_and_a_token_are_in_no_message() -> None:
    with warned() as lines:
        to = sender("http://ada:s3cret-word@127.0.0.1:9", every_s=0.01)
        to.add(str(PROBLEM), 16, WON, 7, 1)
        deadline = time.monotonic() + 10
        while not lines and time.monotonic() < deadline:
            time.sleep(0.02)
        to.close()
    assert lines
    assert not any("s3cret" in line or TOKEN in line for line in lines)


def test_what_it_needs() -> None:
    settings = Settings.from_env({"AUTOTUNE_TELEMETRY": "1", "AUTOTUNE_TELEMETRY_TOKEN": TOKEN})
    assert TOKEN not in repr(settings)
    assert "AUTOTUNE_URL names no service" in make_sender(settings, "NVIDIA_H200")[1]
    assert "is no http" in make_sender(replace(settings, url="ftp://x"), "NVIDIA_H200")[1]
    at = replace(settings, url="http://127.0.0.1:9")
    for token in ("s3cret\nsecond line", "s3cret word", "s3cret\u00e9"):
        made, reason = make_sender(replace(at, telemetry_token=token), "NVIDIA_H200")
        assert made is None
        assert reason.startswith("AUTOTUNE_TELEMETRY_TOKEN holds characters that no HTTP header takes")
        assert "s3cret" not in reason
    made, reason = make_sender(at, "NVIDIA_H200")
    assert made is not None
    assert reason == ""
    made.close()


def test_an_answer_is_told_as_it_came_in_one_line() -> None:
    """Packed or with control characters: nothing is unpacked for a log line."""
    packed = gzip.compress(b"x" * (1 << 20))

    def answers(connection: socket.socket) -> None:
        connection.recv(65536)
        head = "HTTP/1.1 500 no\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n"
        connection.sendall(head.encode() + b"\x1b[31m\n" + packed)
        connection.shutdown(socket.SHUT_WR)

    with raw_server(answers) as url, warned() as lines:
        to = sender(url, every_s=0.01)
        to.add(str(PROBLEM), 16, WON, 7, 1)
        deadline = time.monotonic() + 10
        while not lines and time.monotonic() < deadline:
            time.sleep(0.02)
        to.close()
    said, _ = lines  # the other: what was not reported
    assert "HTTP 500: " in said
    assert "xxxx" not in said
    assert said.isprintable()
