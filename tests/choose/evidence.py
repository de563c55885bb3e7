"""Evidence for the tests of choosing: final measurements of one candidate in several processes."""

from __future__ import annotations

from typing import Any

from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.measurement import Measurement, Stage
from tests.factories import make_measurement


def finals(
    tokens: int, candidate: Candidate, speedup: float, processes: int = 3, **fields: Any
) -> list[Measurement]:
    """`candidate` is `speedup` times as fast as the baseline at `tokens`."""
    return [
        make_measurement(
            tokens=tokens, candidate=candidate, process=process, candidate_us=100 / speedup, **fields
        )
        for process in range(processes)
    ]


def screen(tokens: int, candidate: Candidate, speedup: float, **fields: Any) -> Measurement:
    """One screening measurement."""
    return make_measurement(
        tokens=tokens, candidate=candidate, candidate_us=100 / speedup, stage=Stage.SCREEN, **fields
    )
