"""Traffic profiles: weights by token count."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.vocabulary.traffic import (
    DEFAULT_TOKENS,
    MAX_BATCHED_TOKENS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    TrafficProfile,
)


@pytest.mark.parametrize(
    ("c", "weights"),
    [
        (1, {1: 256.0, 1024: 1.0}),
        (8, {8: 256.0, 8192: 1.0}),
        (12, {12: 256.0, 4096: 1.0, 8192: 1.0}),
        (1024, {1024: 256.0, 8192: 128.0}),
        (8192, {8192: 256.0 + 1024.0}),
    ],
)
def test_the_formula_of_concurrency(c: int, weights: dict[int, float]) -> None:
    profile = TrafficProfile.concurrency(c)
    assert profile.name == f"concurrency={c}"
    assert profile.weights == weights


@given(st.integers(1, 100_000))
def test_concurrency_carries_every_token_of_its_requests(c: int) -> None:
    profile = TrafficProfile.concurrency(c)
    carried = sum(tokens * weight for tokens, weight in profile.weights.items())
    assert carried == c * (PROMPT_TOKENS + OUTPUT_TOKENS)
    assert max(profile.weights) <= max(c, MAX_BATCHED_TOKENS)
    assert list(profile.weights) == sorted(profile.weights)


@pytest.mark.parametrize("c", [0, -1])
def test_concurrency_must_be_positive(c: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TrafficProfile.concurrency(c)


@pytest.mark.parametrize("weights", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {1: math.nan}, {1: math.inf}])
def test_weights_are_positive_and_finite(weights: dict[int, float]) -> None:
    with pytest.raises(ValidationError):
        TrafficProfile(name="x", weights=weights)


def test_json_comes_back() -> None:
    profile = TrafficProfile.concurrency(12)
    assert TrafficProfile.model_validate_json(profile.model_dump_json()) == profile


def test_the_default_counts_cover_the_default_chunk_and_are_sorted() -> None:
    assert sorted(set(DEFAULT_TOKENS)) == list(DEFAULT_TOKENS)
    assert (DEFAULT_TOKENS[0], DEFAULT_TOKENS[-1]) == (1, 16384)
