"""Canonical JSON and content digests: equal content has equal bytes, on every machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """Serialize plain data with sorted keys, no spaces and no NaN.

    Raises:
        ValueError: for NaN or infinity, which JSON does not have.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def content_digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal (64 characters)."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def is_intact(value: Any, digest: object) -> bool:
    """Whether plain data is what the digest names: if it cannot be read, it was so when it was written."""
    try:
        return content_digest(value) == digest
    except (ValueError, OverflowError, TypeError, RecursionError):
        return False


def significant(value: float, digits: int = 6) -> float:
    """Round to `digits` significant decimal digits, so that stored figures survive JSON unchanged."""
    return float(f"{value:.{digits}g}")
