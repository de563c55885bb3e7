"""`autotune serve --starter-tables`: the package's tables where nothing is published."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from autotune.client.sources import starter
from autotune.db.engine import Database
from autotune.server.app import create_app
from autotune.server.settings import ServerSettings
from autotune.vocabulary.catalogue import resolve_problem
from autotune.vocabulary.table import RoutingTable
from autotune.vocabulary.wire import decode_tables
from tests.factories import H200, make_table
from tests.server.conftest import Put

QWEN, _ = resolve_problem("qwen-moe-fp8")
ASKED = {"shape": str(QWEN), "gpu": "h200", "tokens": 8}


@pytest.fixture
def starting(database: Database) -> Iterator[TestClient]:
    with TestClient(create_app(database, ServerSettings(), starter().tables)) as opened:
        yield opened


def own_table() -> RoutingTable:
    (found,) = [t.table for t in starter().tables if t.problem == QWEN]
    assert found is not None
    return found


def test_a_starter_table_answers_and_an_unseen_shape_falls_back(
    starting: TestClient, client: TestClient
) -> None:
    answer = starting.get("/routing", params=ASKED).json()
    assert (answer["answer"], answer["table_digest"], answer["revision"]) == (
        "route",
        own_table().digest,
        None,
    )
    assert answer["route"]["winner"]["backend"] == "fused_decode"
    unseen = starting.get("/routing", params={**ASKED, "shape": "E=8,N=256,K=512,topk=2,scheme=bf16"}).json()
    assert (unseen["answer"], unseen["reason"]) == ("fallback", "unknown_problem")
    table = starting.get("/routing/table", params={"shape": str(QWEN), "gpu": "h200"})
    assert RoutingTable.from_json_data(table.json()) == own_table()
    assert "x-autotune-revision" not in table.headers
    assert "starter table</p>" in starting.get("/").text
    tables, broken = decode_tables(starting.get("/routing/tables", params={"gpu": "h200"}).json())
    assert ({t.problem for t in tables}, broken) == ({t.problem for t in starter().tables}, ())
    # Without the option the database alone answers; in another channel, too.
    assert client.get("/routing", params=ASKED).json()["answer"] == "fallback"
    assert starting.get("/routing", params={**ASKED, "channel": "canary"}).json()["answer"] == "fallback"


@pytest.mark.parametrize("none", [False, True])
def test_what_is_published_counts_before_it(starting: TestClient, put: Put, none: bool) -> None:
    put(make_table(problem=QWEN, environment=H200, checkpoint=own_table().checkpoint), none=none)
    answer = starting.get("/routing", params=ASKED).json()
    if none:
        assert (answer["answer"], answer["reason"]) == ("fallback", "none_published")
    else:
        assert (answer["answer"], answer["revision"]) == ("route", 1)
