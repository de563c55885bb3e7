"""`autotune serve` as a real process, spoken to over a real socket by the real client."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from autotune.cli import serving
from autotune.client import RoutingClient
from autotune.vocabulary.errors import ConflictError, MissingDependencyError, UsageError
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.wire import decode_tables
from tests.factories import H200, PROBLEM, make_measurement, make_table
from tests.processes import takes_interrupts

TOKEN = "token-of-the-test-0123456789"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class Service:
    """A running `autotune serve` and where it listens."""

    def __init__(self, folder: Path, tokens: str) -> None:
        self.log = folder / "service.log"
        environment = {**os.environ, "AUTOTUNE_DB": f"sqlite:///{folder / 'x.db'}", "AUTOTUNE_TOKENS": tokens}
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "autotune", "serve", "--port", "0"],
                stdout=subprocess.PIPE, stderr=stream, env=environment, cwd=folder, text=True,
                preexec_fn=takes_interrupts,
            )  # fmt: skip
        self.url = self._address()

    def _address(self) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            match = re.search(r"Serving .* at (http://127\.0\.0\.1:\d+)", self.log.read_text())
            if match:
                return match[1]
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def stop(self, how: signal.Signals) -> str:
        self.process.send_signal(how)
        output, _ = self.process.communicate(timeout=30)
        return output


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    started = Service(tmp_path, f"{TOKEN}:measure+publish+telemetry")
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()


def test_from_measuring_to_answering(service: Service) -> None:
    table = make_table()
    with httpx.Client(base_url=service.url, timeout=30) as http:
        assert http.get("/readyz").status_code == 200
        empty = http.get("/routing", params={"shape": str(PROBLEM), "gpu": "h200", "tokens": 8}).json()
        assert (empty["answer"], empty["reason"]) == ("fallback", "unknown_problem")
        batch = {"measurements": [make_measurement().model_dump(mode="json")]}
        assert http.post("/measurements", json=batch, headers=HEADERS).json() == {"new": 1, "known": 0}
        body = {"table": table.to_json_data(), "author": "ada", "reason": "swept"}
        assert http.post("/revisions", json=body).status_code == 401
        assert http.post("/revisions", json=body, headers=HEADERS).status_code == 201
        decision = http.get("/routing", params={"shape": str(PROBLEM), "gpu": "h200", "tokens": 8}).json()
        assert decision["route"]["winner"] == table.routes[3].winner.model_dump(mode="json")
        tables, _ = decode_tables(http.get("/routing/tables", params={"gpu": "h200"}).json())
        assert [t.table for t in tables] == [table]
        large = http.post("/measurements", content=b" " * 9_000_000, headers=HEADERS)
        assert large.status_code == 413
        assert "<svg" in http.get("/").text
    assert "No table is published" in service.log.read_text()
    stdout = service.stop(signal.SIGINT)
    # Results only: requests and notes went to stderr.
    assert stdout == ""
    assert "GET /routing" in service.log.read_text()
    assert "Traceback" not in service.log.read_text()


def test_a_channel_is_taken_back_to_nowhere_and_clients_see_it(service: Service, tmp_path: Path) -> None:
    body = {"author": "ada", "reason": "swept"}
    asking = RoutingClient(Settings(url=service.url, cache=tmp_path / "cache"), H200)
    with httpx.Client(base_url=service.url, timeout=30, headers=HEADERS) as http:
        assert http.post("/revisions", json={"table": make_table().to_json_data(), **body}).status_code == 201
        assert asking.route(PROBLEM, 8).revision == 1
        before = http.get("/routing/tables", params={"gpu": "h200"})
        assert http.post("/revisions/1/withdraw", json=body, headers={"Authorization": ""}).status_code == 401
        gone = http.post("/revisions/1/withdraw", json=body)
        assert (gone.status_code, gone.json()["previous"]) == (200, 1)
        tag = {"If-None-Match": before.headers["etag"]}
        after = http.get("/routing/tables", params={"gpu": "h200"}, headers=tag)
        assert (after.status_code, after.json()["tables"]) == (200, [])
        asking.refresh()
        assert asking.route(PROBLEM, 8).reason == "unknown_problem"
        assert http.post("/revisions/1/activate", json=body).status_code == 200
        asking.refresh()
        assert asking.route(PROBLEM, 8).revision == 1


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_finishes_what_was_asked_and_ends(service: Service, how: signal.Signals, code: int) -> None:
    address = httpx.URL(service.url)
    body = json.dumps({"measurements": [make_measurement().model_dump(mode="json")]}).encode()
    head = (
        f"POST /measurements HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
        f"Authorization: {HEADERS['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.host, address.port or 80), timeout=30) as client:
        client.sendall(head.encode() + body[:10])
        assert httpx.get(f"{service.url}/healthz").status_code == 200
        service.process.send_signal(how)
        while "Shutting down" not in service.log.read_text():
            time.sleep(0.05)
        client.sendall(body[10:])
        answer = b""
        while chunk := client.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert answer.endswith(b'{"new":1,"known":0}')
    assert service.process.wait(timeout=30) == code
    said = service.log.read_text()
    assert "Traceback" not in said
    with pytest.raises(httpx.ConnectError):
        httpx.get(service.url)


def test_a_killed_service_keeps_what_it_acknowledged(service: Service, tmp_path: Path) -> None:
    body = {"table": make_table().to_json_data(), "author": "ada", "reason": "swept"}
    assert httpx.post(f"{service.url}/revisions", json=body, headers=HEADERS).status_code == 201
    service.stop(signal.SIGKILL)
    again = Service(tmp_path, "")
    try:
        listed = httpx.get(f"{again.url}/revisions").json()["revisions"]
        assert [(r["number"], r["channels"]) for r in listed] == [(1, ["stable"])]
        refused = httpx.post(f"{again.url}/revisions", json=body, headers=HEADERS)
        assert refused.status_code == 403
        assert "AUTOTUNE_TOKENS" in json.loads(refused.text)["hint"]
    finally:
        again.stop(signal.SIGTERM)


def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConflictError, match=f"Port {port} on 127.0.0.1 is taken.*--port"):
            serving.serve(port=port)


def test_an_address_that_is_not_ours() -> None:
    for host in ("no.such.host.invalid", "192.0.2.1"):
        with pytest.raises(UsageError, match=r"--host 127\.0\.0\.1"):
            serving.serve(host=host, port=0)


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    # Also for what the database needs: one installation is enough.
    with pytest.raises(MissingDependencyError, match=r"sqlalchemy.*fastapi.*pip install .*\[server\]"):
        serving.serve()


@pytest.mark.parametrize("value", [",,,", " "])
def test_tokens_that_name_none_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AUTOTUNE_TOKENS", value)
    with pytest.raises(UsageError, match="names no token"):
        serving.serve(port=0)


def test_head_over_a_real_socket(service: Service) -> None:
    with httpx.Client(base_url=service.url, timeout=30) as http:
        for path in ("/", "/readyz", "/routing/tables"):
            got, head = http.get(path), http.head(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == str(len(got.content))
    service.stop(signal.SIGTERM)
    assert "Traceback" not in service.log.read_text()


def test_a_database_renamed_under_a_running_service(service: Service, tmp_path: Path) -> None:
    for file in tmp_path.glob("x.db*"):
        file.rename(tmp_path / f"away-{file.name}")
    body = {"table": make_table().to_json_data(), "author": "ada", "reason": "swept"}
    assert httpx.get(f"{service.url}/readyz").status_code == 503
    answer = httpx.post(f"{service.url}/revisions", json=body, headers=HEADERS)
    assert (answer.status_code, "no longer at its path" in answer.json()["detail"]) == (503, True)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure(service: Service) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    for path in ("/telemetry", "/measurements", "/revisions", "/revisions/1/activate"):
        with socket.create_connection((host, int(port))) as leaving:
            leaving.sendall(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
                f"Authorization: Bearer {TOKEN}\r\n\r\n{{".encode()
            )
            # Answered only after the service has begun on the request above.
            assert httpx.get(f"{service.url}/healthz").status_code == 200
    metrics = httpx.get(f"{service.url}/metrics").text
    assert httpx.get(f"{service.url}/readyz").status_code == 200
    service.stop(signal.SIGTERM)
    assert "Traceback" not in service.log.read_text()
    assert 'status="500"' not in metrics
