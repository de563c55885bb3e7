"""When the table's best single backend replaces the baseline's."""

from __future__ import annotations

import pytest

from autotune.client import RoutingClient, Snapshot
from autotune.vllm_plugin.static_choice import choose_backend, explicit_choice
from autotune.vocabulary.candidate import (
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    VllmCutlassCandidate,
)
from autotune.vocabulary.settings import Settings
from tests.factories import H200, OTHER_PROBLEM, PROBLEM, make_published

TOKENS = (8, 8192)


def client(**table: object) -> RoutingClient:
    given = {"tokens": TOKENS, "baseline": FlashinferCutlassCandidate(), **table}
    return RoutingClient(Settings(), H200, snapshot=Snapshot((make_published(**given),), "test"))  # type: ignore[arg-type]


def test_a_faster_backend_is_chosen() -> None:
    chosen = choose_backend(client(), PROBLEM, "fp8")
    assert chosen.backend == "triton"
    assert "1.25x flashinfer_cutlass" in chosen.detail
    assert "table revision 1" in chosen.detail


def test_within_the_margin_the_baseline_stays() -> None:
    chosen = choose_backend(client(wins=dict.fromkeys(TOKENS, 1.005)), PROBLEM, "fp8")
    assert chosen.backend is None
    assert "within the margin" in chosen.detail


def test_a_baseline_that_is_fastest_stays() -> None:
    chosen = choose_backend(client(wins={}), PROBLEM, "fp8")
    assert (chosen.backend, "is the fastest" in chosen.detail) == (None, True)


def test_vllm_cutlass_needs_its_checkpoint() -> None:
    asked = client(winner=VllmCutlassCandidate(), checkpoint="compressed-tensors")
    assert choose_backend(asked, PROBLEM, "compressed-tensors").backend == "vllm_cutlass"
    assert choose_backend(client(winner=VllmCutlassCandidate()), PROBLEM, "fp8").backend is None


def test_another_backend_of_vllm() -> None:
    assert choose_backend(client(winner=DeepGemmCandidate()), PROBLEM, None).backend == "deep_gemm"


def test_what_the_table_does_not_cover() -> None:
    chosen = choose_backend(client(tokens=(8,)), PROBLEM, "fp8")
    assert (chosen.backend, chosen.detail) == (None, "the table does not cover concurrency=8")
    assert "No table for" in choose_backend(client(), OTHER_PROBLEM, "fp8").detail


@pytest.mark.parametrize(
    ("variable", "value", "counts"),
    [
        ("VLLM_USE_DEEP_GEMM", "0", True),
        ("VLLM_MOE_USE_DEEP_GEMM", "1", True),
        ("VLLM_USE_FLASHINFER_MOE_FP8", "1", True),
        ("VLLM_BATCH_INVARIANT", "1", True),
        ("VLLM_BATCH_INVARIANT", "0", False),
        ("VLLM_USE_DEEP_GEMM_E8M0", "1", False),
    ],
)
def test_variables_by_which_a_user_chose(variable: str, value: str, counts: bool) -> None:
    assert explicit_choice({"HOME": "/", variable: value}) == (variable if counts else "")
