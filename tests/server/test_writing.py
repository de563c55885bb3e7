"""Write calls: tokens and scopes, measurements, revisions, telemetry, limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from autotune.db.engine import Database
from autotune.db.store import DatabaseStore
from autotune.db.telemetry import TelemetryRepository
from autotune.server.app import create_app
from autotune.server.settings import ServerSettings
from autotune.server.tokens import read_tokens
from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.errors import UnknownNameError, UsageError
from autotune.vocabulary.measurement import Status
from tests.factories import H200, OTHER_PROBLEM, PROBLEM, make_measurement, make_table
from tests.server.conftest import Put, bearer

WRITES = [
    ("/measurements", "measure"),
    ("/revisions", "publish"),
    ("/revisions/1/activate", "publish"),
    ("/revisions/1/withdraw", "publish"),
    ("/telemetry", "telemetry"),
]


def publication(**fields: Any) -> dict[str, Any]:
    return {"table": make_table().to_json_data(), "author": "ada", "reason": "swept", **fields}


@pytest.mark.parametrize(("path", "scope"), WRITES)
def test_writes_need_a_token_with_the_scope(client: TestClient, path: str, scope: str) -> None:
    nobody = client.post(path, json={})
    assert nobody.status_code == 401
    assert nobody.headers["www-authenticate"].startswith("Bearer")
    for wrong in ("Basic abc", "Bearer", "Bearer unknown-token-000", "measure-token-0123"):
        assert client.post(path, json={}, headers={"Authorization": wrong}).status_code == 401
    other = "measure-token-0123" if scope != "measure" else "publish-token-0123"
    forbidden = client.post(path, json={}, headers=bearer(other))
    assert forbidden.status_code == 403
    assert scope in forbidden.json()["detail"]
    assert client.post(path, json={}, headers=bearer()).status_code == 422


@pytest.mark.parametrize("path", [path for path, _ in WRITES])
def test_without_tokens_nobody_writes(database: Database, path: str) -> None:
    with TestClient(create_app(database, ServerSettings())) as client:
        answer = client.post(path, json={}, headers=bearer())
    assert answer.status_code == 403
    assert "AUTOTUNE_TOKENS" in answer.json()["hint"]


def test_tokens_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# who: ada\nfirst-token-012345:measure\n\nwith:colon-0123456:publish+telemetry\n")
    tokens = ServerSettings.from_env({"AUTOTUNE_TOKENS": str(file)}).tokens
    tokens.require("Bearer first-token-012345", "measure")
    tokens.require("bearer with:colon-0123456", "telemetry")
    assert "first-token" not in repr(tokens.__dict__)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("no-scopes-at-all-here", UsageError),
        ("short:measure", UsageError),
        ("long-enough-token-1:admin", UnknownNameError),
        ("/no/such/file", UsageError),
        ("~no-such-user/long-enough-token-1:measure", UsageError),
        ("long-enough-token-1:measure,another-long-token:publish,long-enough-token-1:publish", UsageError),
        (",,,", UsageError),
        (" , ", UsageError),
        (" ", UsageError),
        ("\t\n", UsageError),
    ],
)
def test_bad_tokens_are_refused_without_being_shown(text: str, error: type[UsageError]) -> None:
    with pytest.raises(error) as caught:
        read_tokens(text)
    assert "long-enough" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_measurements_are_appended_once(client: TestClient, database: Database) -> None:
    items = [make_measurement(tokens=n) for n in (1, 2)] + [make_measurement(status=Status.CRASHED)]
    body = {"measurements": [m.model_dump(mode="json") for m in items]}
    assert client.post("/measurements", json=body, headers=bearer()).json() == {"new": 3, "known": 0}
    assert client.post("/measurements", json=body, headers=bearer()).json() == {"new": 0, "known": 3}
    assert DatabaseStore(database).measurements(PROBLEM) == items


def test_one_bad_measurement_stores_none(client: TestClient, database: Database) -> None:
    good = make_measurement().model_dump(mode="json")
    for broken in ({**good, "tokens": 0}, {**good, "times": None}, {**good, "surprise": 1}, 7):
        answer = client.post("/measurements", json={"measurements": [good, broken]}, headers=bearer())
        assert answer.status_code == 422
        assert "measurements.1" in answer.json()["detail"]
    assert DatabaseStore(database).measurements(PROBLEM) == []


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"measurements": [NaN]}', b"[" * 100_000])
def test_a_body_that_is_no_json(client: TestClient, body: bytes) -> None:
    answer = client.post("/measurements", content=body, headers=bearer())
    assert answer.status_code == 400
    assert "no JSON" in answer.json()["detail"]


def test_limits(client: TestClient) -> None:
    item = make_measurement().model_dump(mode="json")
    many = client.post("/measurements", json={"measurements": [item] * 51}, headers=bearer())
    assert many.status_code == 422
    assert "several requests" in many.json()["hint"]
    large = client.post("/measurements", content=b" " * 300_001, headers=bearer())
    assert large.status_code == 413
    assert large.headers["content-type"] == "application/problem+json"

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 10_000

    unannounced = client.post("/measurements", content=chunks(), headers=bearer())
    assert unannounced.status_code == 413


def test_publish_roll_back_and_compare(client: TestClient) -> None:
    first = client.post("/revisions", json=publication(), headers=bearer())
    assert first.status_code == 201
    assert first.headers["location"] == "/revisions/1"
    assert first.json()["changed"] is True
    again = client.post("/revisions", json=publication(), headers=bearer())
    assert (again.status_code, again.json()["changed"]) == (200, False)
    second = make_table(tokens=(1, 2, 4, 8), wins={8: 1.5})
    assert (
        client.post("/revisions", json=publication(table=second.to_json_data()), headers=bearer()).json()[
            "previous"
        ]
        == 1
    )
    back = client.post("/revisions/1/activate", json={"author": "b", "reason": "slower"}, headers=bearer())
    assert (back.status_code, back.json()["previous"]) == (200, 2)
    listed = client.get("/revisions", params={"gpu": "h200"}).json()["revisions"]
    assert [(r["number"], r["channels"]) for r in listed] == [(2, []), (1, ["stable"])]
    rows = client.get("/revisions/1/diff/2").json()["rows"]
    assert [(r["first"], r["before"]["answer"], r["after"]["answer"]) for r in rows][-1] == (
        33,
        "win",
        "fallback",
    )
    assert client.get("/revisions/2").json()["table"]["digest"] == second.digest


def test_a_channel_goes_back_to_nowhere(client: TestClient, put: Put) -> None:
    put(make_table())
    put(make_table(tokens=(1, 2)))
    put(make_table(tokens=(1, 2)), channel="canary")
    look_up = {"shape": str(PROBLEM), "gpu": "h200", "tokens": 8}
    body = {"author": "b", "reason": "wrong answers"}

    def withdraw(number: int, **fields: str) -> Any:
        return client.post(f"/revisions/{number}/withdraw", json={**body, **fields}, headers=bearer())

    stale = withdraw(1)
    assert stale.status_code == 409
    assert "points at revision 2, not at 1" in stale.json()["detail"]
    assert client.get("/routing", params=look_up).json()["revision"] == 2
    done = withdraw(2)
    assert done.status_code == 200
    assert done.json() == {"revision": None, "channel": "stable", "changed": True, "previous": 2}
    answer = client.get("/routing", params=look_up).json()
    assert (answer["answer"], answer["reason"]) == ("fallback", "unknown_problem")
    assert client.get("/routing/table", params={k: look_up[k] for k in ("shape", "gpu")}).status_code == 404
    listed = client.get("/revisions").json()["revisions"]
    assert [(r["number"], r["channels"]) for r in listed] == [(3, ["canary"]), (2, []), (1, [])]
    again = withdraw(2)
    assert again.json() == {"revision": None, "channel": "stable", "changed": False, "previous": None}
    back = client.post("/revisions/2/activate", json=body, headers=bearer())
    assert (back.status_code, back.json()["previous"]) == (200, None)
    assert withdraw(9).status_code == 404
    assert withdraw(2, channel="Canary!").status_code == 400
    assert withdraw(2, author="").status_code == 400
    assert withdraw(2, surprise="x").status_code == 422


def test_none_needs_to_say_for_what(client: TestClient, put: Put) -> None:
    assert client.post("/revisions", json=publication(table=None), headers=bearer()).status_code == 422
    put(make_table())
    what = {
        "problem": PROBLEM.model_dump(mode="json"),
        "environment": H200.model_dump(mode="json"),
        "checkpoint": "fp8",
    }
    answer = client.post("/revisions", json=publication(table=None, **what), headers=bearer())
    assert answer.status_code == 201
    assert answer.json()["revision"]["table_digest"] is None


def readable(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """A table with one thing changed, under the digest of its new content."""
    data = json.loads(json.dumps(make_table().content()))
    change(data)
    return {**data, "digest": content_digest(data)}


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"author": ""}, 400),
        ({"reason": "two\nlines"}, 400),
        ({"channel": "Stable!"}, 400),
        ({"surprise": 1}, 422),
        ({"checkpoint": "unquantized"}, 409),
        ({"table": {**make_table().to_json_data(), "margin": 0.5}}, 422),
        ({"table": {"schema_version": 99}}, 422),
        ({"table": readable(lambda data: data["routes"][0]["winner_timing"].update(p50_us=1.7e308))}, 422),
        ({"table": readable(lambda data: data["recording"].update(first="2026-11-29T12:00:00"))}, 422),
        ({"table": readable(lambda data: data["routes"][-1].update(last=10**9, tokens=10**9))}, 422),
        ({"table": readable(lambda data: data.update(routing="\x1b[31m"))}, 422),
    ],
)
def test_bad_publications(client: TestClient, fields: dict[str, Any], status: int) -> None:
    answer = client.post("/revisions", json=publication(**fields), headers=bearer())
    assert answer.status_code == status, answer.text
    assert client.get("/revisions").json() == {"revisions": []}


@pytest.mark.parametrize(("number", "status"), [("99", 404), ("x", 400), ("9" * 30, 400), ("-1", 400)])
def test_revision_numbers(client: TestClient, number: str, status: int) -> None:
    body = {"author": "a", "reason": "r"}
    assert client.post(f"/revisions/{number}/activate", json=body, headers=bearer()).status_code == status
    assert client.get(f"/revisions/{number}").status_code == status
    assert client.get(f"/revisions/1/diff/{number}").status_code in (404, status)


def test_telemetry_is_summed(client: TestClient, database: Database) -> None:
    problem = PROBLEM.model_dump(mode="json")
    count = {"problem": problem, "tokens": 8, "answer": "route", "revision": 1, "count": 5}
    miss = {"problem": problem, "tokens": 9999, "answer": "fallback", "reason": "above_range", "count": 2}
    report = {"instance": "node-1", "gpu": "NVIDIA_H200", "counts": [count, miss]}
    for _ in range(2):
        assert client.post("/telemetry", json=report, headers=bearer()).status_code == 202
    with database.read() as session:
        assert TelemetryRepository(session).totals() == {("fallback", "above_range"): 4, ("route", ""): 10}
    for bad in (
        {**report, "counts": [{**count, "count": 0}]},
        {**report, "counts": []},
        {**report, "compiled": -1},
    ):
        assert client.post("/telemetry", json=bad, headers=bearer()).status_code == 422


def test_reported_compilations_are_summed(client: TestClient) -> None:
    report = {"instance": "node-1", "gpu": "NVIDIA_H200", "counts": [], "compiled": 3}
    for _ in range(2):
        answer = client.post("/telemetry", json=report, headers=bearer())
        assert (answer.status_code, answer.json()) == (202, {"stored": 0})
    assert "\nautotune_telemetry_compiled_total 6.0\n" in client.get("/metrics").text


def test_numbers_survive_the_way_through(client: TestClient, database: Database) -> None:
    measurement = make_measurement(candidate_us=0.1 + 0.2, relative_error=1e-9)
    body = json.dumps({"measurements": [measurement.model_dump(mode="json")]})
    client.post("/measurements", content=body, headers=bearer())
    assert DatabaseStore(database).measurements(PROBLEM)[0].digest == measurement.digest


def test_a_token_file_without_tokens_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# nobody yet\n\n")
    with pytest.raises(UsageError, match="names no token"):
        read_tokens(str(file))
    assert not read_tokens("")


BAD_VALUES = [
    ("tokens", "1180591620717411303424"),
    ("tokens", '"1180591620717411303424"'),
    ("recorded_at", '"0001-01-01T00:00:00+14:00"'),
    ("recorded_at", '"9999-12-31T23:59:59-14:00"'),
    ("compile_s", "1e999"),
    ("compile_s", '"1e999"'),
    ("compile_s", '"inf"'),
    ("setup_s", "1e999"),
    ("relative_error", "1e999"),
    ("peak_bytes", "1" * 5000),
    ("run", '"\\ud800"'),
    ("driver", '"\\udc00\\ud800"'),
]


@pytest.mark.parametrize(("field", "value"), BAD_VALUES)
def test_measurements_that_cannot_be_stored(
    client: TestClient, database: Database, field: str, value: str
) -> None:
    item = make_measurement().model_dump(mode="json")
    text = json.dumps({"measurements": [{**item, field: "HERE"}]}).replace('"HERE"', value)
    answer = client.post("/measurements", content=text, headers=bearer())
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["hint"]
    assert len(answer.text) < 1000
    assert DatabaseStore(database).measurements(PROBLEM) == []


def test_measurements_from_the_future(client: TestClient, database: Database) -> None:
    now = datetime.now(UTC)
    for hours, status in ((25, 422), (23, 200)):
        item = make_measurement(tokens=hours).model_dump(mode="json")
        item["recorded_at"] = (now + timedelta(hours=hours)).isoformat()
        answer = client.post("/measurements", json={"measurements": [item]}, headers=bearer())
        assert answer.status_code == status, answer.text
    assert [m.tokens for m in DatabaseStore(database).measurements(PROBLEM)] == [23]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("table", "margin"), "1e999"),
        (("table", "margin"), '"1e999"'),
        (("table", "recording", "driver"), '"\\ud800"'),
        (("table", "recording", "measurements"), str(2**70)),
        (("table", "surprise"), '"\\ud800"'),
        (("table", "routes"), '[{"tokens": 1e999}]'),
        (("reason",), '"\\ud800"'),
        (("author",), '"\\udfff"'),
        (("channel",), '"\\ud800"'),
    ],
)
def test_publications_that_cannot_be_stored(client: TestClient, place: tuple[str, ...], value: str) -> None:
    body = publication()
    inner = body
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = "HERE"
    text = json.dumps(body).replace('"HERE"', value)
    answer = client.post("/revisions", content=text, headers=bearer())
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert client.get("/revisions").json() == {"revisions": []}


def test_different_layers_are_not_compared(client: TestClient, put: Put) -> None:
    put(make_table())
    put(make_table(problem=OTHER_PROBLEM))
    put(make_table(environment=H200.model_copy(update={"vllm": "0.26.0"}), wins={}))
    refused = client.get("/revisions/1/diff/2")
    assert refused.status_code == 400
    assert str(OTHER_PROBLEM) in refused.json()["detail"]
    assert "GET /revisions" in refused.json()["hint"]
    assert all(row["changed"] for row in client.get("/revisions/1/diff/3").json()["rows"])
