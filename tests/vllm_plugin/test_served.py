"""What a worker says of its layers, and the front end's reading of it; no vLLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.vllm_plugin import run_folder
from autotune.vllm_plugin.ledger import Ledger
from autotune.vllm_plugin.route_plan import RoutePlan
from autotune.vllm_plugin.route_reach import outlook
from autotune.vllm_plugin.run_folder import WorkerReport
from autotune.vllm_plugin.served import LayerReport, Served
from autotune.vllm_plugin.step_meter import StepMeter, agreed, layers_of
from autotune.vocabulary.candidate import FlashinferCutlassCandidate, VllmCutlassCandidate
from autotune.vocabulary.table import Miss, RoutingTable
from tests.factories import triton
from tests.vllm_plugin.test_route_plan import DECODE, TENSOR, table_of

BASELINE = FlashinferCutlassCandidate()
PROBLEM = str(TENSOR)


@pytest.fixture
def table() -> RoutingTable:
    """1..10 `fused_decode`, 11..20 Triton, 21..30 vLLM CUTLASS, 31..40 the baseline."""
    return table_of(TENSOR, DECODE, triton(), VllmCutlassCandidate(), None, baseline=BASELINE)


def ledger_of(table: RoutingTable, mode: str = "route") -> tuple[Ledger, RoutePlan]:
    # Our kernel does not read FlashInfer's row order here.
    plan = RoutePlan(TENSOR, outlook(table, "flashinfer_cutlass", lambda backend: False))
    ledger = Ledger(mode)
    ledger.routed(table, plan, 7)
    return ledger, plan


def spans(report: LayerReport, graph: bool = False) -> dict[str, tuple[str, str, str]]:
    return {s.tokens: (s.backend, s.answer, s.reason) for s in (report.graphs if graph else report.eager)}


BASE = "flashinfer_cutlass"
ENDS = {"31..40": (BASE, "route", "no_benefit"), "41..": (BASE, "fallback", "above_range")}


def test_all_token_counts_have_an_answer(table: RoutingTable) -> None:
    ledger, plan = ledger_of(table)
    (report,) = ledger.reports()
    assert spans(report) == {
        "1..10": (BASE, "fallback", "declined"),
        "11..20": (BASE, "fallback", "not_tried"),
        "21..30": (BASE, "fallback", "not_tried"),
        **ENDS,
    }
    plan.prove([1, 2], lambda index, tokens: "it differs" if index == 2 else "")
    (report,) = ledger.reports()
    assert spans(report)["11..20"] == ("triton", "route", "")
    assert spans(report)["21..30"] == (BASE, "fallback", "removed")
    assert [report.at(n, False).tokens for n in (1, 10, 11, 40, 41, 99_999)] == [
        "1..10", "1..10", "11..20", "31..40", "41..", "41..",
    ]  # fmt: skip


def test_gaps_and_what_is_below_are_misses(table: RoutingTable) -> None:
    fields = {**dict(table), "routes": (table.routes[1], table.routes[3])}
    ledger, _ = ledger_of(RoutingTable.model_validate(fields))
    (report,) = ledger.reports()
    assert spans(report)["1..10"] == (BASE, "fallback", "below_range")
    assert spans(report)["21..30"] == (BASE, "fallback", "unmeasured")


def test_a_graph_keeps_what_it_was_captured_with(table: RoutingTable) -> None:
    ledger, plan = ledger_of(table)
    plan.prove([1, 2], lambda index, tokens: "")
    assert ledger.capturing(lambda: 5) == 5
    plan.remove("triton", "it failed")
    (report,) = ledger.reports()
    assert spans(report)["11..20"] == (BASE, "fallback", "removed")
    assert spans(report, graph=True)["11..20"] == ("triton", "route", "")


def test_a_backend_that_leaves_while_graphs_are_captured_is_not_guessed_at(table: RoutingTable) -> None:
    ledger, plan = ledger_of(table)
    plan.prove([1, 2], lambda index, tokens: "")
    ledger.capturing(lambda: plan.remove("triton", "it failed"))
    (report,) = ledger.reports()
    assert spans(report, graph=True)["11..20"] == ("unknown", "unknown", "left_during_capture")
    assert spans(report, graph=True)["21..30"] == ("vllm_cutlass", "route", "")
    assert spans(report)["11..20"] == (BASE, "fallback", "removed")


def test_observing_says_what_would_serve(table: RoutingTable) -> None:
    ledger, _ = ledger_of(table, "observe")
    (report,) = ledger.reports()
    assert report.mode == "observe"
    assert spans(report)["11..20"] == ("triton", "route", "")
    assert spans(report)["1..10"] == (BASE, "fallback", "declined")


def test_a_layer_that_is_not_routed_says_why() -> None:
    ledger = Ledger("route")
    ledger.refused(PROBLEM, "triton", "no table", Miss.STALE)
    ledger.refused("Marlin", "", "the quantization is not one that is measured", None)
    stale, other = ledger.reports()
    assert spans(stale) == {"1..": ("triton", "fallback", "stale")}
    assert spans(other) == {"1..": ("vllm", "fallback", "not_routed")}


def test_calls_are_counted_from_ready_on_and_a_line_says_each(table: RoutingTable) -> None:
    ledger, plan = ledger_of(table)
    plan.prove([1, 2], lambda index, tokens: "")
    assert plan.calls is None
    ledger.ready()
    plan.calls = {(12, 1): 3, (15, 1): 2, (50, 0): 1}
    assert ledger.lines() == [
        f"{PROBLEM}: 11..20 triton: 5 layer calls",
        f"{PROBLEM}: 41.. fallback (above_range), {BASE} serves: 1 layer calls",
    ]
    plan.remove("triton", "it failed")
    assert ledger.lines()[0] == f"{PROBLEM}: 11..20 triton, until it left: 5 layer calls"


def worker(rank: int, layer: LayerReport, pid: int | None = None) -> WorkerReport:
    return WorkerReport(pid or os.getpid(), rank, "", (layer,), {"k": 1}, {}, 4)


def test_ranks_that_differ_are_not_guessed_at(table: RoutingTable) -> None:
    ledger, plan = ledger_of(table)
    plan.prove([1, 2], lambda index, tokens: "")
    (one,) = ledger.reports()
    plan.remove("triton", "it failed on this rank")
    (two,) = ledger.reports()
    (ranks,) = layers_of([worker(0, one), worker(1, two)]).values()
    assert agreed(ranks, 12, graph=False) == Served(11, 20, "unknown", "unknown", "ranks_differ")
    assert agreed(ranks, 25, graph=False).backend == "vllm_cutlass"


def test_each_rank_is_named_with_what_it_compiled(
    table: RoutingTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_folder.VARIABLE, str(tmp_path))
    (layer,) = ledger_of(table)[0].reports()
    for rank, pid in enumerate((1, os.getppid(), os.getpid())):
        assert run_folder.write(worker(rank, layer, pid), os.environ) == ""
    meter = StepMeter()
    meter.flush()
    assert [line for line in meter.compile_lines() if "compiled" in line] == [
        f"Triton variants compiled after ready on rank {rank}: 1 (k 1)" for rank in (0, 1)
    ]


def test_reports_pass_through_the_folder(table: RoutingTable) -> None:
    env: dict[str, str] = {}
    assert run_folder.make_folder(env) == ""
    folder = Path(env[run_folder.VARIABLE])
    try:
        assert run_folder.is_front_end(env)
        (layer,) = ledger_of(table)[0].reports()
        sent = worker(0, layer)
        assert run_folder.read(env) == ([], "no worker on this host has said what serves")
        assert run_folder.write(sent, env) == ""
        assert run_folder.write(worker(1, layer, pid=2**22 + 1), env) == "", "a process that is gone"
        assert run_folder.read(env) == ([sent], "")
        assert run_folder.write(worker(0, layer, pid=os.getppid()), env) == ""
        with pytest.raises(run_folder.AmbiguousError, match="two engines"):
            run_folder.read(env)
        (folder / "worker-9-9.json").write_text("{")
        assert "worker-9-9.json cannot be read" in run_folder.read(env)[1]
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    assert "names no folder on this host" in run_folder.write(sent, env)
