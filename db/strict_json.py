"""JSON from outside, without what no database and no digest can hold."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class UnstorableError(ValueError):
    """The text is JSON, but holds a value that cannot be stored."""


def read_json(data: bytes | str) -> Any:
    """Plain data from JSON text (UTF-8).

    Raises:
        UnstorableError: for a number beyond a float's or 64 bits' range, or half of a surrogate pair.
        ValueError: if it is no JSON, or nests too deeply to be read.
    """
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    try:
        value = json.loads(text, parse_constant=_constant, parse_float=_float, parse_int=_integer)
        # A pair written as two escapes is a character; only encoding tells it from half of one.
        if _HALF_A_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    except UnicodeEncodeError as error:
        raise UnstorableError("a text holds half of a surrogate pair") from error
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UnstorableError(f"the number {text[:40]} is too large")
    return value


def _integer(text: str) -> int:
    # The length first: reading a million digits takes seconds.
    if len(text) > 20 or not _SMALLEST <= int(text) <= _LARGEST:
        raise UnstorableError(f"the number {text[:40]} has more than 64 bits")
    return int(text)
