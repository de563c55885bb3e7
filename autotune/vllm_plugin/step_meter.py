"""The front end's counts of steps by what served them, as Prometheus metrics, log lines and telemetry.

A step counts once for each kind of MoE layer, however many layers of that kind there are. The thread that
takes vLLM's outputs only adds one to a number; everything else happens in a thread of its own.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from functools import cache
from multiprocessing.util import Finalize
from typing import Any

from autotune.vllm_plugin import run_folder
from autotune.vllm_plugin.log import info_once, logger, warn_once
from autotune.vllm_plugin.run_folder import WorkerReport
from autotune.vllm_plugin.served import RANKS_DIFFER, LayerReport, Served
from autotune.vllm_plugin.telemetry_sender import Sender

FLUSH_S = 5.0
"""Seconds that a metric may be behind."""
EAGER = "NONE"
"""vLLM's name for a step outside CUDA graphs."""
STEP_LABELS = ("problem", "base", "tokens", "backend", "answer", "reason", "graph", "mode")


@cache
def instruments() -> tuple[Any, Any, Any]:
    """The metrics, once a process, in the registry that vLLM's /metrics shows."""
    from prometheus_client import Counter as Metric
    from prometheus_client import Gauge

    steps = Metric(
        "autotune_steps",
        "Engine steps by what served their MoE layers: tokens is the route's range, graph vLLM's CUDA graph "
        "mode, reason why vLLM's choice served. A step counts once for each kind of layer.",
        STEP_LABELS,
    )
    calls = Gauge(
        "autotune_eager_layer_calls",
        "Layer calls outside CUDA graphs since the worker was ready, counted in the first rank.",
        ("problem", "base", "tokens", "backend"),
        multiprocess_mode="mostrecent",
    )
    compiles = Gauge(
        "autotune_triton_variants",
        "Triton variants by rank: compiled before ready, compiled after it, read from disk after it.",
        ("rank", "kernel", "event"),
        multiprocess_mode="mostrecent",
    )
    return steps, calls, compiles


class StepMeter:
    """Counts of one front end.

    Args:
        sender: where the counts go besides; None sends them nowhere.
    """

    def __init__(self, sender: Sender | None = None) -> None:
        self.sender = sender
        self.unplaced: Counter[tuple[int, str]] = Counter()
        """Steps by padded token count and graph mode that no report was there for yet."""
        self.placed: Counter[tuple[str, Served, str]] = Counter()
        """Steps by layer, what served them and graph mode."""
        self._taken: Counter[tuple[int, str]] = Counter()
        self._untold = 0
        self._reports: list[WorkerReport] = []
        self._compiled: dict[int, int] = {}
        """Variants compiled after ready, by the worker's process, as far as they were sent."""
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._stopping = threading.Event()
        self._instruments = instruments()

    def start(self) -> None:
        """Begin to flush every few seconds, and at the end of the process."""
        threading.Thread(target=self._run, name="autotune-steps", daemon=True).start()
        Finalize(None, self.end, exitpriority=100)

    def saw(self, stat: Any) -> None:
        """One step, with vLLM's `CUDAGraphStat` of it; None where vLLM states none."""
        with self._lock:
            if stat is None:
                self._untold += 1
            else:
                self._taken[stat.num_padded_tokens, stat.runtime_mode] += 1

    def flush(self) -> None:
        """Place what was counted, by what the workers say serves."""
        with self._flushing:
            with self._lock:
                taken, self._taken = self._taken, Counter()
                untold, self._untold = self._untold, 0
            self.unplaced += taken
            try:
                reports, wrong = run_folder.read(os.environ)
            except run_folder.AmbiguousError as error:
                info_once(f"no step is counted by route: {error}")
                self.unplaced.clear()
                return
            # At the end the workers may be gone first.
            self._reports = reports or self._reports
            if not self._reports:
                if self.unplaced or untold:
                    info_once(f"no step is counted by route: {wrong}")
                return
            silent = next((report.no_steps for report in self._reports if report.no_steps), "")
            if silent:
                info_once(f"no step is counted by route: {silent}")
                self.unplaced.clear()
            else:
                self._place()
            self._show_workers()

    def _place(self) -> None:
        layers = layers_of(self._reports)
        steps, (counted, self.unplaced) = self._instruments[0], (self.unplaced, Counter())
        for (tokens, graph), count in counted.items():
            for (problem, base), ranks in layers.items():
                served = agreed(ranks, tokens, graph != EAGER)
                self.placed[problem, served, graph] += count
                steps.labels(
                    problem, base, served.tokens, served.backend, served.answer, served.reason, graph,
                    ranks[0].mode,
                ).inc(count)  # fmt: skip
                if self.sender is not None:
                    self.sender.add(problem, tokens, served, ranks[0].revision, count)

    def _show_workers(self) -> None:
        _, calls, compiles = self._instruments
        for layer in self._reports[0].layers:
            sums: Counter[tuple[str, str]] = Counter()
            for tokens, backend, count in layer.calls:
                sums[layer.at(tokens, graph=False).tokens, backend] += count
            for (where, backend), count in sums.items():
                calls.labels(layer.problem, layer.base, where, backend).set(count)
        for report in self._reports:
            compiles.labels(report.rank, "all", "compiled_before_ready").set(report.compiled_before)
            compiled = sum(report.compiled.values())
            if self.sender is not None and compiled > self._compiled.get(report.pid, 0):
                self.sender.add_compiled(compiled - self._compiled.get(report.pid, 0))
                self._compiled[report.pid] = compiled
            for event, counts in (("compiled", report.compiled), ("read", report.read)):
                compiles.labels(report.rank, "all", f"{event}_after_ready").set(sum(counts.values()))
                for kernel, count in counts.items():
                    compiles.labels(report.rank, kernel, f"{event}_after_ready").set(count)

    def lines(self) -> list[str]:
        """One for each route and each reason, most steps first."""
        return [
            f"{problem}: {served}: {count} steps ({'outside CUDA graphs' if graph == EAGER else graph})"
            for (problem, served, graph), count in self.placed.most_common()
        ]

    def compile_lines(self) -> list[str]:
        """What each rank compiled after it was ready.

        The workers say it too, but not where vLLM's second signal ends them before they come to it.
        """
        ranks = self._reports
        return [
            line
            for report in ranks
            if report.pid != os.getpid()  # an engine in this process says it itself
            for line in run_folder.compile_lines(
                report.compiled, report.read, f" on rank {report.rank}" if len(ranks) > 1 else ""
            )
        ]

    def end(self) -> None:
        """At the end of the process: the last flush, the log, and at most a second for the telemetry."""
        self._stopping.set()
        self._flush_guarded()
        observing = any(layer.mode == "observe" for report in self._reports for layer in report.layers)
        for line in self.lines():
            logger().info("autotune: %s: %s", "would have served" if observing else "served", line)
        for line in self.compile_lines():
            logger().info("autotune: %s", line)
        if self.sender is not None:
            self.sender.close()

    def _run(self) -> None:
        while not self._stopping.wait(FLUSH_S):
            self._flush_guarded()

    def _flush_guarded(self) -> None:
        try:
            self.flush()
        except Exception as error:
            # In a thread that nobody watches; what was not placed is lost, the server is not.
            warn_once(f"steps are not counted completely: {type(error).__name__}: {error}")


def layers_of(reports: Sequence[WorkerReport]) -> dict[tuple[str, str], list[LayerReport]]:
    """The layers of all ranks by problem and vLLM's choice."""
    found: dict[tuple[str, str], list[LayerReport]] = {}
    for report in reports:
        for layer in report.layers:
            found.setdefault((layer.problem, layer.base), []).append(layer)
    return found


def agreed(ranks: Sequence[LayerReport], tokens: int, graph: bool) -> Served:
    """What serves a token count on all ranks; `unknown` where they differ."""
    first, *others = (layer.at(tokens, graph) for layer in ranks)
    if all(other == first for other in others):
        return first
    return Served(first.first, first.last, "unknown", "unknown", RANKS_DIFFER)
