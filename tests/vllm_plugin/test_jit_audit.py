"""`autotune jit audit` on vLLM's real kernel, without a GPU: as it is, and without specialization."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton")

PER_TENSOR = "E=128,N=768,K=2048,topk=8,scheme=fp8_tensor"


@pytest.fixture(scope="module", params=["0.25.1"])
def audits(request: pytest.FixtureRequest, vllm_path: dict[str, list[str]]) -> dict[str, Any]:
    if request.param not in vllm_path:
        pytest.skip(f"vLLM {request.param} is not among AUTOTUNE_VLLM_VERSIONS")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(vllm_path[request.param]),
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_LOGGING_LEVEL": "ERROR",
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
    return {a["target"]: a for a in json.loads(done.stdout[done.stdout.index("[\n") :])}


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
