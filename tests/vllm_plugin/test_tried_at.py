"""The token counts at which a route is tried need every Triton variant that any of its counts needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from autotune.kernels.ahead.target import compiling_for
from autotune.kernels.ahead.variants import collecting
from autotune.kernels.backends.registry import get_backend
from autotune.kernels.specs import DECODE_PAIRS
from autotune.measure.jit_targets import own_candidate
from autotune.vllm_plugin.own_experts import tried_at
from autotune.vocabulary.candidate import DeepGemmCandidate
from autotune.vocabulary.problem import Problem, Scheme
from tests.factories import triton


def variants(problem: Problem, name: str, counts: Iterable[int]) -> set[str]:
    """What Triton's binder asks for; nothing is compiled."""
    backend = get_backend(name)
    with compiling_for((9, 0)), collecting() as found:
        for tokens in counts:
            backend.compile_ahead(problem, tokens, own_candidate(name))
    return set(found.missing)


@pytest.mark.parametrize(
    ("name", "topk"),
    [
        *(("fused_decode", topk) for topk in (1, 2, 6, 8, 10)),
        *(("fused_triton", topk) for topk in (6, 8, 10)),
    ],
)
@pytest.mark.parametrize("scheme", [Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128])
def test_no_count_needs_a_variant_that_was_not_tried(scheme: Scheme, name: str, topk: int) -> None:
    problem = Problem(E=64, N=256, K=512, topk=topk, scheme=scheme)
    last = DECODE_PAIRS // topk if name == "fused_decode" else 2200 // topk
    tried = tried_at(problem, own_candidate(name), 1, last)
    everything = variants(problem, name, range(1, last + 1))
    assert everything, "nothing was asked for"
    assert variants(problem, name, tried) == everything
    assert variants(problem, name, tried[:1]) < everything, "the first count alone would do"


@pytest.mark.parametrize(
    ("name", "first", "last", "expected"),
    [
        ("fused_decode", 1, 128, (1, 3, 17)),
        ("fused_decode", 5, 8, (5,)),
        ("fused_decode", 9, 24, (9, 17)),
        ("fused_triton", 129, 192, (129,)),
        ("fused_triton", 193, 256, (193, 241)),
        ("fused_triton", 257, 16384, (257,)),
    ],
)
def test_only_counts_at_which_a_variant_begins_are_tried(
    name: str, first: int, last: int, expected: tuple[int, ...]
) -> None:
    problem = Problem(E=128, N=768, K=2048, topk=8, scheme=Scheme.FP8_TENSOR)
    assert tried_at(problem, own_candidate(name), first, last) == expected


@pytest.mark.parametrize(
    ("candidate", "first", "last", "expected"),
    [
        (DeepGemmCandidate(), 2049, 16384, (2049, 2064)),
        (DeepGemmCandidate(), 1, 64, (1, 2, 16)),
        (triton(), 1, 16384, (1,)),
    ],
)
def test_vllms_backends(candidate: Any, first: int, last: int, expected: tuple[int, ...]) -> None:
    """Triton's integers around DeepGEMM: one, divisible by 16, others. vLLM's Triton is warmed up apart."""
    problem = Problem(E=128, N=768, K=2048, topk=8, scheme=Scheme.FP8_BLOCK128)
    assert tried_at(problem, candidate, first, last) == expected
