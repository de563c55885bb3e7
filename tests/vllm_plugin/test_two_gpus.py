"""Tensor parallelism: whole vLLM engines on two GPUs, whose ranks decide alike or not at all."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.vocabulary.candidate import FusedTritonCandidate, Tile
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.problem import Problem
from tests.factories import make_table
from tests.vllm_plugin.whole_engines import serve


def _gpus() -> int:
    if importlib.util.find_spec("vllm") is None:
        return 0
    import torch

    return torch.cuda.device_count()


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(_gpus() < 2, reason="vLLM and two GPUs are needed"),
]
HALF = Problem.parse("E=128,N=384,K=2048,topk=8,scheme=fp8_block128")
"""What one of two ranks computes of a Qwen3-30B-A3B's layer."""
TILE = Tile(block_m=16, block_n=128, block_k=128, num_warps=4, num_stages=3)
OURS = FusedTritonCandidate(gate_up=TILE, down=TILE)


@pytest.fixture(scope="module")
def here() -> Environment:
    from autotune.measure.detect import detect_environment

    return detect_environment()


def table(folder: Path, name: str, here: Environment, **changes: Any) -> str:
    made = make_table(problem=HALF, environment=here, winner=OURS, **changes)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(made.to_json_data()))
    return str(path)


def test_two_ranks_with_one_table_route_alike(here: Environment, tmp_path: Path) -> None:
    one = table(tmp_path, "one", here, tokens=(8, 64), firsts={8: 1})
    served = serve(tmp_path, ranks=2, AUTOTUNE_TABLE=one)
    assert [len(tokens) for tokens in served.tokens] == [12, 12]
    assert served.warnings() == set()
    (alike,) = served.saying("all 2 ranks decide alike: digest ")
    assert len([line for line in served.lines if alike in line]) == 2
    (routing,) = served.saying("routing per call for ")
    assert "N=384" in routing
    assert len([line for line in served.lines if routing in line]) == 2


def test_ranks_with_different_tables_serve_as_stock_vllm(here: Environment, tmp_path: Path) -> None:
    one = table(tmp_path, "one", here, tokens=(8, 64), firsts={8: 1})
    other = table(tmp_path, "other", here, tokens=(8,))
    # Forked workers, which are vLLM's default, have what their parent read: spawned ones read for themselves.
    served = serve(
        tmp_path,
        "random_weights,another_table,autotune",
        ranks=2,
        VLLM_WORKER_MULTIPROC_METHOD="spawn",
        AUTOTUNE_TABLE=one,
        FAULT_TABLE=other,
    )
    assert [len(tokens) for tokens in served.tokens] == [12, 12]
    (line,) = served.saying("fallback on all ranks, vLLM runs unchanged")
    assert "tables: digest " in line
    assert len([said for said in served.lines if line in said]) == 2
    assert not served.saying("routing per call for ")
