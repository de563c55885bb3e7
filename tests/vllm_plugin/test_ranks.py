"""Two ranks decide alike or not at all: vLLM's own start of two connected workers, by fork and by spawn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vllm_plugin.conftest import (
    HERE,
    OTHER_TILE,
    ROOT,
    TILE,
    VERSIONS,
    _clean_environment,
    _file,
    main_table,
)

ON = [TILE.tile.vllm_config(), False]
TIMEOUT_S = 3.0
Ranks = dict[str, Any]


# The cases wait for time-outs, two minutes a version; that each version has the hook is tested besides.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=VERSIONS)
def ranks(
    request: pytest.FixtureRequest, vllm_path: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Ranks:
    """What each rank of each case found, for one vLLM version."""
    version: str = request.param
    folder = tmp_path_factory.mktemp(f"ranks-{version}")
    out = folder / "results.json"
    spec = {
        "path": [*vllm_path[version], str(HERE), str(ROOT)],
        "cases": [*_cases(version, folder, "fork"), *_cases(version, folder, "spawn")],
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "two_ranks.py"), str(out)],
        input=json.dumps(spec), text=True, capture_output=True, timeout=900, check=False,
        env={**_clean_environment(), "CUDA_VISIBLE_DEVICES": "", "VLLM_HOST_IP": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    results: Ranks = json.loads(out.read_text())
    failed = {name: [r["error"] for r in pair if "error" in r] for name, pair in results.items()}
    assert not any(failed.values()), "\n".join(f"{n}: {e}" for n, errors in failed.items() for e in errors)
    return results


def _cases(version: str, folder: Path, start: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    one = _file(folder, f"one-{start}", main_table(version))
    other = _file(folder, f"other-{start}", main_table(version, winner=OTHER_TILE))

    def env(name: str, table: str | None, **more: str) -> dict[str, str]:
        source = {"AUTOTUNE_TABLE": table} if table else {}
        return {
            "AUTOTUNE_TIMEOUT": str(TIMEOUT_S), "VLLM_PLUGINS": "autotune", **source,
            "AUTOTUNE_CACHE": str(folder / f"cache-{start}-{name}"), **more,
        }  # fmt: skip

    def add(
        name: str, engine: dict[str, str] | None, first: dict[str, str], second: dict[str, str], **more: Any
    ) -> None:
        case = {"name": f"{start}_{name}", "start": start, "engine": engine, "ranks": [first, second]}
        listed.append({**case, **more})

    gone = _file(folder, f"gone-{start}", main_table(version))
    add("children", env("children", gone), {}, {}, remove=[gone])
    add("different", None, env("first", one), env("second", other))
    add("excluded", None, env("first", one), env("second", one, VLLM_PLUGINS="another"))
    if start == "spawn":
        return listed
    ray = _file(folder, "ray", main_table(version))
    add("ray", env("ray", ray), {}, {}, remove=[ray], remove_snapshot=True, carry=True)
    add("hosts", None, env("first", one), env("second", one))
    add("no_table", None, env("first", one), env("second", str(folder / "absent.json")))
    add("off", None, env("first", one), env("second", one, AUTOTUNE_MODE="off"))
    add("modes", None, env("first", one), env("second", one, AUTOTUNE_MODE="tiles"))
    add("late", None, env("first", one), env("second", one), late_s=TIMEOUT_S + 1.5)
    add("changed", None, env("first", one), env("second", one), changed=True)
    return listed


def warnings(rank: dict[str, Any]) -> list[str]:
    return [line for line in rank["lines"] if line.startswith("WARNING")]


def states(rank: dict[str, Any]) -> set[str]:
    """States of the features that decide by a table."""
    return {state for name, (state, _) in rank["features"].items() if name != "ranks"}


def assert_fallback(rank: dict[str, Any], said: str) -> None:
    assert rank["tiles"] not in (ON, [OTHER_TILE.tile.vllm_config(), True])
    assert states(rank) <= {"disabled"}
    causes = [line for line in warnings(rank) if "fallback on all ranks" in line]
    assert len(causes) == 1, rank["lines"]
    assert said in causes[0]
    assert not [line for line in warnings(rank) if "disabled" in line], "a line for each feature"


@pytest.mark.parametrize("name", ["fork_children", "spawn_children", "fork_ray", "fork_hosts"])
def test_ranks_with_one_table_apply_it(ranks: Ranks, name: str) -> None:
    for rank in ranks[name]:
        assert rank["tiles"] == ON, rank["lines"]
        assert states(rank) == {"applied"} or states(rank) == {"applied", "waiting"}
        assert warnings(rank) == []
        assert any("all 2 ranks decide alike: digest " in line for line in rank["lines"])
        assert rank["took"] < TIMEOUT_S, "alike ranks wait for each other only"
    first, second = ranks[name]
    assert first["snapshot"] == second["snapshot"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_ranks_with_different_tables_apply_none(ranks: Ranks, start: str) -> None:
    first, second = ranks[f"{start}_different"]
    assert first["snapshot"] != second["snapshot"]
    said = f"tables: digest {first['snapshot'][:16]} on rank 0; digest {second['snapshot'][:16]} on rank 1"
    for rank in (first, second):
        assert_fallback(rank, said)
        assert rank["took"] < TIMEOUT_S


@pytest.mark.parametrize("name", ["fork_excluded", "spawn_excluded", "fork_off"])
def test_a_rank_without_the_plugin_is_waited_for_no_longer_than_the_time_out(ranks: Ranks, name: str) -> None:
    first, second = ranks[name]
    assert_fallback(first, f"rank 1 of 2 did not tell its tables within {TIMEOUT_S:g} s")
    assert TIMEOUT_S <= first["took"] < TIMEOUT_S + 3
    assert second["features"] == {}
    assert second["tiles"] == first["tiles"]
    assert second["took"] < TIMEOUT_S, "vLLM itself waits for nobody"


def test_a_rank_without_a_table_keeps_the_others_from_theirs(ranks: Ranks) -> None:
    first, second = ranks["fork_no_table"]
    said = f"tables: digest {first['snapshot'][:16]} on rank 0; none on rank 1"
    assert_fallback(first, said)
    assert_fallback(second, said)
    assert any("absent.json cannot be read" in line for line in warnings(second))


def test_other_settings_on_one_rank_count_too(ranks: Ranks) -> None:
    for rank in ranks["fork_modes"]:
        assert_fallback(rank, "AUTOTUNE_MODE: route on rank 0; tiles on rank 1")


def test_a_rank_that_comes_too_late_follows_the_verdict(ranks: Ranks) -> None:
    # By then it sees everybody's tables, and they are alike.
    for rank in ranks["fork_late"]:
        assert_fallback(rank, "rank 1 of 2 did not tell its tables")


def test_a_vllm_that_connects_ranks_otherwise_means_fallback(ranks: Ranks) -> None:
    for rank in ranks["fork_changed"]:
        state, reason = rank["features"]["ranks"]
        assert state == "disabled"
        assert "takes (vllm_config, rank, method, local_rank, backend)" in reason
        assert rank["tiles"] != ON
        assert {s for n, (s, _) in rank["features"].items()} == {"disabled"}
        (cause,) = [line for line in warnings(rank) if "fallback on all ranks" in line]
        assert "the tables of 2 ranks were not compared: this vLLM differs from what is needed" in cause
