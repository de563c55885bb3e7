"""Paired steady-state timing: CUDA graphs over rotating inputs, baseline and candidate in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from autotune.kernels.weights import LayerInputs
from autotune.vocabulary.canonical import significant
from autotune.vocabulary.measurement import PairedTimes

Call = Callable[[LayerInputs], torch.Tensor]

GRAPH_TARGET_US = 1_000.0
"""A graph holds enough calls to run about this long, so that the two events around it weigh little."""
MAX_CALLS = 40


@dataclass
class TimedGraph:
    """A captured CUDA graph of `calls` layer calls."""

    graph: torch.cuda.CUDAGraph
    calls: int
    held: list[torch.Tensor]
    """Outputs, and scratch memory that the graph writes: freed earlier, it would be somebody else's."""

    def replay_us(self, replays: int) -> list[float]:
        """Microseconds per layer call, one figure per replay."""
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(replays)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(replays)]
        for start, end in zip(starts, ends, strict=True):
            start.record()
            self.graph.replay()
            end.record()
        torch.cuda.synchronize()
        return [s.elapsed_time(e) * 1000.0 / self.calls for s, e in zip(starts, ends, strict=True)]


def capture(
    calls_of: Sequence[tuple[Call, LayerInputs]], scratch: Callable[[], list[torch.Tensor]] = list
) -> TimedGraph:
    """Warm each distinct call up outside, then capture them in order, one after another."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call, inputs in calls_of[: min(2, len(calls_of))]:
            call(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    held: list[torch.Tensor] = []
    with torch.cuda.graph(graph):
        for call, inputs in calls_of:
            held.append(call(inputs))
    return TimedGraph(graph, len(calls_of), held + scratch())


def estimate_us(call: Call, inputs: LayerInputs) -> float:
    """A rough time of one call, by replaying a small graph of four."""
    timed = capture([(call, inputs)] * 4)
    return statistics.median(timed.replay_us(4))


def calls_per_graph(estimate: float, distinct: int) -> int:
    """How many calls a graph should hold: a multiple of the distinct inputs, at least one round of them."""
    rounds = max(1, round(min(MAX_CALLS, GRAPH_TARGET_US / max(estimate, 1.0)) / distinct))
    return rounds * distinct


def time_pairs(
    baseline: TimedGraph,
    candidate: TimedGraph,
    blocks: int,
    replays: int,
    after_block: Callable[[], None] = lambda: None,
) -> PairedTimes:
    """Time both in turns, `blocks` times, swapping who goes first each time."""
    for timed in (baseline, candidate):
        timed.replay_us(2)  # brings clocks and caches to where they stay
    candidate_blocks, baseline_blocks = [], []
    candidate_all: list[float] = []
    baseline_all: list[float] = []
    for block in range(blocks):
        order = (baseline, candidate) if block % 2 == 0 else (candidate, baseline)
        figures = {id(timed): timed.replay_us(replays) for timed in order}
        candidate_blocks.append(statistics.median(figures[id(candidate)]))
        baseline_blocks.append(statistics.median(figures[id(baseline)]))
        candidate_all += figures[id(candidate)]
        baseline_all += figures[id(baseline)]
        after_block()
    return PairedTimes(
        candidate_us=tuple(significant(v, 5) for v in candidate_blocks),
        baseline_us=tuple(significant(v, 5) for v in baseline_blocks),
        p50_us=significant(statistics.median(candidate_all), 5),
        p95_us=significant(_p95(candidate_all), 5),
        baseline_p50_us=significant(statistics.median(baseline_all), 5),
        baseline_p95_us=significant(_p95(baseline_all), 5),
    )


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
