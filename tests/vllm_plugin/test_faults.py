"""What goes wrong costs speed only: vLLM's own code starts, answers, and one log line names the cause.

Each runs in a process that has vLLM's real source imported (see `conftest.py`). A backend that raises while
it serves is in `test_router.py`, a rank that differs or is missing in `test_ranks.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm_plugin.conftest import TILE
from tests.vllm_plugin.faults import TOO_LARGE

Inside = dict[str, Any]
ON = [TILE.tile.vllm_config(), False]


def own(inside: Inside, tokens: int = 8) -> Any:
    """What vLLM answers without the plugin."""
    return inside["untouched"]["tiles"][str(tokens)]


def the_warning(result: dict[str, Any]) -> str:
    (line,) = [line for line in result["lines"] if line.startswith("WARNING")]
    return str(line)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("nothing", "absent.json cannot be read"),
        ("corrupt", "does not match its content"),
        ("service_down", "gave no usable answer: "),
        ("service_500", "it answered HTTP 500"),
        ("service_cut", "gave no usable answer: Expecting"),
        ("service_lying", "does not match its content"),
        ("service_slow", "no complete answer within 0.5 s"),
        ("stale", "vllm {version} (table: 0.24.0)"),
        ("nvl", "no table is for NVIDIA_H200_NVL; there are tables for NVIDIA_H200"),
    ],
)
def test_vllm_answers_for_itself_and_one_line_says_why(inside: Inside, name: str, cause: str) -> None:
    result = inside[name]
    assert result["tiles"]["8"] == own(inside)
    assert result["order"] == inside["untouched"]["order"]
    said = cause.format(version=inside["version"])
    assert said in the_warning(result)
    assert sum(said in line for line in result["lines"]) == 1, result["lines"]


def test_a_start_is_delayed_by_the_time_out_at_most(inside: Inside) -> None:
    # The rest of a start (importing what the plugin needs) is what a missing file takes.
    rest = inside["nothing"]["took"]
    assert inside["service_slow"]["took"] - rest < 0.5 + 0.5
    assert inside["service_down"]["took"] - rest < 2.0


def test_a_tile_that_does_not_fit_is_never_launched(inside: Inside) -> None:
    for launched, tokens in zip(inside["too_large"]["launched"], ("8", "100"), strict=True):
        tile = inside["too_large"]["tiles"][tokens][0]
        assert tile != TOO_LARGE.tile.vllm_config()
        assert {name: launched[name] for name in tile} == tile
    assert inside["too_large"]["tiles"]["8"] == own(inside)
    line = the_warning(inside["too_large_lines"])
    assert "needs about 294912 bytes of shared memory, the GPU has 232448" in line


def test_a_route_that_does_not_fit_is_not_even_tried(inside: Inside) -> None:
    result = inside["too_large_route"]
    assert result["calls"]["2"]["ran"] == ["own"]
    assert "own" not in result["calls"]["12"]["ran"]
    (line,) = [line for line in result["lines"] if "bytes of shared memory" in line]
    assert "M in 9..16" in line
    assert "triton serves it" in line


@pytest.mark.parametrize("name", ["full_disk", "read_only_cache"])
def test_without_a_disk_the_tables_serve_and_reach_the_children(inside: Inside, name: str) -> None:
    result = inside[name]
    assert result["tiles"]["8"] == ON
    assert result["child"] == 0
    assert "the answer is not kept for later: " in the_warning(result)
    assert ("AUTOTUNE_SNAPSHOT" in result["variables"]) is (name == "read_only_cache")
    assert "AUTOTUNE_SNAPSHOT_DATA" in result["variables"]


def test_a_clock_that_was_set_back_changes_nothing(inside: Inside) -> None:
    result = inside["clock_back"]
    assert result["tiles"]["8"] == ON
    down, clock = [line for line in result["lines"] if line.startswith("WARNING")]
    assert "gave no usable answer" in down
    assert "what serves was kept at 2076-01-01T00:00:00+00:00, ahead of this machine's clock" in clock
    (start,) = [line for line in result["lines"] if "mode route" in line]
    assert "last known good of 2076-01-01" in start


def test_vllm_plugins_decides_whether_it_is_loaded(inside: Inside) -> None:
    assert inside["excluded"] == {"running": False, "tiles": {"8": own(inside)}, "lines": []}
    assert inside["included"]["running"]
    assert inside["included"]["tiles"]["8"] == ON


def test_another_plugin_that_came_first_stays_in_force(inside: Inside) -> None:
    result = inside["another_first"]
    assert result["tiles"] == {"8": ON, "4000": own(inside, 4000)}
    assert result["after"]["8"] == own(inside)
    assert result["theirs"]
    assert result["seen"] == 2
    (line,) = [line for line in result["lines"] if "already replaced" in line]
    assert "get_moe_configs" in line
    assert "fault_scenarios" in line


def test_loading_it_twice_says_so_and_nothing_else_twice(inside: Inside) -> None:
    result = inside["loaded_twice"]
    assert sum("loaded twice in this process" in line for line in result["lines"]) == 1
    assert result["tiles"]["8"] == ON
    assert sum("mode route" in line for line in result["lines"]) == 1
    assert [line for line in result["lines"] if line.startswith("WARNING")] == []
