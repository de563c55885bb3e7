"""The column values by which rows of a problem and an environment are found."""

from __future__ import annotations

from typing import Any

from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.environment import Environment


def environment_data(environment: Environment) -> dict[str, Any]:
    """An environment as stored JSON."""
    return environment.model_dump(mode="json")


def environment_digest(environment: Environment) -> str:
    """SHA-256 of an environment: equal exactly when every field is."""
    return content_digest(environment_data(environment))
