"""Our kernels behind what vLLM hands its experts: run by Triton's interpreter, and what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.kernels.specs import DECODE_PAIRS
from autotune.vocabulary.candidate import FusedDecodeCandidate
from autotune.vocabulary.problem import Problem, Scheme

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from autotune.vllm_plugin.own_experts import OwnKernel, layer_weights  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = Problem.parse("E=4,N=128,K=256,topk=2,scheme=fp8_block128")
DECODE = FusedDecodeCandidate(
    block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=128
)


@pytest.mark.parametrize(
    ("scheme", "limit"),
    [
        ("fp8_tensor", 4e-2),
        pytest.param("bf16", 1e-2, marks=pytest.mark.slow),
        pytest.param("fp8_block128", 4e-2, marks=pytest.mark.slow),
    ],
)
def test_a_layer_through_the_adapter_is_right(scheme: str, limit: float) -> None:
    """The interpreter truncates where a GPU rounds: FP8 is held to 3e-2 there, to a little more here."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "vllm_plugin" / "own_interpreted.py"), scheme],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert {case["backend"] for case in cases} == {"fused_triton", "fused_decode", "gate"}
    assert len(cases) >= 4
    for case in cases:
        assert case["error"] <= limit, case


def experts(**changes: Any) -> Any:
    fields = {
        "w1_scale": torch.ones(4, 2, 2), "w2_scale": torch.ones(4, 2, 1), "a1_scale": None, "a2_scale": None
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **changes})


def weights(n: int = 128, k: int = 256) -> tuple[Any, Any]:
    return torch.zeros(4, 2 * n, k).to(torch.float8_e4m3fn), torch.zeros(4, k, n).to(torch.float8_e4m3fn)


def test_vllms_tensors_are_taken_without_a_copy() -> None:
    w1, w2 = weights()
    scales = experts()
    taken = layer_weights(PROBLEM, scales, w1, w2)
    assert taken.w13 is w1
    assert taken.w2 is w2
    assert taken.w13_scale.data_ptr() == scales.w1_scale.data_ptr()


@pytest.mark.parametrize(
    ("changes", "shapes", "said"),
    [
        ({}, (64, 256), "weights of"),
        ({"w1_scale": torch.ones(4, 2, 1)}, (128, 256), "weight scales of"),
        ({"w2_scale": None}, (128, 256), "weight scales of None"),
        ({"w1_scale": torch.ones(4, 2, 2).transpose(1, 2)}, (128, 256), "weight scales of"),
        ({"w1_scale": torch.ones(4, 2, 2, dtype=torch.bfloat16)}, (128, 256), "scales in torch.bfloat16"),
    ],
)
def test_other_shapes_are_refused(changes: dict[str, Any], shapes: tuple[int, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        layer_weights(PROBLEM, experts(**changes), *weights(*shapes))


def test_weights_of_another_type_are_refused() -> None:
    w1, w2 = weights()
    with pytest.raises(ValueError, match=r"weights in torch.bfloat16 and torch.float8_e4m3fn"):
        layer_weights(PROBLEM, experts(), w1.to(torch.bfloat16), w2)


@pytest.mark.parametrize("scale", [None, torch.ones(4), torch.ones(1, dtype=torch.bfloat16)])
def test_static_scales_must_be_one_number(scale: Any) -> None:
    problem = PROBLEM.model_copy(update={"scheme": Scheme.FP8_TENSOR})
    given = experts(w1_scale=torch.ones(4), w2_scale=torch.ones(4), a1_scale=scale, a2_scale=torch.ones(1))
    with pytest.raises(ValueError, match="not one float32 number"):
        layer_weights(problem, given, *weights())


def call(**changes: Any) -> None:
    w1, w2 = weights()
    given: dict[str, Any] = {
        "output": torch.empty(3, 256, dtype=torch.bfloat16),
        "hidden_states": torch.zeros(3, 256, dtype=torch.bfloat16), "w1": w1,
        "w2": w2, "topk_weights": torch.ones(3, 2), "topk_ids": torch.zeros(3, 2, dtype=torch.int32),
        "activation": None, "global_num_experts": 4, "expert_map": None, "a1q_scale": None, "a2_scale": None,
        "workspace13": None, "workspace2": None, "expert_tokens_meta": None,
        "apply_router_weight_on_input": False,
    }  # fmt: skip
    OwnKernel(PROBLEM, DECODE, experts(), "gate_up").apply(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"expert_map": torch.zeros(8)}, "an expert map"),
        ({"apply_router_weight_on_input": True}, "the router's weights on the input"),
        ({"hidden_states": torch.zeros(3, 256)}, "input in torch.float32"),
        ({"a1q_scale": torch.ones(3, 2)}, "it takes bfloat16 and quantizes by itself"),
        ({"output": torch.empty(3, 256)}, "output in torch.float32"),
        ({"output": torch.empty(256, 3, dtype=torch.bfloat16).T}, "not contiguous"),
        ({"topk_ids": torch.zeros(3, 4, dtype=torch.int32)}, "4 experts a token, not 2"),
    ],
)
def test_calls_that_the_kernels_do_not_take_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call(**changes)


def test_more_pairs_than_the_decode_kernel_scans_are_refused() -> None:
    tokens = DECODE_PAIRS // 2 + 1
    with pytest.raises(ValueError, match=str(DECODE_PAIRS)):
        call(
            output=torch.empty(tokens, 256, dtype=torch.bfloat16),
            hidden_states=torch.zeros(tokens, 256, dtype=torch.bfloat16),
            topk_weights=torch.ones(tokens, 2),
            topk_ids=torch.zeros(tokens, 2, dtype=torch.int32),
        )
