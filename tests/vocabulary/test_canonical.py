"""Equal content, equal bytes."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.vocabulary.canonical import canonical_json, content_digest, significant

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_json_comes_back_with_the_same_digest(value: object) -> None:
    text = canonical_json(value)
    assert content_digest(json.loads(text)) == content_digest(value)
    assert canonical_json(json.loads(text)) == text


def test_order_and_spacing_do_not_matter() -> None:
    assert canonical_json({"b": [1, 2], "a": "ü"}) == '{"a":"ü","b":[1,2]}'
    assert content_digest({"b": 1, "a": 2}) == content_digest({"a": 2, "b": 1})
    assert content_digest([1, 2]) != content_digest([2, 1])


def test_the_digest_is_the_sha256_of_the_canonical_json() -> None:
    # printf '{}' | sha256sum
    assert content_digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_does_not_have_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"time": value})


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_rounding_keeps_six_digits_and_is_stable(value: float) -> None:
    rounded = significant(value)
    assert rounded == pytest.approx(value, rel=5e-6)
    assert significant(rounded) == rounded
    assert json.loads(json.dumps(rounded)) == rounded
