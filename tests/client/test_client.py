"""Look-ups in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import autotune.client
from autotune.client import RoutingClient, Snapshot
from autotune.vocabulary.candidate import FlashinferCutlassCandidate
from autotune.vocabulary.errors import UnknownNameError
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import Miss
from tests.factories import H100, H200, OTHER_PROBLEM, PROBLEM, make_published, make_table


def client(*, environment: object = H200, settings: Settings | None = None, **table: object) -> RoutingClient:
    snapshot = Snapshot((make_published(**table),), "test")  # type: ignore[arg-type]
    return RoutingClient(settings or Settings(), environment, snapshot=snapshot)  # type: ignore[arg-type]


def test_it_answers_with_the_route_and_where_it_came_from() -> None:
    decision = client().route(PROBLEM, 8)
    assert decision.answer == "route"
    assert decision.route is not None
    assert decision.route.tokens == 8
    assert (decision.revision, decision.source) == (1, "test")
    assert decision.static is None


def test_every_kind_of_miss_is_named() -> None:
    assert client().route(OTHER_PROBLEM, 8).reason is Miss.UNKNOWN_PROBLEM
    assert client(environment=H100).route(PROBLEM, 8).reason is Miss.UNKNOWN_GPU
    assert client(tokens=(4, 8), firsts={4: 4}).route(PROBLEM, 1).reason is Miss.BELOW_RANGE
    assert client().route(PROBLEM, 65).reason is Miss.ABOVE_RANGE
    assert client(firsts={8: 8}).route(PROBLEM, 5).reason is Miss.UNMEASURED
    other = H200.model_copy(update={"triton": "3.9.0"})
    assert client(environment=other).route(PROBLEM, 8).reason is Miss.STALE
    assert client(settings=Settings(mode="off")).route(PROBLEM, 8).reason is Miss.DISABLED
    none = make_published().model_copy(update={"table": None})
    empty = RoutingClient(Settings(), H200, snapshot=Snapshot((none,), "test"))
    assert empty.route(PROBLEM, 8).reason is Miss.NONE_PUBLISHED
    for miss in (Miss.BROKEN_TABLE, Miss.UNREACHABLE):
        failed = RoutingClient(Settings(), H200, snapshot=Snapshot(reasons=("it rained",), miss=miss))
        decision = failed.route(PROBLEM, 8)
        assert (decision.answer, decision.reason) == ("fallback", miss)
        assert "it rained" in decision.detail


def test_compatible_takes_other_versions_marked_as_inferred() -> None:
    other = H200.model_copy(update={"triton": "3.9.0"})
    decision = client(environment=other, settings=Settings(match="compatible")).route(PROBLEM, 8)
    assert (decision.answer, decision.inferred) == ("route", True)


def test_the_static_choice_is_answered_for_a_concurrency() -> None:
    asked = client(tokens=(8, 8192), baseline=FlashinferCutlassCandidate())
    decision = asked.route(PROBLEM, 8, concurrency=8)
    assert decision.static is not None
    assert decision.static.backend == "triton"
    only = asked.route(PROBLEM, 8, concurrency=8, allowed=frozenset({"deep_gemm"}))
    assert only.static is not None
    assert only.static.backend == "deep_gemm"


@pytest.mark.parametrize("tokens", [0, -1])
def test_no_tokens_is_an_error(tokens: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        client().route(PROBLEM, tokens)


def test_a_repeated_look_up_takes_microseconds() -> None:
    asked = client()
    asked.route(PROBLEM, 8)
    started = time.perf_counter()
    for _ in range(20_000):
        asked.route(PROBLEM, 8)
    each_us = (time.perf_counter() - started) / 20_000 * 1e6
    assert each_us < 50, f"{each_us:.1f} us"


def test_refresh_reads_the_source_again(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    asked = RoutingClient(Settings(table=path, cache=tmp_path), H200)
    assert asked.route(PROBLEM, 8).reason is Miss.BROKEN_TABLE
    path.write_text(json.dumps(make_table().to_json_data()))
    assert asked.route(PROBLEM, 8).reason is Miss.BROKEN_TABLE, "nothing is read behind the caller's back"
    asked.refresh()
    assert asked.route(PROBLEM, 8).answer == "route"


def test_a_gpu_may_be_an_alias_as_on_the_command_line() -> None:
    snapshot = Snapshot((make_published(),), "test")
    for name in ("h200", "H200", "NVIDIA H200", "NVIDIA_H200"):
        asked = RoutingClient(Settings(), gpu=name, snapshot=snapshot)
        assert asked.gpu == "NVIDIA_H200", name
        assert asked.route(PROBLEM, 8).answer == "route", name
    assert RoutingClient(Settings(), gpu="h100", snapshot=snapshot).route(PROBLEM, 8).reason is (
        Miss.UNKNOWN_GPU
    )
    with pytest.raises(UnknownNameError, match="Unknown GPU 'h201'"):
        RoutingClient(Settings(), gpu="h201", snapshot=snapshot)


def test_the_example_of_the_documentation_runs() -> None:
    """`docs/client.md`: its Python, and what it says that it prints, on the starter tables."""
    text = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    (code, printed) = (
        text.split("```python\n")[1].split("```\n")[0],
        text.split("```text\n")[1].split("```")[0],
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AUTOTUNE_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == printed


def test_the_public_names() -> None:
    assert autotune.client.__all__ == ["RoutingClient", "Snapshot"]


def test_importing_and_asking_loads_nothing_heavy() -> None:
    code = (
        "import sys, json; from autotune.client import RoutingClient; "
        "from autotune.vocabulary.problem import Problem; "
        "RoutingClient(gpu='NVIDIA_H200').route(Problem.parse('E=8,N=64,K=64,topk=2,scheme=bf16'), 8); "
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"torch", "triton", "vllm", "sqlalchemy", "alembic", "optuna", "fastapi", "numpy"}
