"""Small, valid objects of the vocabulary for tests: override only what a test is about.

table = make_table(tokens=(1, 8, 64), wins={8: 1.3})
measurement = make_measurement(tokens=8, candidate=triton(block_m=32))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from autotune.vocabulary.candidate import Candidate, DeepGemmCandidate, Tile, TritonCandidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.measurement import Checkpoint, Measurement, PairedTimes, Stage, Status
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import (
    Alternative,
    PublishedTable,
    Recording,
    Route,
    RoutingTable,
    Speedup,
    Timing,
    Verdict,
)

PROBLEM = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=fp8_block128")
OTHER_PROBLEM = Problem.parse("E=8,N=14336,K=4096,topk=2,scheme=bf16")
H200 = Environment(
    gpu="NVIDIA_H200", capability="9.0", vllm="0.25.1", torch="2.11.0", triton="3.6.0", cuda="13.0"
)
H100 = H200.model_copy(update={"gpu": "NVIDIA_H100_80GB_HBM3"})
RECORDED_AT = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def triton(
    block_m: int = 16, block_n: int = 128, block_k: int = 128, *, swap_ab: bool = False, **tile: int
) -> TritonCandidate:
    """A `triton` candidate with the given tile."""
    return TritonCandidate(
        tile=Tile(block_m=block_m, block_n=block_n, block_k=block_k, **tile), swap_ab=swap_ab
    )


BASELINE: Candidate = triton(64)


def make_times(candidate_us: float = 80.0, baseline_us: float = 100.0, blocks: int = 5) -> PairedTimes:
    """Paired times around two medians, microseconds, with a fixed ripple of 0.1% per block."""
    ripple = [1 + 0.001 * (i - blocks // 2) for i in range(blocks)]
    return PairedTimes(
        candidate_us=tuple(round(candidate_us * r, 4) for r in ripple),
        baseline_us=tuple(round(baseline_us * r, 4) for r in ripple),
        p50_us=candidate_us,
        p95_us=round(candidate_us * 1.02, 4),
        baseline_p50_us=baseline_us,
        baseline_p95_us=round(baseline_us * 1.02, 4),
    )


def make_measurement(
    *,
    problem: Problem = PROBLEM,
    environment: Environment = H200,
    checkpoint: Checkpoint = "fp8",
    tokens: int = 8,
    candidate: Candidate | None = None,
    baseline: Candidate = BASELINE,
    stage: Stage = Stage.FINAL,
    status: Status = Status.OK,
    run: str = "run-1",
    process: int = 0,
    offset_s: float = 0.0,
    candidate_us: float = 80.0,
    baseline_us: float = 100.0,
    **fields: Any,
) -> Measurement:
    """A measurement; times only if `status` is ok; `offset_s` moves `recorded_at`."""
    ok = status is Status.OK
    return Measurement(
        problem=problem,
        environment=environment,
        checkpoint=checkpoint,
        tokens=tokens,
        candidate=candidate or triton(),
        baseline=baseline,
        stage=stage,
        status=status,
        reason=fields.pop("reason", "" if ok else f"made {status.value} by a test"),
        times=make_times(candidate_us, baseline_us) if ok else None,
        run=run,
        process=process,
        recorded_at=RECORDED_AT + timedelta(seconds=offset_s),
        driver=fields.pop("driver", "580.159.04"),
        **fields,
    )


def make_table(
    *,
    problem: Problem = PROBLEM,
    environment: Environment = H200,
    checkpoint: Checkpoint = "fp8",
    tokens: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    wins: Mapping[int, float] | None = None,
    winner: Candidate | None = None,
    baseline: Candidate = BASELINE,
    firsts: Mapping[int, int] | None = None,
    runs: Sequence[str] = ("run-1",),
    recorded_at: datetime = RECORDED_AT,
) -> RoutingTable:
    """A routing table whose routes end at `tokens`.

    Args:
        wins: median speed-up by token count; a count not named keeps the baseline. None: 1.25x everywhere.
        winner: the candidate that wins; default a Triton tile with Swap-AB.
        firsts: where a route begins, by its token count; default right after the one before, so leaving
            it out makes no gap, and `{8: 8}` makes one below 8.
    """
    speeds = dict.fromkeys(tokens, 1.25) if wins is None else wins
    chosen = winner or triton(16, swap_ab=True)
    routes: list[Route] = []
    previous = tokens[0] - 1
    for count in tokens:
        baseline_us = round(20.0 + 1.5 * count, 3)
        keeps = Timing(p50_us=baseline_us, p95_us=round(baseline_us * 1.02, 3))
        first = (firsts or {}).get(count, previous + 1)
        other = Alternative(
            candidate=DeepGemmCandidate(),
            first=first,
            timing=Timing(p50_us=round(baseline_us * 1.5, 3), p95_us=round(baseline_us * 1.6, 3)),
            speedup=Speedup(median=0.667, low=0.66),
            final=False,
            evidence=("d" * 64,),
        )
        speed = speeds.get(count)
        wins_here = speed is not None
        p50 = round(baseline_us / speed, 3) if speed is not None else baseline_us
        routes.append(
            Route(
                first=first,
                last=count,
                tokens=count,
                verdict=Verdict.WIN if wins_here else Verdict.NO_BENEFIT,
                winner=chosen if wins_here else baseline,
                baseline=baseline,
                speedup=Speedup(median=speed, low=round(speed * 0.98, 4)) if speed is not None else None,
                winner_timing=Timing(p50_us=p50, p95_us=round(p50 * 1.02, 3)),
                baseline_timing=keeps,
                evidence=("a" * 64, "b" * 64, "c" * 64),
                alternatives=(other,),
            )
        )
        previous = count
    return RoutingTable(
        problem=problem,
        environment=environment,
        checkpoint=checkpoint,
        margin=0.01,
        recording=Recording(
            first=recorded_at,
            last=recorded_at + timedelta(minutes=5),
            driver="580.159.04",
            runs=tuple(runs),
            measurements=3 * len(tokens),
        ),
        routes=tuple(routes),
    )


def make_published(
    table: RoutingTable | None = None,
    *,
    revision: int | None = 1,
    channel: str | None = "stable",
    **fields: Any,
) -> PublishedTable:
    """A table as a source hands it out; further arguments go to `make_table`."""
    table = table or make_table(**fields)
    return PublishedTable(
        problem=table.problem,
        environment=table.environment,
        checkpoint=table.checkpoint,
        revision=revision,
        channel=channel,
        table=table,
    )
