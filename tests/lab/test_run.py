"""`autotune lab run` with vLLM's own client and stand-ins for its servers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.lab.children import stop_leftovers
from autotune.lab.client import BenchClient
from autotune.lab.results import Folder
from autotune.vocabulary.errors import AutotuneError
from tests.lab.labs import Lab, stand_in_plan

EQUAL = {"STAND_IN_MS": "9"}
FASTER = {"STAND_IN_MS": "7.5"}
"""A fifth more tokens a second."""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def gone(port: int, seconds: float = 15.0) -> bool:
    """Whether nothing listens there any more, soon."""
    deadline = time.monotonic() + seconds
    while listens(port) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not listens(port)


def counted(file: Path) -> int:
    return len(file.read_text()) if file.exists() else 0


@pytest.mark.slow
def test_a_killed_run_goes_on_and_measures_nothing_twice(model: Path, tmp_path: Path) -> None:
    counts = {name: tmp_path / f"{name}.count" for name in ("stock", "fast")}
    plan = stand_in_plan(
        {**EQUAL, "STAND_IN_COUNT": str(counts["stock"])},
        {**FASTER, "STAND_IN_COUNT": str(counts["fast"])},
    )
    lab = Lab(tmp_path, model, plan)
    run = lab.start()
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("[5/12]"):
            break
    run.send_signal(signal.SIGKILL)
    run.wait()
    # The servers go with the run that started them.
    assert gone(lab.port)
    assert gone(lab.port + 1)
    first = {file.name: file.read_bytes() for file in (lab.folder / "results").glob("*.json")}
    assert 5 <= len(first) < 12
    (lab.folder / "results" / ".r9.json.part").write_text("{")

    assert f"done: autotune lab report {lab.folder}" in lab.do_both("run")
    folder = Folder(lab.folder)
    assert len(folder.pairs(plan)) == 6
    after = {file.name: file.read_bytes() for file in (lab.folder / "results").glob("*.json")}
    assert len(after) == 12
    assert {name: after[name] for name in first} == first
    served = {name: counted(file) for name, file in counts.items()}
    assert "12 of 12 measurements are there" in lab.do_both("run")
    assert {name: counted(file) for name, file in counts.items()} == served

    report = json.loads(lab.do("report", "--json", "--plot", str(tmp_path / "lab.svg")))
    assert report["pairs"] == report["pairs_wanted"] == 6
    by_metric = {(c["metric"], c["concurrency"]): c for c in report["comparisons"]}
    for concurrency in (1, 2):
        tokens = by_metric["output_throughput", concurrency]
        assert tokens["ratio"] == pytest.approx(1.2, rel=0.05)
        assert tokens["low"] > 1.08
        assert tokens["outcome"] == "better"
        end = by_metric["p50_e2el_ms", concurrency]
        assert end["ratio"] == pytest.approx(1 / 1.2, rel=0.05)
        assert end["high"] < 0.94
        assert end["outcome"] == "better"
        assert end["reference"] == pytest.approx(20 * 9, rel=0.15)
    assert "<svg" in (tmp_path / "lab.svg").read_text()
    text = lab.do("report")
    assert "better in output tokens/s" in text
    assert "weights_gib 29.5" in text

    # Results of another boot never make a pair with results of this one.
    stock = lab.folder / "results" / f"r1-{plan.points[0].name}-stock.json"
    foreign = json.loads(stock.read_text())
    foreign["place"]["boot"] = "another"
    stock.write_text(json.dumps(foreign))
    assert len(folder.pairs(plan)) == 5
    assert "[12/12]" in lab.do_both("run")
    again = folder.pair(plan, 1, plan.points[0])
    assert again is not None
    assert {result.place.boot for result in again.results.values()} != {"another"}
    unchanged = {n: f for n, f in after.items() if n != stock.name}
    now = {file.name: file.read_bytes() for file in (lab.folder / "results").glob("*.json")}
    assert {name: now[name] for name in unchanged} == unchanged


def test_a_pair_begun_elsewhere_is_measured_again_whole(model: Path, tmp_path: Path) -> None:
    from autotune.lab.machine import this_place
    from autotune.lab.running import missing

    plan = stand_in_plan(EQUAL, EQUAL)
    folder = Folder(tmp_path)
    folder.open(plan)
    here = this_place()
    assert here.boot
    there = here.model_copy(update={"boot": "another"})
    from autotune.lab.results import Result

    point = plan.points[0]
    for round_, arms, place in ((0, ("stock", "fast"), there), (1, ("stock",), there), (2, ("fast",), here)):
        for name in arms:
            result = Result(
                plan=plan.digest, round=round_, point=point.name, arm=name, place=place, start="x.log",
                figures={}, compiles=(), compiles_since_ready=0, lines=(),
            )  # fmt: skip
            folder.save(result, point, plan.arm(name))
    todo = [(round_, arm.name) for round_, at, arm in missing(plan, folder, here) if at == point]
    # Whole elsewhere: kept. Begun elsewhere: all of it. Begun here: the rest.
    assert todo == [(1, "fast"), (1, "stock"), (2, "stock")]


@pytest.mark.slow
def test_equal_servers_are_no_difference(model: Path, tmp_path: Path) -> None:
    lab = Lab(tmp_path, model, stand_in_plan(EQUAL, EQUAL))
    lab.do("run")
    report = json.loads(lab.do("report", "--json", "--margin", "0.02"))
    outcomes = {
        (c["metric"], c["concurrency"]): c["outcome"]
        for c in report["comparisons"]
        if c["metric"] in ("output_throughput", "p50_e2el_ms", "p50_tpot_ms")
    }
    assert set(outcomes.values()) == {"no difference"}, outcomes
    assert "no benefit" in lab.do("report", "--margin", "0.5")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        pytest.param({"STAND_IN_LOSE": "5"}, "requests completed", marks=pytest.mark.slow),
        pytest.param({"STAND_IN_DIE": "4"}, "The server of fast ended with 7", marks=pytest.mark.slow),
    ],
)
def test_what_fails_is_no_figure(model: Path, tmp_path: Path, env: dict[str, str], message: str) -> None:
    lab = Lab(tmp_path, model, stand_in_plan(EQUAL, {**EQUAL, **env}))
    error = lab.do("run", fails=True)
    assert message in error
    assert "fast-1.log" in error or "client.log" in error
    assert not list((lab.folder / "results").glob("*-fast.json"))
    assert gone(lab.port)


def test_a_server_that_does_not_start_is_an_error_that_names_its_log(model: Path, tmp_path: Path) -> None:
    plan = stand_in_plan(server=("{python}", "-c", "raise SystemExit('no such thing')"))
    lab = Lab(tmp_path, model, plan)
    error = lab.do("run", fails=True)
    assert "The server of stock ended with 1" in error
    log = lab.folder / "logs" / "stock-1.log"
    assert str(log) in error.replace("\n", "")
    assert "no such thing" in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_stops_its_servers(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    lab = Lab(tmp_path, model, stand_in_plan({"STAND_IN_MS": "50"}, {"STAND_IN_MS": "50"}))
    run = lab.start()
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("rehearsing"):
            break
    assert listens(lab.port + 1)
    run.send_signal(number)
    run.communicate(timeout=60)
    assert run.returncode == (143 if number is signal.SIGTERM else 130)
    assert not listens(lab.port)
    assert not listens(lab.port + 1)


def test_a_taken_port_and_a_taken_folder_are_refused(model: Path, tmp_path: Path) -> None:
    lab = Lab(tmp_path, model, stand_in_plan(EQUAL, EQUAL))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", lab.port + 1))
        taken.listen()
        assert f"Port {lab.port + 1} is taken" in lab.do("run", fails=True)
    with Folder(lab.folder).locked():
        assert "Another run works in" in lab.do("run", fails=True)
    lab.plan_file.write_text(stand_in_plan(FASTER, EQUAL).model_dump_json())
    assert "another plan" in lab.do("run", fails=True)


@pytest.mark.slow
def test_a_cold_cache_is_empty_each_time_and_nothing_runs_ahead(model: Path, tmp_path: Path) -> None:
    counts = {name: tmp_path / f"{name}.count" for name in ("stock", "fast")}
    envs = [{"STAND_IN_MS": "1", "STAND_IN_COUNT": str(counts[name])} for name in ("stock", "fast")]
    line = "WARNING Triton kernel JIT compilation during inference: fused_moe_kernel. This causes a latency"
    envs[1] |= {"STAND_IN_LOG": line, "STAND_IN_BUILDS": "2"}
    plan = stand_in_plan(*envs, cache="cold", servers="one at a time")
    plan = plan.model_copy(update={"points": plan.points[:1]})
    lab = Lab(tmp_path, model, plan)
    lab.do("run")
    folder = Folder(lab.folder)
    starts = folder.starts()
    assert len(starts) == 6
    assert {(start.cache, start.alone) for start in starts} == {("empty", True)}
    # Three rounds of six requests twice, and not one more.
    assert {counted(file) for file in counts.values()} == {36}
    report = json.loads(lab.do("report", "--json"))
    stock, fast = report["arms"]
    assert len(stock["ready_s"]["empty"]) == 3
    assert stock["compiles"] == {}
    # Two of DeepGEMM's in each of three cold servers; the one that each built at its start is none of them.
    assert fast["compiles"] == {"fused_moe_kernel": 18, "deep_gemm:fp8_gemm": 6}
    fast_results = [pair.results["fast"] for pair in folder.pairs(plan)]
    assert {result.compiles_since_ready for result in fast_results} == {8}
    assert {result.compiles_again for result in fast_results} == {("fused_moe_kernel",) * 6}
    assert [row["arm"] for row in report["cold_over_warm"]] == ["stock", "fast"]
    assert "the same load again on each server\n  stock, c1-" in lab.do("report")


@pytest.mark.slow
def test_cold_servers_of_a_pair_start_side_by_side_and_again_for_each_pair(
    model: Path, tmp_path: Path
) -> None:
    plan = stand_in_plan(EQUAL, FASTER, cache="cold", servers="together")
    lab = Lab(tmp_path, model, plan)
    said = lab.do_both("run", "--start-at-once")
    folder = Folder(lab.folder)
    starts = folder.starts()
    # Three rounds of two points with two arms.
    assert len(starts) == 12
    assert {(start.cache, start.alone) for start in starts} == {("empty", False)}
    told = [line.split()[0] for line in said.splitlines() if line.startswith(("starting", "["))]
    assert told == [
        word for n in range(1, 13, 2) for word in ("starting", "starting", f"[{n}/12]", f"[{n + 1}/12]")
    ]
    assert all(r.again["output_throughput"] > 0 for p in folder.pairs(plan) for r in p.results.values())
    # Resumed in the middle of a pair, only the arm that is missing starts.
    broken = folder.path / "results" / f"r1-{plan.points[1].name}-fast.json"
    broken.write_text("{")
    again = lab.do_both("run", "--start-at-once")
    assert f"{broken} is no result of this plan at that place: it is measured again" in again
    assert [line.split()[1] for line in again.splitlines() if line.startswith("starting")] == ["fast"]
    assert "--outputs asks" in lab.do("run", "--outputs", fails=True)


def test_leftovers_are_told_by_when_they_started(tmp_path: Path) -> None:
    note = tmp_path / "running.json"
    # This very process, as a note of an earlier boot could name it.
    note.write_text(json.dumps({str(os.getpid()): "1"}))
    assert stop_leftovers(note) == 0
    for other in ("{", "[" * 100_000, '{"x": "1"}', "7"):
        note.write_text(other)
        assert stop_leftovers(note) == 0


@pytest.mark.parametrize(
    ("says", "fault"),
    [
        ("", "The benchmark's client ended with 3"),
        ('{"ready": true}\n', "The benchmark's client ended with 3"),
        ('{"ready": true}\n{"completed', "The benchmark's client ended with 3"),
        ('{"ready": true}\n{}\n', "None of 6 requests completed"),
        ('{"ready": true}\n{"completed": 6}\n', "None of 120 tokens came back"),
        (
            '{"ready": true}\n{"completed": 6, "total_output_tokens": 120, "p95_ttft_ms": NaN}\n',
            "The benchmark's p95_ttft_ms is nan",
        ),
    ],
)
def test_a_client_that_ends_or_tells_no_figures_is_named_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, fault: str
) -> None:
    monkeypatch.setattr("autotune.lab.client._DYING_S", 0.0)
    code = f"import sys; sys.stdout.write({says!r}); sys.exit(3)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    # Gone before it is asked: its pipe is broken, as a terminal's is that nobody reads any more.
    process.wait(30)
    assert process.stdin is not None
    if says.count("\n") > 1:  # it answers, so that it must have been there
        process.stdin.close()
        process.stdin = (tmp_path / "asked").open("wb")
    with pytest.raises(AutotuneError, match=fault) as told:
        BenchClient(process, tmp_path / "client.log").measure(
            [], stand_in_plan().points[0], lambda: None, 30.0
        )
    assert "client.log" in str(told.value)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    assert process.stdout is not None
    process.stdout.close()
