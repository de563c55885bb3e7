"""JSON that the database and the digests can hold."""

from __future__ import annotations

import pytest

from autotune.db.strict_json import UnstorableError, read_json


@pytest.mark.parametrize(
    "text", ["1e999", "-1e400", "9223372036854775808", "-9223372036854775809", "1" * 5000]
)
def test_numbers_out_of_range(text: str) -> None:
    with pytest.raises(UnstorableError, match="number"):
        read_json(f'{{"a": [{text}]}}')


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\uDFFF": 1}', '["\\ude00\\ud83d"]'])
def test_half_of_a_pair(text: str) -> None:
    with pytest.raises(UnstorableError, match="surrogate"):
        read_json(text)


@pytest.mark.parametrize("data", [b"{", b"NaN", b"[-Infinity]", b'"\xed\xa0\x80"', b"[" * 200_000])
def test_no_json(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_json(data)
    assert not isinstance(caught.value, UnstorableError)


def test_what_can_be_stored_is_read_as_it_is() -> None:
    assert read_json('{"a": [9223372036854775807, 1e308, 0.1, null, "\\ud83d\\ude00 \\\\ud800"]}') == {
        "a": [2**63 - 1, 1e308, 0.1, None, "\U0001f600 \\ud800"]
    }
    assert read_json(b"\xef\xbb\xbf[1]") == [1]
