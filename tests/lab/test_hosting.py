"""How arms are started: tables, plugins, caches and memory, with stand-ins for the servers."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from autotune.cli.lab_plan import starter_table
from autotune.lab.arms import named_arms
from autotune.lab.hosting import VLLM_SERVE, Host
from autotune.lab.machine import gpu_memory_of, this_place
from autotune.lab.metrics import steps
from autotune.lab.outputs import Asked
from autotune.lab.plan import Plan
from autotune.lab.results import Folder
from autotune.lab.running import Options, greedy_outputs, run_plan
from autotune.lab.tables import read_table
from autotune.vocabulary.errors import AutotuneError, UsageError
from autotune.vocabulary.problem import Scheme
from autotune.vocabulary.table import RoutingTable
from tests.lab.labs import free_ports, stand_in_plan

TABLE = starter_table("fp8_tensor")


def host_of(plan: Plan, folder: Path) -> Host:
    kept = Folder(folder)
    kept.open(plan)
    return Host(plan, kept, this_place(), Path("/no/model"), TABLE, free_ports(8), 60.0, lambda _: None)


@pytest.mark.slow
def test_each_arm_gets_its_table_its_plugins_and_its_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the user has set for the plugin reaches no arm.
    monkeypatch.setenv("AUTOTUNE_MODE", "off")
    monkeypatch.setenv("AUTOTUNE_URL", "http://127.0.0.1:9")
    arms = named_arms(["stock", "all", "fused_decode"], Scheme.FP8_TENSOR)
    plan = stand_in_plan(
        arms=[arm.model_dump() for arm in arms],
        table=read_table(TABLE).digest,
        env={"VLLM_DEEP_GEMM_WARMUP": "skip"},
    )
    # What a start that was killed leaves is no cache that a server got ready with.
    (tmp_path / "cache" / "stock" / "triton").mkdir(parents=True)
    with host_of(plan, tmp_path) as host:
        starts = {arm.name: host.ready(arm).start for arm in plan.arms}
    assert {start.cache for start in starts.values()} == {"empty"}
    environments = {name: start.environment for name, start in starts.items()}
    assert {env["VLLM_DEEP_GEMM_WARMUP"] for env in environments.values()} == {"skip"}
    assert environments["stock"]["VLLM_PLUGINS"] == "random_weights"
    assert not [name for name in environments["stock"] if name.startswith("AUTOTUNE_")]
    for name in ("all", "fused_decode"):
        assert environments[name]["VLLM_PLUGINS"] == "random_weights,autotune"
    assert "AUTOTUNE_MODE" not in environments["all"]
    # The service holds the whole table as the first revision.
    assert "autotune: the service has revisions [1]" in starts["all"].lines
    handed = Path(environments["fused_decode"]["AUTOTUNE_TABLE"])
    table = RoutingTable.from_json_data(json.loads(handed.read_text()))
    assert {r.winner.backend for r in table.routes if r.speedup} == {"fused_decode"}
    assert environments["fused_decode"]["AUTOTUNE_MODE"] == "route"
    for variable in ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "DG_JIT_CACHE_DIR"):
        assert len({env[variable] for env in environments.values()}) == 3
    assert [starts[arm.name].alone for arm in plan.arms] == [True, False, False]
    again = host_of(plan, tmp_path)
    with again:
        assert again.ready(plan.arms[0]).start.cache == "kept"


def test_resident_servers_share_the_memory(tmp_path: Path) -> None:
    plan = stand_in_plan(server=VLLM_SERVE)
    words = host_of(plan, tmp_path)._command(plan.arms[1])
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.450"
    alone = plan.model_copy(update={"servers": "one at a time"})
    assert words[words.index("serve") + 1] == "/no/model"
    host = host_of(plan, tmp_path)
    host.plan = alone
    words = host._command(plan.arms[0])
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.900"
    assert not any("{" in word for word in words)


def test_an_arm_without_routes_is_refused_before_anything_starts(tmp_path: Path) -> None:
    table = starter_table("fp8_block128")
    arms = named_arms(["swap_ab"], Scheme.FP8_BLOCK128)
    given = {"arms": [arm.model_dump() for arm in arms], "table": read_table(table).digest}
    plan = stand_in_plan(**given, scheme="fp8_block128")
    with pytest.raises(UsageError, match="no winning route for the arm 'swap_ab'"):
        run_plan(plan, Folder(tmp_path), Options(table=table), print)
    with pytest.raises(UsageError, match="is not the plan's"):
        run_plan(plan, Folder(tmp_path), Options(table=TABLE), print)
    with pytest.raises(UsageError, match="--table"):
        run_plan(plan, Folder(tmp_path), Options(), print)
    other = stand_in_plan(**given)
    for do in (run_plan, lambda *words: greedy_outputs(*words[:3], Asked(), words[3])):
        with pytest.raises(UsageError, match="vLLM would take nothing from it"):
            do(other, Folder(tmp_path), Options(table=table), print)
    assert not (tmp_path / "logs").exists()


SMI = """#!/bin/sh
case "$1" in
    --query-compute-apps=pid,used_memory) ps -eo pid= | while read pid; do echo "$pid, ANSWER"; done ;;
    --query-gpu=memory.used) echo 9000 ;;
esac
"""
"""A driver that finds every process of this machine on the GPU."""


@pytest.mark.parametrize(("answer", "at_once", "alone"), [("700", 700, 700), ("[N/A]", None, 0)])
def test_a_servers_gpu_memory_is_that_of_its_own_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, at_once: int | None, alone: int
) -> None:
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(SMI.replace("ANSWER", answer))
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    plan = stand_in_plan()
    with host_of(plan, tmp_path / "both") as host:
        host.ready_at_once(plan.arms)
        assert [host.running[arm.name].start.memory_mib for arm in plan.arms] == [at_once] * 2
    with host_of(plan, tmp_path / "one") as host:
        # Without the processes' own, what a start added to all in use.
        assert host.ready(plan.arms[0]).start.memory_mib == alone


def test_a_part_of_a_servers_memory_is_not_told_as_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '{os.getpid()}, 31000'\necho '{os.getpid()}, [N/A]'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu_memory_of(os.getsid(0)) is None


SAMPLES = """\
# HELP autotune_steps_total Engine steps by what served them.
vllm:num_requests_running{engine="0"} 0.0
autotune_steps_total{answer="route",backend="fused_decode",base="triton",graph="FULL",mode="route",problem="E=1",reason="",tokens="5..8"} 2032.0
autotune_steps_total{answer="fallback",backend="triton",base="triton",graph="NONE",mode="route",problem="E=1",reason="unmeasured",tokens="2049..4095"} 57.0
autotune_steps_total{answer="route",backend="fused_decode",base="triton",graph="FULL",mode="route",problem="E=1",reason="",tokens="1"} 1.2e+04
autotune_triton_variants{event="compiled after ready",kernel="fused_moe_kernel",rank="0"} 0.0
"""  # noqa: E501


def test_the_plugins_counts_are_kept_when_a_server_ends(tmp_path: Path) -> None:
    plan = stand_in_plan(fast={"STAND_IN_METRICS": SAMPLES})
    with host_of(plan, tmp_path) as host:
        logs = [host.ready(arm).start.log for arm in plan.arms]
    folder = Folder(tmp_path)
    stock, fast = map(folder.metrics_of, logs)
    assert not stock.exists()
    assert "vllm:" not in fast.read_text()
    assert len(fast.read_text().splitlines()) == 4
    assert steps(fast) == {
        "1 fused_decode, FULL graph": 12000,
        "5..8 fused_decode, FULL graph": 2032,
        "2049..4095 triton (unmeasured), no graph": 57,
    }
    assert steps(stock) == {}


def test_servers_that_start_at_once_are_all_there_or_none_is(tmp_path: Path) -> None:
    plan = stand_in_plan()
    with host_of(plan, tmp_path / "well") as host:
        host.ready_at_once(plan.arms)
        starts = [host.running[arm.name].start for arm in plan.arms]
        noted = json.loads((tmp_path / "well" / "running.json").read_text())
        assert set(noted) == {str(hosted.server.process.pid) for hosted in host.running.values()}
    assert [start.alone for start in starts] == [False, False]
    assert [start.memory_mib for start in starts] == [None, None]
    # The second cannot even read its environment.
    broken = stand_in_plan(fast={"STAND_IN_MS": "fast"})
    with host_of(broken, tmp_path / "ill") as host:
        with pytest.raises(AutotuneError, match="server of fast ended with 1"):
            host.ready_at_once(broken.arms)
        assert list(host.running) == ["stock"]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", host.port)) != 0


@pytest.mark.parametrize(("program", "why"), [("/no/such/binary", "No such file"), ("/etc", "denied")])
def test_a_program_that_cannot_be_run_is_named_with_its_arm(tmp_path: Path, program: str, why: str) -> None:
    plan = stand_in_plan(server=(program, "--port", "{port}"))
    with host_of(plan, tmp_path) as host:
        with pytest.raises(AutotuneError, match="server of stock cannot be started") as told:
            host.ready(plan.arms[0])
        assert why in told.value.message
        assert f"Its command: {program} --port {host.port}" in told.value.message
        assert "`server`" in told.value.hint
        assert not host.running


def test_an_environment_that_is_no_utf8_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_OF_THE_USER", os.fsdecode(b"\xff"))
    plan = stand_in_plan()
    with host_of(plan, tmp_path) as host:
        host.ready(plan.arms[0])
    (start,) = Folder(tmp_path).starts()
    assert start.environment["VLLM_OF_THE_USER"] == "\\udcff"


def test_a_log_has_a_name_that_no_start_has_had(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.open(stand_in_plan())
    for name in ("logs/a-2.log", "starts/a-1.json", "logs/a-b-3.log"):
        (tmp_path / name).touch()
    assert folder.new_log("a").name == "a-3.log"
    assert folder.new_log("a-b").name == "a-b-1.log"


@pytest.mark.parametrize("name", ["site/autotune_random_weights.py", "model-fp8_tensor-2", "running.json"])
def test_what_stands_in_a_files_place_is_named(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, folder = stand_in_plan(), Folder(tmp_path)
    folder.open(plan)
    if name.startswith("model"):
        monkeypatch.setattr("autotune.lab.model._tokenizer_packages", lambda: None)
        (tmp_path / name).touch()
    else:
        (tmp_path / name).mkdir()
    model = None if name.startswith("model") else tmp_path
    options = Options(port=free_ports(4), model=model, start_limit_s=60)
    with pytest.raises(AutotuneError, match=f"{name} cannot be read or written: ") as told:
        greedy_outputs(plan, folder, options, Asked(), print)
    assert told.value.hint.startswith("Move away what is in its place")


def test_servers_need_ports_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 servers from port 65534 on need one above 65535"):
        run_plan(stand_in_plan(), Folder(tmp_path), Options(port=65534), print)


@pytest.mark.parametrize("value", ["1.2.3", "1e999", "e", "."])
def test_a_count_that_is_no_number_is_left_out(tmp_path: Path, value: str) -> None:
    file = tmp_path / "stock-1.metrics"
    sample = 'autotune_steps_total{answer="route",backend="triton",graph="FULL",tokens="1"} '
    file.write_bytes(f"{sample}3.0\n{sample}{value}\n".encode() + b"\xff\n")
    assert steps(file) == {"1 triton, FULL graph": 3}
