"""Takes each step's token count from vLLM's own statistics, where they reach the front end."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from autotune.vllm_plugin.features import Context, Feature
from autotune.vllm_plugin.log import warn_once
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.step_meter import StepMeter
from autotune.vllm_plugin.surface import require_attribute, require_fields, require_function
from autotune.vllm_plugin.telemetry_sender import Sender, make_sender

_RECORD = ("self", "scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx")


class StepMetrics(Feature):
    """Counts steps by what served them. Replayed CUDA graphs are steps like any other there."""

    name = "metrics"
    title = "counting what serves each step, for /metrics"
    module = "vllm.v1.metrics.loggers"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.meter: StepMeter | None = None

    def patches(self, module: ModuleType) -> list[Patch]:
        manager = require_attribute(module, "StatLoggerManager")
        require_function(manager, "record", _RECORD)
        require_fields(require_attribute(module, "SchedulerStats"), ("cudagraph_stats",))
        graphs = importlib.import_module("vllm.compilation.cuda_graph")
        require_fields(require_attribute(graphs, "CUDAGraphStat"), ("num_padded_tokens", "runtime_mode"))
        return [Patch(manager, "record", self._counting)]

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def record(
            manager: Any,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: Any = None,
        ) -> None:
            original(manager, scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
            if scheduler_stats is not None and self.state == "applied":
                try:
                    self._started().saw(scheduler_stats.cudagraph_stats)
                except Exception as error:
                    # Between two steps: a failure costs the counts, never the server.
                    self.disable(f"{type(error).__name__}: {error}")

        return record

    def _started(self) -> StepMeter:
        if self.meter is None:
            self.meter = StepMeter(self._sender())
            self.meter.start()
        return self.meter

    def _sender(self) -> Sender | None:
        client = self.context.client
        if not client.settings.telemetry:
            return None
        sender, reason = make_sender(client.settings, client.gpu)
        if reason:
            warn_once(f"no telemetry is sent: {reason}")
        return sender
