"""`autotune jit audit` on vLLM's real kernel, without a GPU: as it is, and without specialization."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.vllm_plugin.conftest import VERSIONS

pytest.importorskip("triton")

PER_TENSOR = "E=128,N=768,K=2048,topk=8,scheme=fp8_tensor"


@pytest.fixture(params=VERSIONS)
def vllm_version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["0.25.1"])
def audits(request: pytest.FixtureRequest, vllm_path: dict[str, list[str]]) -> dict[str, Any]:
    if request.param not in vllm_path:
        pytest.skip(f"vLLM {request.param} is not among AUTOTUNE_VLLM_VERSIONS")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(vllm_path[request.param]),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [
        "-m",
        "autotune",
        "jit",
        "audit",
        "vllm",
        "vllm_unspecialized",
        "--shape",
        PER_TENSOR,
        "--json",
    ]
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return {a["target"]: a for a in json.loads(done.stdout)}


def test_vllms_kernel_compiles_thirty_times(audits: dict[str, Any]) -> None:
    """The count that was seen on an H200 over the same token counts."""
    found = audits["vllm"]
    assert found["compilations"] == 30
    scalars = {name for v in found["variants"] for name in v["scalars"] if v["cause"] == "scalar"}
    assert scalars == {"EM", "num_valid_tokens"}


def test_without_specialization_only_tiles_compile(audits: dict[str, Any]) -> None:
    found = audits["vllm_unspecialized"]
    assert found["compilations"] == 14
    assert found["recompiles"] == 0
    # Strides and pointers keep theirs.
    named = {name for v in found["variants"] for name in v["changed"]}
    assert not named & {"EM", "num_valid_tokens"}


SCRIPT = """
import json, sys
from autotune.measure.jit_audit import audit
from autotune.measure.jit_targets import target_call
from autotune.vllm_plugin.recompiles import Recompiles
from autotune.vocabulary.problem import Problem
import vllm.model_executor.layers.fused_moe.fused_moe as module

problem = Problem.parse(sys.argv[1])
original = module.fused_moe_kernel
first, second = Recompiles(None), Recompiles(None)
for feature in (first, second):  # loaded twice
    feature.install()
    print(feature.state, feature.reason, file=sys.stderr)
applied = module.fused_moe_kernel is not original
with target_call("vllm", problem, False, "NVIDIA_H200") as call:
    found = audit("vllm", call)
second.unapply()
first.unapply()
restored = module.fused_moe_kernel is original
module.fused_moe_kernel = print  # a future vLLM without such a kernel
changed = Recompiles(None)
changed.install()
print(json.dumps({
    "applied": applied, "restored": restored, "compilations": len(found.variants),
    "recompiles": len(found.recompiles), "state": changed.state, "reason": changed.reason,
    "left": module.fused_moe_kernel is print,
}))
"""


@pytest.mark.slow
def test_the_plugin_can_apply_and_take_back_the_unspecialized_kernel(
    vllm_path: dict[str, list[str]], vllm_version: str
) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(vllm_path[vllm_version]),
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command = [sys.executable, "-c", SCRIPT, PER_TENSOR]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["applied"]
    assert found["restored"]
    assert found["recompiles"] == 0
    assert found["compilations"] < 30
    assert (found["state"], found["left"]) == ("disabled", True)
    assert "no triton.jit function" in found["reason"]


@pytest.mark.slow
def test_a_warm_up_knows_every_variant_from_one_token_on(vllm_path: dict[str, list[str]]) -> None:
    version = next(iter(vllm_path))
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(vllm_path[version]),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [
        "-m",
        "autotune",
        "jit",
        "warm-up",
        "--model",
        "qwen-moe-fp8-tensor",
        "--through",
        "1500",
        "--json",
    ]
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    moved = [*command, "--unrouted"]
    there = subprocess.run([sys.executable, *moved], env=env, capture_output=True, text=True, timeout=250)
    assert there.returncode == 0, there.stderr[-3000:]
    assert json.loads(there.stdout)["tiles"].startswith("1..4, 8..96")
    assert found["left_out"] == 0
    # Where a Triton tile won, or serves by the static choice and was re-timed.
    assert found["tiles"] == "129..192"
    # vLLM's six tiles and the table's for 129..192, two GEMMs each, and both once more for few pairs.
    assert (found["stock"], found["variants"]) == (30, 16)
