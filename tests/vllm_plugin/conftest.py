"""Processes with vLLM's real source, one a version, in which the plugin is tried."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from autotune.vocabulary.candidate import (
    Candidate,
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    FusedDecodeCandidate,
    VllmCutlassCandidate,
)
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.problem import Problem, Scheme
from autotune.vocabulary.table import Alternative, RoutingTable, Speedup, Timing
from autotune.vocabulary.wire import encode_tables
from tests.client.servers import Script, http_service, raw_server, silent
from tests.factories import make_published, make_table, triton
from tests.vllm_plugin.faults import TOO_LARGE, TOO_LARGE_OWN, add_faults

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
Env = dict[str, str]
VERSIONS = os.environ.get("AUTOTUNE_VLLM_VERSIONS", "0.25.1").replace(",", " ").split()

BLOCK = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=fp8_block128")
TENSOR = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=fp8_tensor")
CHANNEL = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=fp8_channel")
TILE = triton(32, 64, 128, group_m=3, num_warps=8, num_stages=2)
"""A tile that vLLM has in none of its files, with Swap-AB off where vLLM would have it on."""
OTHER_TILE = triton(64, 64, 64, swap_ab=True)
"""Swap-AB on where vLLM would have it off."""


def here(version: str, **changes: Any) -> Environment:
    """The environment that the plugin finds in those processes."""
    fields = {
        "gpu": "NVIDIA_H200", "capability": "9.0", "vllm": version, "torch": metadata.version("torch"),
        "triton": _installed("triton"), "cuda": None,
    }  # fmt: skip
    return Environment.model_validate({**fields, **changes})


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main_table(version: str, **changes: Any) -> RoutingTable:
    """Covers 1..2 and 4..64."""
    fields: dict[str, Any] = {
        "problem": BLOCK,
        "environment": here(version),
        "winner": TILE,
        "firsts": {4: 4},
    }
    return make_table(**{**fields, **changes})


def static_table(version: str, **changes: Any) -> RoutingTable:
    """Triton beats FlashInfer, the baseline, at all counts of concurrency 8."""
    fields: dict[str, Any] = {
        "problem": TENSOR, "environment": here(version), "winner": TILE, "tokens": (8, 8192),
        "baseline": FlashinferCutlassCandidate(),
    }  # fmt: skip
    return make_table(**{**fields, **changes})


def mixed_table(version: str) -> RoutingTable:
    """FlashInfer stays at 8 tokens by a hair, yet Triton is the better single backend."""
    table = static_table(version, wins={8192: 2.0})
    first = table.routes[0]
    alternative = Alternative(
        candidate=OTHER_TILE,
        first=first.first,
        timing=Timing(
            p50_us=first.baseline_timing.p50_us * 1.005, p95_us=first.baseline_timing.p50_us * 1.02
        ),
        speedup=Speedup(median=0.995, low=0.99),
        final=True,
        evidence=("e" * 64,),
    )
    kept = first.model_copy(update={"alternatives": (alternative,)})
    return RoutingTable.model_validate({**dict(table), "routes": (kept, table.routes[1])})


SMALL = Problem.parse("E=8,N=64,K=128,topk=2,scheme=fp8_tensor")
DECODE = FusedDecodeCandidate(
    block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=64
)


BLOCK_BASELINE = triton(64)


def routed_table(
    version: str, problem: Problem = SMALL, third: Candidate | None = None, **changes: Any
) -> RoutingTable:
    """`fused_decode` wins for 1..4, Triton for 5..8, vLLM CUTLASS for 9..16; the baseline stays to 64."""
    table = make_table(
        **{
            "problem": problem, "environment": here(version), "tokens": (4, 8, 16, 64),
            "baseline": FlashinferCutlassCandidate(), "wins": {4: 1.5, 8: 1.4, 16: 1.3}, "firsts": {4: 1},
            **changes,
        }
    )  # fmt: skip
    # With block scales each step is one scale block.
    blocks = problem.scheme is Scheme.FP8_BLOCK128
    decode = DECODE.model_copy(update={"down_block_k": 128}) if blocks else DECODE
    winners = (decode, TILE, third or VllmCutlassCandidate(), None)
    routes = tuple(
        route.model_copy(update={"winner": winner} if winner else {})
        for route, winner in zip(table.routes, winners, strict=True)
    )
    return RoutingTable.model_validate({**dict(table), "routes": routes})


@pytest.fixture(scope="session")
def vllm_path() -> dict[str, list[str]]:
    """`sys.path` entries for each vLLM version; fetched if they are not there."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import fetch_vllm_sources as fetching
    finally:
        sys.path.pop(0)
    fetching.CACHE.mkdir(parents=True, exist_ok=True)
    with open(fetching.CACHE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        deps = fetching.fetch_deps()
        return {v: [str(fetching.fetch_source(v)), str(deps)] for v in VERSIONS}


@pytest.fixture(scope="session", params=VERSIONS)
def inside(
    request: pytest.FixtureRequest, vllm_path: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Results of all scenarios for one vLLM version, by name; each one that raised is a failed test.

    Made once for all files and workers of a run: pytest would set a parametrized fixture up for each file.
    """
    version: str = request.param
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own
    made = shared / f"vllm-{version}.json"
    with open(shared / f"vllm-{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            made.write_text(json.dumps(_run_inside(version, vllm_path[version], tmp_path_factory)))
    results: dict[str, Any] = json.loads(made.read_text())
    return results


def _run_inside(version: str, path: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp(f"vllm-{version}")
    with contextlib.ExitStack() as stack:
        spec = {
            "path": [*path, str(HERE), str(ROOT)],
            "early": {
                "AUTOTUNE_TABLE": _file(folder, "early", main_table(version)),
                **_own_cache(folder, "early"),
            },
            "scenarios": _scenarios(version, folder, stack),
        }
        out = folder / "results.json"
        done = subprocess.run(
            [sys.executable, str(HERE / "inside.py"), str(out)],
            input=json.dumps(spec), text=True, capture_output=True, timeout=420, check=False,
            env={**_clean_environment(), "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    results = json.loads(out.read_text())
    failed = {name: result["error"] for name, result in results.items() if "error" in result}
    assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())
    return {"version": version, **{name: result["ok"] for name, result in results.items()}}


def _clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE_", "VLLM_", "PYTEST"))}


def _own_cache(folder: Path, name: str) -> dict[str, str]:
    return {"AUTOTUNE_CACHE": str(folder / f"cache-{name}")}


def _file(folder: Path, name: str, *tables: RoutingTable, published: bool = True) -> str:
    path = folder / f"{name}.json"
    data = (
        encode_tables(make_published(t, revision=7) for t in tables)
        if published
        else tables[0].to_json_data()
    )
    path.write_text(json.dumps(data))
    return str(path)


def _scenarios(version: str, folder: Path, stack: contextlib.ExitStack) -> list[dict[str, Any]]:
    main = main_table(version)
    listed: list[dict[str, Any]] = []

    def add(
        name: str, function: str, source: dict[str, str], env: dict[str, str] | None = None, **given: Any
    ) -> None:
        values = {**_own_cache(folder, name), **source, **(env or {})}
        listed.append({"name": name, "function": function, "arguments": given, "env": values})

    def table(name: str, *tables: RoutingTable, published: bool = True) -> dict[str, str]:
        return {"AUTOTUNE_TABLE": _file(folder, name, *tables, published=published)}

    def url(address: str, timeout: str = "5") -> dict[str, str]:
        return {"AUTOTUNE_URL": address, "AUTOTUNE_TIMEOUT": timeout}

    one = table("one", main)
    add("untouched", "untouched", {})
    add("tiles", "tiles", one)
    add("launch", "launch", one, counts=[8, 100])
    add("launch_swapped", "launch", table("swapped", main_table(version, winner=OTHER_TILE)), counts=[8])
    add("off", "quiet", one, {"AUTOTUNE_MODE": "off"}, counts=[8])
    add("observe", "quiet", one, {"AUTOTUNE_MODE": "observe"}, counts=[8])
    for mode in ("tiles", "static"):
        add(f"only_{mode}", "quiet", one, {"AUTOTUNE_MODE": mode}, counts=[8])
    add("bad_mode", "quiet", one, {"AUTOTUNE_MODE": "rout"}, counts=[8])
    add("batch_invariant", "quiet", one, {"VLLM_BATCH_INVARIANT": "1"}, counts=[8])
    add("user_folder", "user_folder", one, folder=str(folder / "own"))
    add("unpublished", "tiles", table("unpublished", main, published=False))
    add("nothing", "quiet", {"AUTOTUNE_TABLE": str(folder / "absent.json")}, counts=[8])
    corrupt = folder / "corrupt.json"
    corrupt.write_text(json.dumps(main.to_json_data()).replace('"margin": 0.01', '"margin": 0.02'))
    add("corrupt", "quiet", {"AUTOTUNE_TABLE": str(corrupt)}, counts=[8])
    old = main_table(version, environment=here(version, vllm="0.24.0"))
    add("stale", "quiet", table("stale", old), counts=[8])
    add("compatible", "quiet", table("stale", old), {"AUTOTUNE_MATCH": "compatible"}, counts=[8])
    add("nvl", "other_gpu", one, gpu="NVIDIA H200 NVL")
    add("not_cuda", "not_cuda", one)
    # What several tables of one name can mean.
    both = table("both", static_table(version), static_table(version, problem=CHANNEL))
    add("colliding", "layers", both, builds=[], scheme=None, block=None)
    add("resolved", "layers", both, builds=[{}], scheme="fp8_channel", block=None)
    add("another_k", "layers", one, builds=[{"hidden_dim": 4096}], scheme="fp8_block128", block=[128, 128])
    add("another_topk", "layers", one, builds=[{"experts_per_token": 4}], scheme=None, block=[128, 128])
    add("lora", "layers", one, builds=[{"is_lora_enabled": True}], scheme=None, block=[128, 128])
    add("half", "layers", one, builds=[{"in_dtype": "float16"}], scheme=None, block=[128, 128])
    add("same_layer", "layers", one, builds=[{}, {}], scheme="fp8_block128", block=[128, 128])
    tensor = table("tensor", static_table(version))
    add("foreign_scheme", "layers", tensor, builds=[{}], scheme="dynamic", block=None)
    # Backends.
    cases = [
        {"scheme": "fp8_tensor"},
        {"scheme": "fp8_tensor", "changes": {"moe_backend": "flashinfer_cutlass"}},
        {"scheme": "fp8_tensor", "env": {"VLLM_USE_DEEP_GEMM": "1"}},
        {"scheme": "fp8_tensor", "env": {"VLLM_USE_FLASHINFER_MOE_FP8": "1"}},
        {"scheme": "fp8_tensor", "changes": {"hidden_dim": 4096}},
        {"scheme": "fp8_tensor", "changes": {"has_bias": True}},
        {"scheme": "dynamic"},
        {"scheme": "fp8_tensor", "changes": {"in_dtype": "float16"}},
        {"scheme": "fp8_tensor", "changes": {"experts_per_token": 300}},
    ]
    add("backend", "backend", tensor, cases=cases)
    add("backend_tiles_mode", "backend", tensor, {"AUTOTUNE_MODE": "tiles"}, cases=cases[:1])
    add("backend_static_mode", "backend", tensor, {"AUTOTUNE_MODE": "static"}, cases=cases[:1], router=True)
    add("backend_observe", "backend", tensor, {"AUTOTUNE_MODE": "observe"}, cases=cases[:1])
    add("backend_other_traffic", "backend", tensor, {"AUTOTUNE_CONCURRENCY": "10000"}, cases=cases[:1])
    add("backend_routed", "backend", tensor, cases=cases[:1], router=True)
    over_triton = static_table(version, baseline=TILE, winner=FlashinferCutlassCandidate())
    add("base_moved", "backend", table("base", over_triton), cases=cases[:1], router=True)
    add("select", "select", tensor, quantization="fp8")
    cutlass = {"winner": VllmCutlassCandidate(), "checkpoint": "compressed-tensors"}
    both_formats = table("formats", static_table(version), static_table(version, **cutlass))
    add("select_compressed", "select", both_formats, quantization="compressed-tensors")
    add("select_fp8", "select", both_formats, quantization="fp8")
    mixed = table("mixed", mixed_table(version))
    add("moved", "moved_tiles", mixed, scheme="fp8_tensor", build=True)
    add("not_moved", "moved_tiles", mixed, {"AUTOTUNE_MODE": "tiles"}, scheme="fp8_tensor", build=True)
    # A vLLM that changed.
    add("changed_signature", "changed_signature", one)
    later = static_table(version, environment=here("0.99.0"))
    add("future", "future", table("future", later), folder=str(folder / "site"))
    add("future_stale", "future", tensor, folder=str(folder / "site-stale"))
    add("changed_lookup", "changed_lookup", one)
    add("changed_oracle", "changed_oracle", one)
    add("twice", "twice", one)
    add("chained", "chained", one)
    add("child", "child", table("child", main))
    add("doctor", "doctor", one)
    # Routing per call.
    small = table("routed", routed_table(version))

    def routing(name: str, function: str, env: dict[str, str] | None = None, **given: Any) -> None:
        add(name, f"{function}@router_scenarios", small, env, **given)

    counts = [1, 4, 5, 8, 9, 16, 17, 64]
    routing("routed", "routed", scheme="fp8_tensor", base="flashinfer", counts=counts)
    routing(
        "routed_one_order", "routed", scheme="fp8_tensor", base="flashinfer", counts=counts, up_first=False
    )
    routing("routed_over_triton", "routed", scheme="fp8_tensor", base="triton", counts=counts)
    bf16 = routed_table(
        version, problem=SMALL.model_copy(update={"scheme": Scheme.BF16}), checkpoint="unquantized"
    )
    add(
        "routed_bf16", "routed@router_scenarios", table("routed-bf16", bf16.model_copy(update={
            "routes": tuple(r for r in bf16.routes if r.winner.backend != "vllm_cutlass")
        })), scheme="bf16", base="flashinfer", counts=[1, 5, 9, 17],
    )  # fmt: skip
    routing("workspaces", "workspaces")
    for how in ("wrong", "nan", "raises"):
        routing(f"probe_{how}", "probe_fails", how=how)
    for name in ("raises_later", "small_first", "tuning", "unwatchable_tuner", "refusals", "hook_later"):
        routing(name, name)
    routing("asked_in_a_call", "asked_in_a_call")
    # 16 pairs, 8 tokens here, are the most that `fused_decode` takes without a list of rows.
    wide = routed_table(version, tokens=(12, 14, 16, 64), wins={12: 1.5, 14: 1.4, 16: 1.3}, firsts={12: 1})
    add("tried", "tried@router_scenarios", table("wide", wide))
    routing("deep_gemm_warmup", "deep_gemm_warmup")
    routing("observed", "observed", {"AUTOTUNE_MODE": "observe"})
    for mode in ("tiles", "static"):
        routing(f"mode_{mode}", "state", {"AUTOTUNE_MODE": mode})
    routing("router_batch_invariant", "state", {"VLLM_BATCH_INVARIANT": "1"})
    routing("router_explicit", "state", {"VLLM_USE_FLASHINFER_MOE_FP8": "1"})
    add("doctor_routed", "doctor", small, shape=str(SMALL))
    as_served: dict[str, dict[str, Any]] = {"set": {"moe_backend": "triton"}, "lora": {"lora": True}}
    for mode in ("tiles", "static"):
        add(f"doctor_{mode}", "doctor", small, {"AUTOTUNE_MODE": mode}, shape=str(SMALL))
    for name, serving in as_served.items():
        add(f"doctor_{name}", "doctor", small, shape=str(SMALL), serving=serving)
    blocks = SMALL.model_copy(update={"scheme": Scheme.FP8_BLOCK128, "N": 128})
    deep = routed_table(version, problem=blocks, baseline=BLOCK_BASELINE, third=DeepGemmCandidate())
    add(
        "routed_block", "routed@router_scenarios", table("routed-block", deep), scheme="fp8_block128",
        base="triton", counts=[1, 5, 9, 16, 17],
    )  # fmt: skip
    # Our gate.
    gate = table("gate", routed_table(version, baseline=BLOCK_BASELINE))

    def gating(name: str, function: str, env: dict[str, str] | None = None, **given: Any) -> None:
        add(name, f"{function}@gate_scenarios", gate, env, **given)

    for renormalize in (True, False):
        gating(f"gate_{renormalize}", "taken", renormalize=renormalize)
    for how in ("wrong", "raises", "later"):
        gating(f"gate_{how}", "fails", how=how)
    gating("gate_refused", "refused")
    gating("gate_reloaded", "reloaded")
    gating("gate_padded", "padded")
    gating("gate_off", "declined", {"AUTOTUNE_GATE": "0"})
    for what in ("signature", "choice"):
        gating(f"gate_changed_{what}", "changed", what=what)
    for what in ("init", "apply", "prepare", "warmup"):
        add(f"changed_{what}", "changed_kernel@router_scenarios", one, what=what)
    # Counts.
    for name, mode in (("counted", "route"), ("counted_observe", "observe")):
        quick = {"AUTOTUNE_MODE": mode, "AUTOTUNE_WARMUP_SECONDS": "0"}
        add(name, "counted@metrics_scenarios", small, quick, log=str(folder / f"{name}.log"))
    off = {"AUTOTUNE_WARMUP_SECONDS": "0"}
    add("counted_two", "counted@metrics_scenarios", small, off, log=str(folder / "two.log"), twice=True)
    add("untold", "untold@metrics_scenarios", small, off)
    add("counts_off", "state@router_scenarios", small, {"AUTOTUNE_METRICS": "0"})
    for what in ("record", "stat", "worker"):
        add(f"counts_changed_{what}", "changed@metrics_scenarios", one, what=what)
    # Services.
    body = encode_tables([make_published(main, revision=7)])
    good, failing, cut, lying = Script(), Script(status=500, body=b"no"), Script(), Script()
    good.says(body, etag='"x"')
    cut.says(body)
    cut.body = cut.body[: len(cut.body) // 2]
    lying.says({**body, "digest": "0" * 64})
    add("service", "quiet", url(stack.enter_context(http_service(good))), counts=[8])
    add("service_500", "quiet", url(stack.enter_context(http_service(failing))), counts=[8])
    add("service_cut", "quiet", url(stack.enter_context(http_service(cut))), counts=[8])
    add("service_lying", "quiet", url(stack.enter_context(http_service(lying))), counts=[8])
    add("service_slow", "quiet", url(stack.enter_context(raw_server(silent)), "0.5"), counts=[8])
    large = main_table(version, winner=TOO_LARGE)
    large_route = routed_table(version, third=TOO_LARGE_OWN, baseline=BLOCK_BASELINE)
    add_faults(add, table, main, large, large_route, stack)
    # Files instead of the plugin.
    from autotune.client.vllm_files import export_vllm

    (file,) = export_vllm([main])
    (folder / "exported").mkdir()
    (folder / "exported" / file.name).write_text(file.text)
    add("exported", "exported", {}, folder=str(folder / "exported"), counts=[1, 2, 3, 4, 5, 8, 9, 33, 64, 65])
    return listed
