"""Health, metrics, the dashboard, unknown paths, and a lost database."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from autotune.db.engine import open_database
from autotune.server.app import create_app
from autotune.server.settings import ServerSettings
from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.wire import decode_tables
from tests.factories import H100, OTHER_PROBLEM, PROBLEM, make_table
from tests.server.conftest import Put, bearer
from tests.server.test_routing import BASE

VOID = {"meta", "link", "br"}


class Balanced(HTMLParser):
    """Fails on an element that is not closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def check_page(page: str) -> list[str]:
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "script" not in parser.seen
    return parser.seen


def test_health(client: TestClient) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").json() == {"status": "ready"}


def test_not_ready_with_another_schema(client: TestClient, tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path / 'service.db'}") as other, other.write() as session:
        session.execute(text("UPDATE moe_autotune_version SET version_num = '9999'"))
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "pip install --upgrade" in answer.json()["hint"]
    assert client.get("/healthz").status_code == 200


def test_a_lost_database_is_a_503_problem(client: TestClient, put: Put, tmp_path: Path) -> None:
    put(make_table())
    with open_database(f"sqlite:///{tmp_path / 'service.db'}") as other, other.write() as session:
        session.execute(text("ALTER TABLE channels RENAME TO gone"))
    answer = client.get("/routing", params=BASE)
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"]


def test_unknown_paths_and_methods_are_problems(client: TestClient) -> None:
    missing = client.get("/nowhere")
    assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
    wrong = client.delete("/routing")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
    long = client.get("/" + "x" * 60_000)
    assert (long.status_code, len(long.text) < 600) == (404, True)


@pytest.mark.parametrize(
    "path",
    ["/", "/healthz", "/readyz", "/metrics", "/routing", "/routing/table", "/routing/tables", "/revisions"],
)
def test_head_is_get_without_a_body(client: TestClient, put: Put, path: str) -> None:
    put(make_table())
    parameters = {k: v for k, v in BASE.items() if path == "/routing" or k != "tokens"}
    parameters = parameters if path in ("/routing", "/routing/table") else {}
    got, head = client.get(path, params=parameters), client.head(path, params=parameters)
    assert (got.status_code, head.status_code, head.content) == (200, 200, b"")
    if path != "/metrics":
        assert head.headers == got.headers
        assert int(head.headers["content-length"]) == len(got.content)
    metrics = client.get("/metrics").text
    assert f'method="HEAD",route="{path}",status="200"' in metrics
    assert client.head("/telemetry").status_code == 405


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_database_file_that_is_taken_away(client: TestClient, tmp_path: Path, how: str) -> None:
    assert client.get("/readyz").status_code == 200
    for file in tmp_path.glob("service.db*"):
        file.rename(tmp_path / f"away-{file.name}")
    if how == "replaced":
        open_database(f"sqlite:///{tmp_path / 'service.db'}").close()
    body = {"table": make_table().to_json_data(), "author": "a", "reason": "r"}
    for answer in (
        client.get("/readyz"), client.get("/routing", params=BASE), client.get("/"),
        client.post("/revisions", json=body, headers=bearer()),
    ):  # fmt: skip
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert "service.db" in answer.json()["detail"]
    assert client.get("/healthz").status_code == 200


def test_a_table_that_was_tampered_with(client: TestClient, put: Put, tmp_path: Path) -> None:
    put(make_table())
    put(make_table(environment=H100))
    with open_database(f"sqlite:///{tmp_path / 'service.db'}") as other, other.write() as session:
        session.execute(text("DROP TRIGGER routing_tables_immutable"))
        session.execute(
            text("UPDATE routing_tables SET content = json_set(content, '$.margin', 0.5) WHERE digest = :d"),
            {"d": make_table().digest},
        )
    decision = client.get("/routing", params=BASE).json()
    assert (decision["answer"], decision["reason"]) == ("fallback", "broken_table")
    assert "does not match its content" in decision["detail"]
    where = {"shape": str(PROBLEM), "gpu": "h200"}
    assert client.get("/routing/table", params=where).status_code == 404
    assert "broken" in client.get("/routing/table", params=where).json()["detail"]
    assert client.get("/routing", params={**BASE, "gpu": "h100"}).json()["answer"] == "route"
    tables, unread = decode_tables(client.get("/routing/tables").json())
    assert ([bool(t.broken) for t in tables], unread) == ([False, True], ())
    assert "<strong>broken</strong>" in client.get("/").text


def test_metrics_count_requests_and_decisions(client: TestClient, put: Put) -> None:
    put(make_table())
    client.get("/routing", params=BASE)
    client.get("/routing", params={**BASE, "tokens": "9999"})
    client.get("/routing", params={**BASE, "tokens": "0"})
    for i in range(3):
        client.get(f"/secret/{i}")
    metrics = client.get("/metrics").text
    assert 'autotune_http_requests_total{method="GET",route="/routing",status="200"} 2.0' in metrics
    assert 'autotune_http_requests_total{method="GET",route="/routing",status="400"} 1.0' in metrics
    assert 'autotune_http_requests_total{method="GET",route="unmatched",status="404"} 3.0' in metrics
    assert 'autotune_decisions_total{answer="route",reason=""} 1.0' in metrics
    assert 'autotune_decisions_total{answer="fallback",reason="above_range"} 1.0' in metrics
    assert 'autotune_http_request_seconds_count{route="/routing"} 3.0' in metrics
    assert "secret" not in metrics


def test_an_empty_dashboard_says_how_to_begin(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    check_page(answer.text)
    assert "autotune publish" in answer.text


def test_the_dashboard_shows_tables_charts_and_revisions(client: TestClient, put: Put) -> None:
    table = make_table(wins={8: 1.3, 16: 1.1})
    put(table)
    put(make_table(problem=OTHER_PROBLEM, environment=H100), none=True)
    answer = client.get("/")
    seen = check_page(answer.text)
    assert seen.count("circle") == len(table.routes)
    assert answer.text.count('class="win"') == 2
    assert str(PROBLEM) in answer.text
    assert "1.300x" in answer.text
    assert "<strong>none</strong>" in answer.text
    assert table.digest[:12] in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    svg = re.search(r"<svg.*?</svg>", answer.text, re.DOTALL)
    assert svg is not None
    for circle in ElementTree.fromstring(svg.group()).iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 720
        assert 0 <= float(circle.attrib["cy"]) <= 220


def test_the_dashboard_filters(client: TestClient, put: Put) -> None:
    put(make_table())
    put(make_table(environment=H100), channel="canary")
    canary = client.get("/", params={"channel": "canary"}).text
    assert "<svg" in canary
    assert 'href="?channel=stable"' in canary
    assert "<svg" not in client.get("/", params={"gpu": "h100"}).text
    assert client.get("/", params={"gpu": "<b>"}).status_code == 400
    other = client.get("/", params={"gpu": "h20"}).text
    assert "Nothing is published in this channel for NVIDIA_H20." in other
    assert "There are none for NVIDIA_H20." in other
    assert "There are none yet." not in other


def test_a_long_reason_is_cut_and_whole_beside_it(client: TestClient) -> None:
    table = make_table()
    reason = "swept again after the driver was upgraded, " * 20
    body = {"table": table.to_json_data(), "author": "a", "reason": reason}
    assert client.post("/revisions", json=body, headers=bearer()).status_code == 201
    page = client.get("/").text
    check_page(page)
    (cell,) = re.findall(r"<td title=\"(.*?)\">(.*?)</td>", page)
    assert cell[0] == reason.strip()
    assert 80 < len(cell[1]) <= 100
    assert cell[1].endswith("...")


def test_one_route_draws_too(client: TestClient, put: Put) -> None:
    put(make_table(tokens=(64,), wins={}))
    assert "<circle" in client.get("/").text


def test_texts_from_outside_are_escaped(client: TestClient, put: Put) -> None:
    gpu = make_table().environment.model_copy(update={"gpu": "NVIDIA_<script>alert(1)</script>"})
    put(make_table(environment=gpu))
    page = client.get("/").text
    check_page(page)
    assert "&lt;script&gt;" in page


def test_the_description_lists_every_call(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {
        "/routing", "/routing/table", "/routing/tables", "/measurements", "/revisions",
        "/revisions/{number}/activate", "/revisions/{number}/withdraw",
        "/revisions/{before}/diff/{after}", "/telemetry",
        "/healthz", "/readyz", "/metrics", "/",
    } <= set(paths)  # fmt: skip
    names = {p["name"] for p in paths["/routing"]["get"]["parameters"]}
    assert {"shape", "gpu", "tokens", "concurrency", "block_shape"} <= names


def test_every_candidate_is_described_by_its_fields(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    described = {name: set(schema.get("properties", ())) for name, schema in schemas.items()}
    assert {"backend", "block_m", "crowded_block_m", "down_split_k"} <= described["FusedDecodeCandidate"]
    for backend in get_args(get_args(Candidate)[0]):
        assert set(backend.model_fields) == described[backend.__name__]


def test_an_app_made_from_a_url_closes_its_database(tmp_path: Path) -> None:
    with TestClient(create_app(f"sqlite:///{tmp_path / 'x.db'}", ServerSettings())) as client:
        assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/routing/tables", "/"])
def test_head_and_get_stay_fast_under_threads(client: TestClient, put: Put, path: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    put(make_table())
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: client.get(path).status_code, range(40)))
    assert statuses == [200] * 40
