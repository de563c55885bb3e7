"""One candidate timed on one problem at one token count in one environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from autotune.vocabulary.candidate import VLLM_BACKENDS, BackendName, Candidate
from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.problem import Problem, Scheme
from autotune.vocabulary.text import LongText, Text

Checkpoint = Literal["fp8", "compressed-tensors", "unquantized"]
"""vLLM's checkpoint format; it limits which backends vLLM would take (vllm_cutlass)."""


def vllm_backends(checkpoint: Checkpoint) -> frozenset[BackendName]:
    """Backends that stock vLLM can select for a checkpoint of this format.

    vLLM passes `allow_vllm_cutlass` for compressed-tensors checkpoints only (select_fp8_moe_backend).
    """
    return VLLM_BACKENDS if checkpoint == "compressed-tensors" else VLLM_BACKENDS - {"vllm_cutlass"}


ROUTING_PATTERN = r"^(uniform|zipf:[0-9]{1,6}(\.[0-9]{1,6})?)$"

Microseconds = Annotated[float, Field(ge=1e-3, le=1e9)]
"""A time of one layer call: from a nanosecond, below what any clock here tells, to a quarter of an hour."""


class Status(StrEnum):
    OK = "ok"
    WRONG = "wrong"
    UNSUPPORTED = "unsupported"
    OUT_OF_RESOURCES = "out_of_resources"
    COMPILE_ERROR = "compile_error"
    TIMEOUT = "timeout"
    CRASHED = "crashed"


class Stage(StrEnum):
    SCREEN = "screen"
    """Timed once to find the promising ones. Picking the best of many flatters it: no evidence of a win."""
    FINAL = "final"
    """Re-timed on fresh data, one measurement per process."""


ROUNDING = 1.001


def _span(values: Sequence[float]) -> str:
    return f"{min(values):g} to {max(values):g}"


ERROR_LIMIT = {Scheme.BF16: 1e-2}
FP8_ERROR_LIMIT = 3e-2
ERROR_OVER_BASELINE = 1.25
"""A candidate may be as wrong as its scheme allows, or 1.25 times as wrong as the baseline."""


def error_limit(scheme: Scheme, baseline_error: float) -> float:
    """Largest relative L2 error against the float32 reference that counts as correct."""
    return max(ERROR_LIMIT.get(scheme, FP8_ERROR_LIMIT), ERROR_OVER_BASELINE * baseline_error)


class PairedTimes(BaseModel):
    """Baseline and candidate timed in turns: block i of both ran back to back.

    All times are microseconds per layer call, each the median over the replays of one block.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    candidate_us: tuple[Microseconds, ...] = Field(min_length=1)
    baseline_us: tuple[Microseconds, ...] = Field(min_length=1)
    p50_us: Microseconds = Field(description="over all replays of the candidate")
    p95_us: Microseconds
    baseline_p50_us: Microseconds
    baseline_p95_us: Microseconds

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.candidate_us) != len(self.baseline_us):
            raise ValueError("candidate and baseline need the same number of blocks")
        for p50, p95, blocks in (
            (self.p50_us, self.p95_us, self.candidate_us),
            (self.baseline_p50_us, self.baseline_p95_us, self.baseline_us),
        ):
            # A median of all replays lies between the medians of the blocks; rounding is forgiven.
            if not min(blocks) / ROUNDING <= p50 <= max(blocks) * ROUNDING:
                raise ValueError(f"a median of {p50:g} us does not come from blocks of {_span(blocks)} us")
            if p95 * ROUNDING < p50:
                raise ValueError(f"a 95th percentile of {p95:g} us lies below the median, {p50:g} us")
        return self

    def log_ratios(self) -> tuple[float, ...]:
        """Natural log of baseline over candidate per block: positive means the candidate is faster."""
        return tuple(math.log(b / c) for b, c in zip(self.baseline_us, self.candidate_us, strict=True))


LATER_FIELDS = frozenset({"tactic", "tuning_s"})
"""Fields that older evidence does not have; where they are null they are no part of the content."""


class Measurement(BaseModel):
    """Evidence. Immutable, and cited by `digest`, never by a row's number."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    problem: Problem
    environment: Environment
    checkpoint: Checkpoint
    tokens: int = Field(gt=0, le=1 << 30, strict=True)
    routing: str = Field(default="uniform", pattern=ROUTING_PATTERN)
    candidate: Candidate
    baseline: Candidate
    stage: Stage
    status: Status
    reason: LongText = ""
    """Why the status is not `ok`: the exception, the limit, the unsupported part."""
    times: PairedTimes | None = None
    relative_error: float | None = Field(
        default=None, ge=0, description="relative L2 against the float32 reference"
    )
    baseline_relative_error: float | None = Field(default=None, ge=0)
    compile_s: float | None = Field(
        default=None, ge=0, description="cold compile, seconds; null if it came from a cache"
    )
    setup_s: float | None = Field(
        default=None, ge=0, description="the backend's own tuning or set-up, seconds"
    )
    tactic: Text | None = Field(
        default=None, description="what the backend's own tuner chose for this call, in the backend's words"
    )
    tuning_s: float | None = Field(
        default=None, ge=0, description="what that choice cost: the backend's own tuner, all counts, seconds"
    )
    peak_bytes: int | None = Field(
        default=None, ge=0, le=1 << 62, description="GPU memory beyond weights and inputs"
    )
    run: Text = Field(min_length=1, description="which sweep, shared by all its processes")
    process: int = Field(default=0, ge=0, le=1 << 20)
    seed: int = Field(default=0, ge=0, le=1 << 32)
    driver: Text = ""
    recorded_at: datetime

    @model_validator(mode="after")
    def _times_only_if_ok(self) -> Self:
        if (self.status is Status.OK) != (self.times is not None):
            raise ValueError(
                f"status {self.status.value} {'needs' if self.times is None else 'forbids'} times"
            )
        limit = error_limit(self.problem.scheme, self.baseline_relative_error or 0.0)
        if self.times and self.relative_error is not None and self.relative_error > limit * ROUNDING:
            raise ValueError(f"status ok with a relative error of {self.relative_error:g}, above {limit:.3g}")
        if self.status is not Status.OK and not self.reason:
            raise ValueError(f"status {self.status.value} needs a reason")
        if self.recorded_at.tzinfo is None:
            raise ValueError("recorded_at needs a time zone")
        if not 2000 < self.recorded_at.year < 2100:
            raise ValueError(f"recorded_at lies in the year {self.recorded_at.year}")
        return self

    @model_serializer(mode="wrap")
    def _without_later_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        # Evidence from before these fields existed keeps its content, and so its digest.
        return {k: v for k, v in data.items() if v is not None or k not in LATER_FIELDS}

    @cached_property
    def digest(self) -> str:
        """Content digest of everything above."""
        return content_digest(self.model_dump(mode="json"))
