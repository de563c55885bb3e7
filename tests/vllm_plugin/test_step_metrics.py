"""Counts of steps in processes with vLLM's real source (see `conftest.py`), for each version."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.vllm_plugin.conftest import SMALL

Inside = dict[str, Any]
BASE = "flashinfer_cutlass"
SERVED = {
    # Scheduled 3, 3 (decoding): the graph of 4. 6 (prefill): the piecewise graph of 8. 12: that of 16.
    ("1..4", "fused_decode", "route", "", "FULL"): 2,
    ("5..8", "triton", "route", "", "PIECEWISE"): 1,
    ("9..16", "vllm_cutlass", "route", "", "FULL"): 1,
    # Above the largest graph: 40, where the table keeps the baseline, and 70, which it does not know.
    ("17..64", BASE, "route", "no_benefit", "NONE"): 1,
    ("65..", BASE, "fallback", "above_range", "NONE"): 1,
}


def steps(result: Any, mode: str = "route") -> dict[tuple[str, ...], int]:
    """`autotune_steps_total` by range, backend, answer, reason and graph."""
    found = {}
    for line in result["metrics"]:
        match = re.fullmatch(r"autotune_steps_total\{(.*)\} ([\d.]+)", line)
        if match:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
            assert (labels.pop("problem"), labels.pop("base"), labels.pop("mode")) == (str(SMALL), BASE, mode)
            key = tuple(labels[name] for name in ("tokens", "backend", "answer", "reason", "graph"))
            found[key] = int(float(match[2]))
    return found


def test_every_step_is_counted_by_what_served_it(inside: Inside) -> None:
    result = inside["counted"]
    assert result["switched"], "vLLM was not told to state its steps"
    assert steps(result) == SERVED
    assert result["reached vLLM"] == sum(SERVED.values())
    assert result["exit"] == 0


def test_calls_outside_graphs_are_counted_exactly(inside: Inside) -> None:
    calls = [line for line in inside["counted"]["metrics"] if line.startswith("autotune_eager_layer_calls{")]
    # Two layers of one kind, one step each; neither the profiling run nor the capture counts.
    assert sorted(re.sub(r".*tokens=\"([^\"]*)\"} ", r"\1 ", line) for line in calls) == [
        "17..64 2.0", "65.. 2.0",
    ]  # fmt: skip


def test_compilations_reach_the_front_end(inside: Inside) -> None:
    metrics = inside["counted"]["metrics"]
    event = 'event="compiled_after_ready",kernel="fused_moe_kernel",rank="0"'
    assert f"autotune_triton_variants{{{event}}} 1.0" in metrics


def test_both_processes_log_at_their_end(inside: Inside) -> None:
    result = inside["counted"]
    front = [line for line in result["lines"] if "autotune: served:" in line]
    assert len(front) == len(SERVED)
    assert f"INFO autotune: served: {SMALL}: 1..4 fused_decode: 2 steps (FULL)" in front
    fallback = f"65.. fallback (above_range), {BASE} serves: 1 steps (outside CUDA graphs)"
    assert f"INFO autotune: served: {SMALL}: {fallback}" in front
    # The front end says it for the workers, which vLLM may end before they come to it.
    assert "INFO autotune: Triton variants compiled after ready: 1 (fused_moe_kernel 1)" in result["lines"]
    assert "INFO autotune: Triton variants read from disk after ready: 0" in result["lines"]
    worker = result["worker"]
    eager = f"autotune: served outside CUDA graphs: {SMALL}: 65.. fallback (above_range), {BASE} serves"
    assert f"{eager}: 2 layer calls" in worker
    assert "autotune: Triton variants compiled after ready: 1 (fused_moe_kernel 1)" in worker
    assert not [line for line in result["lines"] if line.startswith("WARNING")]


def test_observing_counts_what_would_have_served(inside: Inside) -> None:
    result = inside["counted_observe"]
    assert steps(result, "observe") == SERVED
    assert f"INFO autotune: would have served: {SMALL}: 1..4 fused_decode: 2 steps (FULL)" in result["lines"]
    assert not [line for line in result["lines"] if "autotune: served:" in line]


def test_two_engines_in_one_process_are_not_guessed_apart(inside: Inside) -> None:
    result = inside["counted_two"]
    assert steps(result) == SERVED, "the step that could be either's was counted"
    assert any("two engines share this process" in line for line in result["lines"])
    assert any(line.endswith("1..4 fused_decode: 2 steps (FULL)") for line in result["lines"])


def test_where_vllm_does_not_tell_there_is_no_count_but_a_reason(inside: Inside) -> None:
    result = inside["untold"]
    assert "runs in the front end's process" in result["in process"]
    assert "dual batch overlap" in result["parts"]
    old = tuple(int(part) for part in inside["version"].split(".")) < (0, 30)
    assert ("does not state a step's token count" in result["second runner"]) is old
    assert result["placed"] == []
    assert any("AUTOTUNE_RUN names no folder on this host" in line for line in result["lines"])
    assert any("no step is counted by route: no worker" in line for line in result["lines"])


def test_it_can_be_switched_off(inside: Inside) -> None:
    assert {"counts", "metrics"}.isdisjoint(inside["counts_off"]["features"])


@pytest.mark.parametrize(
    ("what", "name", "said"),
    [
        ("record", "metrics", "StatLoggerManager.record takes (self, stats)"),
        ("stat", "metrics", "CUDAGraphStat has no num_padded_tokens"),
        ("worker", "counts", "no longer contains `self.model_runner.capture_model()`"),
    ],
)
def test_a_changed_vllm_costs_the_counts_alone(inside: Inside, what: str, name: str, said: str) -> None:
    result = inside[f"counts_changed_{what}"]
    state, reason = result["features"].pop(name)
    assert state == "disabled"
    assert said in reason
    if what == "worker":
        # The warm-up needs that method too.
        assert result["features"].pop("warmup")[0] == "disabled"
    assert {state for state, _ in result["features"].values()} == {"applied"}
    assert sum(said in line for line in result["lines"]) == 1
