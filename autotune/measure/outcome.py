"""What a GPU process found out about one candidate. Imports no torch: the parent reads it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.vocabulary.measurement import Status

PROCESS_ENDED = "the process ended with"
"""How the reason of a failure begins that took its GPU process along."""


class NoResult(Exception):
    """A candidate that ends without a time: its status and reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Outcome:
    """What the bench found out about one candidate; the parent adds the rest of a measurement."""

    status: Status
    reason: str = ""
    times: dict[str, Any] | None = None
    relative_error: float | None = None
    baseline_relative_error: float | None = None
    compile_s: float | None = None
    setup_s: float | None = None
    tactic: str | None = None
    tuning_s: float | None = None
    peak_bytes: int | None = None
