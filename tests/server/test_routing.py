"""Look-ups over HTTP: routes, misses, and what bad parameters get."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import autotune
from autotune.db.engine import Database
from autotune.publish import rollback
from autotune.server.texts import _OVER_HTTP
from autotune.vocabulary.problem import GRAMMAR
from autotune.vocabulary.table import Decision, RoutingTable
from autotune.vocabulary.wire import decode_tables
from tests.factories import H100, H200, OTHER_PROBLEM, PROBLEM, make_table
from tests.server.conftest import Put

BASE = {"shape": str(PROBLEM), "gpu": "NVIDIA_H200", "tokens": "8"}
VERSIONS = {k: v for k, v in H200.model_dump(exclude={"gpu"}).items() if v}


def ask(client: TestClient, **parameters: str) -> Decision:
    answer = client.get("/routing", params={**BASE, **parameters})
    assert answer.status_code == 200, answer.text
    return Decision.model_validate(answer.json())


def test_a_covered_count_gets_its_route(client: TestClient, put: Put) -> None:
    table = make_table()
    done = put(table)
    decision = ask(client)
    assert decision.answer == "route"
    assert decision.candidate == table.routes[3].winner
    assert decision.table_digest == table.digest
    assert (decision.revision, decision.channel) == (done.revision.number, "stable")
    assert decision.environment == H200


def test_the_url_of_the_documentation_works_unescaped(client: TestClient, put: Put) -> None:
    put(make_table())
    answer = client.get(
        "/routing?shape=E=128,N=768,K=2048,topk=8,scheme=fp8_block128&gpu=h200&tokens=16&concurrency=8"
        "&dtype=fp8_w8a8&block_shape=[128,128]"
    )
    assert answer.json()["answer"] == "route"


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"tokens": "65"}, "above_range"),
        ({"tokens": "1"}, "below_range"),
        ({"tokens": "20"}, "unmeasured"),
        ({"shape": str(OTHER_PROBLEM)}, "unknown_problem"),
        ({"gpu": "h100"}, "unknown_gpu"),
        ({"vllm": "0.33.0"}, "stale"),
        ({"capability": "8.0"}, "unknown_gpu"),
        ({"checkpoint": "unquantized"}, "unknown_problem"),
        ({"channel": "canary"}, "unknown_problem"),
    ],
)
def test_a_miss_is_an_answer(client: TestClient, put: Put, parameters: dict[str, str], reason: str) -> None:
    put(make_table(tokens=(2, 4, 8, 16, 32, 64), firsts={32: 24}))
    decision = ask(client, **parameters)
    assert decision.answer == "fallback"
    assert decision.reason is not None
    assert decision.reason.value == reason
    assert decision.detail
    assert decision.candidate is None


def test_an_empty_service_says_how_to_publish(client: TestClient) -> None:
    assert "autotune publish" in ask(client).detail


def test_what_was_rolled_back_is_not_called_unpublished(
    client: TestClient, put: Put, database: Database
) -> None:
    table = make_table()
    put(table)
    with database.write() as session:
        rollback(
            session, problem=table.problem, environment=table.environment, checkpoint=table.checkpoint,
            to="unpublished", author="tester", reason="a test", channel="stable",
        )  # fmt: skip
    assert "autotune rollback --to N" in ask(client).detail


def test_an_unknown_channel_names_the_known(client: TestClient, put: Put) -> None:
    put(make_table())
    assert "there are: stable" in ask(client, channel="stabel").detail


def test_none_is_a_fallback(client: TestClient, put: Put) -> None:
    put(make_table())
    put(make_table(), none=True)
    decision = ask(client)
    assert (decision.answer, decision.reason) == ("fallback", "none_published")


def test_a_complete_environment_matches_exactly(client: TestClient, put: Put) -> None:
    with_flashinfer = H200.model_copy(update={"flashinfer": "0.6.13"})
    put(make_table(environment=with_flashinfer))
    assert ask(client, **VERSIONS).reason == "stale"
    assert ask(client, **VERSIONS, flashinfer="0.6.13").answer == "route"
    assert ask(client, **VERSIONS, flashinfer="none").reason == "stale"
    inferred = ask(client, **VERSIONS, match="compatible")
    assert (inferred.answer, inferred.inferred) == ("route", True)


def test_a_partly_named_environment_takes_the_newest_that_has_it(client: TestClient, put: Put) -> None:
    older = H200.model_copy(update={"vllm": "0.24.0"})
    put(make_table(environment=older))
    put(make_table(environment=H200))
    assert ask(client, vllm="0.24.0").environment == older
    assert ask(client, triton="3.6.0").environment == H200
    assert ask(client).environment == H200
    stale = ask(client, vllm="0.99.0")
    assert stale.reason == "stale"
    assert "vllm 0.99.0 (table: 0.25.1)" in stale.detail


def test_concurrency_adds_the_static_choice_and_leaves_the_route(client: TestClient, put: Put) -> None:
    put(make_table(tokens=(1, 8, 64, 1024, 8192)))
    without, with_profile = ask(client), ask(client, concurrency="8")
    assert without.static is None
    assert with_profile.static is not None
    assert with_profile.static.backend == "triton"
    assert with_profile.route == without.route


@pytest.mark.parametrize("tokens", ["0", "-1", "eight", "", "1.5", "8 ", "1e3", "٣", "9999999999", "+8"])
def test_bad_token_counts(client: TestClient, tokens: str) -> None:
    answer = client.get("/routing", params={**BASE, "tokens": tokens})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert "whole number from 1" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("shape", "position"),
    [
        ("E=128,N=abc,K=2048,topk=8,scheme=bf16", 8),
        ("E=128;N=768", 2),
        ("E=128,N=768,K=2048,topk=8", 25),
        ("E=128,X=1", 6),
        ("", 0),
    ],
)
def test_a_shape_that_does_not_parse(client: TestClient, shape: str, position: int) -> None:
    answer = client.get("/routing", params={**BASE, "shape": shape})
    body = answer.json()
    assert answer.status_code == 400
    assert (body["position"], body["grammar"], body["status"]) == (position, GRAMMAR, 400)
    assert GRAMMAR in body["hint"]


@pytest.mark.parametrize(
    ("parameters", "part"),
    [
        ({"gpu": "h20O"}, "Did you mean"),
        ({"shape": str(PROBLEM).replace("block128", "blok128")}, "fp8_block128"),
        ({"tokns": "8"}, "Did you mean 'tokens'? Known: shape, gpu"),
        ({"match": "fuzzy"}, "match"),
        ({"checkpoint": "awq"}, "checkpoint"),
        ({"channel": "../x"}, "channel"),
        ({"concurrency": "0"}, "concurrency"),
        ({"capability": "nine"}, "capability"),
        ({"gpu": "NVIDIA_\x00"}, "NUL"),
        ({"dtype": "int8_w8a16"}, "contradicts"),
        ({"block_shape": "[64,64]"}, "contradicts"),
        ({"block_shape": "128"}, "does not parse"),
        ({"shape": str(OTHER_PROBLEM), "dtype": "fp8_w8a8"}, "contradicts"),
    ],
)
def test_bad_parameters_say_what_to_do(
    client: TestClient, put: Put, parameters: dict[str, str], part: str
) -> None:
    put(make_table())
    answer = client.get("/routing", params={**BASE, **parameters})
    assert answer.status_code == 400, answer.text
    assert part in answer.text
    assert answer.json()["hint"]


def test_missing_and_repeated_parameters(client: TestClient) -> None:
    missing = client.get("/routing", params={"shape": str(PROBLEM)})
    assert missing.status_code == 400
    assert "Required: shape, gpu, tokens" in missing.json()["hint"]
    twice = client.get("/routing?tokens=1&tokens=2")
    assert "given twice" in twice.json()["detail"]


def test_a_table_is_sent_once(client: TestClient, put: Put) -> None:
    table = make_table()
    put(table)
    where = {"shape": str(PROBLEM), "gpu": "h200"}
    answer = client.get("/routing/table", params=where)
    assert RoutingTable.from_json_data(answer.json()) == table
    tag = answer.headers["etag"]
    assert tag == f'"{table.digest}"'
    assert answer.headers["x-autotune-revision"] == "1"
    for header in (tag, f'"x", W/{tag}', "*"):
        again = client.get("/routing/table", params=where, headers={"If-None-Match": header})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    two = [("If-None-Match", '"x"'), ("If-None-Match", tag)]
    assert client.get("/routing/table", params=where, headers=two).status_code == 304
    other = client.get("/routing/table", params=where, headers={"If-None-Match": '"x"'})
    assert other.status_code == 200


def test_an_answer_is_sent_once(client: TestClient, put: Put) -> None:
    put(make_table())
    where = {"shape": str(PROBLEM), "gpu": "h200", "tokens": 8}
    first = client.get("/routing", params=where)
    tag = first.headers["etag"]
    again = client.get("/routing", params=where, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    put(make_table(tokens=(8,)))
    other = client.get("/routing", params=where, headers={"If-None-Match": tag})
    assert (other.status_code, other.json()["revision"]) == (200, 2)


def test_no_table_is_a_404_problem(client: TestClient, put: Put) -> None:
    where = {"shape": str(PROBLEM), "gpu": "h200"}
    assert client.get("/routing/table", params=where).status_code == 404
    put(make_table(), none=True)
    answer = client.get("/routing/table", params=where)
    assert answer.status_code == 404
    assert "none" in answer.json()["detail"]


def test_all_tables_of_a_gpu(client: TestClient, put: Put) -> None:
    put(make_table())
    put(make_table(problem=OTHER_PROBLEM), none=True)
    put(make_table(environment=H100))
    answer = client.get("/routing/tables", params={"gpu": "h200"})
    tables, broken = decode_tables(answer.json())
    assert not broken
    assert {(str(t.problem), t.table is None) for t in tables} == {
        (str(PROBLEM), False),
        (str(OTHER_PROBLEM), True),
    }
    tag = answer.headers["etag"]
    assert tag == f'"{answer.json()["digest"]}"'
    same = client.get("/routing/tables", params={"gpu": "h200"}, headers={"If-None-Match": tag})
    assert same.status_code == 304
    put(make_table(tokens=(1, 2)))
    changed = client.get("/routing/tables", params={"gpu": "h200"}, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert len(client.get("/routing/tables").json()["tables"]) == 3


@pytest.mark.parametrize(
    "parameters",
    [
        {"shape": "x" * 60_000},
        {"shape": str(PROBLEM) + ",y" * 10_000},
        {"shape": "E=128,N=768,K=2048,topk=8,scheme=" + "x" * 60_000},
        {"gpu": "x" * 60_000},
        {"gpu": "NVIDIA_" + "x" * 60_000},
        {"dtype": "x" * 60_000},
        {"block_shape": "x" * 60_000},
        {"checkpoint": "x" * 60_000},
        {"match": "x" * 60_000},
        {"channel": "x" * 60_000},
        {"tokens": "x" * 60_000},
        {"vllm": "x" * 60_000},
        {"x" * 60_000: "8"},
    ],
)
def test_what_a_caller_sent_is_not_echoed_whole(client: TestClient, parameters: dict[str, str]) -> None:
    answer = client.get("/routing", params={**BASE, **parameters})
    assert answer.status_code == 400
    assert len(answer.json()["detail"]) < 500
    assert len(answer.text) < 2000


def test_hints_speak_of_parameters(client: TestClient, put: Put) -> None:
    put(make_table())
    stale = ask(client, vllm="0.99.0")
    assert "ask with match=compatible" in stale.detail
    assert "AUTOTUNE" not in stale.detail
    where = {"shape": str(PROBLEM), "gpu": "h200", "vllm": "0.99.0"}
    table = client.get("/routing/table", params=where)
    assert (table.status_code, "match=compatible" in table.text, "AUTOTUNE" in table.text) == (
        404,
        True,
        False,
    )
    missing = client.get("/revisions/99")
    assert missing.json()["hint"] == "GET /revisions lists them."


def test_what_is_reworded_is_what_the_messages_say() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("vocabulary", "db", ".")
        for path in (Path(autotune.__path__[0]) / folder).glob("*.py")
    )
    # Long sentences are broken over lines there.
    plain = source.replace('"\n        "', "").replace('"\n                "', "")
    for ours, _ in _OVER_HTTP:
        general = ours.replace("--author", "--{name}").replace("--reason", "--{name}")
        assert ours in plain or general in plain, ours
