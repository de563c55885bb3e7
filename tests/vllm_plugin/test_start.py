"""What a start makes of many tables, without vLLM."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from autotune.client import RoutingClient
from autotune.client.snapshot import Snapshot
from autotune.vllm_plugin import log, start
from autotune.vocabulary.decide import Query, Selection
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import PublishedTable
from tests.factories import H200, PROBLEM, make_published, make_table


def client_of(tables: Sequence[PublishedTable]) -> RoutingClient:
    return RoutingClient(Settings(), H200, snapshot=Snapshot(tables=tuple(tables), source="here"))


def test_each_layers_tables_are_looked_at_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source may hold thousands, and a start must not take their square."""
    problems = [PROBLEM.model_copy(update={"K": 128 * n}) for n in range(1, 41)]
    tables = [
        make_published(make_table(problem=problem, environment=H200), revision=revision)
        for problem in problems
        for revision in (1, 2)
    ]
    seen: list[int] = []

    def counting(here: Sequence[PublishedTable], query: Query) -> Selection:
        seen.append(len(here))
        return select_table(here, query)

    select_table = start.select_table
    monkeypatch.setattr(start, "select_table", counting)
    client = client_of(tables)
    found = start.fitting(client)
    assert [table.problem for table in found] == problems
    assert [table.revision for table in found] == [2] * len(problems)
    assert seen == [2] * len(problems)


def test_what_a_library_says_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger=log.logger().name):
        log.warn_once("a test: 1 validation error\ntopk\n  too large \x1b[31mred")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "autotune: a test: 1 validation error topk   too large  [31mred"
