"""Traffic profiles: how often each token count enters the layer."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field, field_validator

DEFAULT_TOKENS: tuple[int, ...] = (
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384
)  # fmt: skip
"""Token counts swept by default."""

PROMPT_TOKENS = 1024
OUTPUT_TOKENS = 256
MAX_BATCHED_TOKENS = 8192
"""Assumptions of `concurrency=c`: a mixed chat load and vLLM's default chunk for serving."""


class TrafficProfile(BaseModel):
    """A named weight for each token count; weights are steps, in any unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    weights: dict[int, float] = Field(min_length=1)

    @field_validator("weights")
    @classmethod
    def _positive(cls, value: dict[int, float]) -> dict[int, float]:
        for tokens, weight in value.items():
            if tokens < 1 or not math.isfinite(weight) or weight <= 0:
                raise ValueError(f"tokens and weights must be positive, not {tokens}: {weight}")
        return dict(sorted(value.items()))

    @classmethod
    def concurrency(cls, c: int) -> TrafficProfile:
        """`c` requests in flight, each 1,024 prompt and 256 output tokens.

        Over the time in which c requests complete, the layer sees 256 decode steps of c tokens, and the
        c prompts as full chunks of at most 8,192 tokens: `c * 1024 // 8192` of 8,192 and one with the rest.

        Raises:
            ValueError: if c is not positive.
        """
        if c < 1:
            raise ValueError(f"concurrency must be at least 1, not {c}")
        weights: dict[int, float] = {c: float(OUTPUT_TOKENS)}
        chunks, rest = divmod(c * PROMPT_TOKENS, MAX_BATCHED_TOKENS)
        for tokens, count in ((MAX_BATCHED_TOKENS, chunks), (rest, 1)):
            if tokens and count:
                weights[tokens] = weights.get(tokens, 0.0) + count
        return cls(name=f"concurrency={c}", weights=weights)
