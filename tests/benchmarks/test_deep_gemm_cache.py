"""What `benchmarks/deep_gemm_cache.py` launches: every token count of vLLM's projections, once."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.benchmarks.programs import load


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load("deep_gemm_cache")


@pytest.mark.parametrize(("last", "parts", "made"), [(8192, 14, 14), (33, 14, 2), (32, 1, 1)])
def test_processes_share_every_count_once(program: ModuleType, last: int, parts: int, made: int) -> None:
    spans = program.spans(32, last, parts)
    assert len(spans) == made
    assert [count for a, b in spans for count in range(a, b + 1)] == list(range(32, last + 1))


def test_the_projections_are_the_published_checkpoint_s(program: ModuleType) -> None:
    # Qwen/Qwen3-30B-A3B: 32 heads and 2 x 4 of keys and values, 128 wide, hidden size 2,048
    assert program.shapes() == [(5120, 2048), (2048, 4096)]
