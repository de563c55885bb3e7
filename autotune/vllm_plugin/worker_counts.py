"""The worker's part of the counts: has vLLM state each step's token count, and says what serves which."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize
from types import ModuleType
from typing import Any

from autotune.kernels.compile_watch import CompileWatch
from autotune.vllm_plugin import run_folder
from autotune.vllm_plugin.features import Context, Feature
from autotune.vllm_plugin.ledger import Ledger
from autotune.vllm_plugin.log import info_once, logger, warn_once
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.run_folder import WorkerReport
from autotune.vllm_plugin.surface import require_attribute, require_function, require_source

WRITE_S = 5.0
"""Seconds between two looks at whether the front end must be told something new."""
_SWITCH = "observability_config.cudagraph_metrics"


class WorkerCounts(Feature):
    """Runs around vLLM's warm-up and capture, after which the worker serves."""

    name = "counts"
    title = "counting calls and compilations in the workers"
    module = "vllm.v1.worker.gpu_worker"

    def __init__(self, context: Context, ledger: Ledger) -> None:
        super().__init__(context)
        self.ledger = ledger
        self.watch = CompileWatch()
        self.no_steps = ""
        self._rank = 0
        self._told = ""
        self._stopping = threading.Event()

    def patches(self, module: ModuleType) -> list[Patch]:
        worker = require_attribute(module, "Worker")
        require_function(worker, "compile_or_warm_up_model", ("self",))
        # 0.33 moved the body into a method of its own.
        body = "_compile_or_warm_up_model"
        require_source(
            worker, body if hasattr(worker, body) else body[1:], ("self.model_runner.capture_model()",)
        )
        return [Patch(worker, "compile_or_warm_up_model", self._around)]

    def unapply(self) -> None:
        super().unapply()
        self._stopping.set()
        self.watch.stop()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_or_warm_up_model(worker: Any) -> Any:
            _guarded(self.begin, worker)
            result = original(worker)
            _guarded(self.ready, worker)
            return result

        return compile_or_warm_up_model

    def begin(self, worker: Any) -> None:
        """Before the warm-up."""
        parallel = worker.vllm_config.parallel_config
        self._rank = int(parallel.data_parallel_rank) * int(parallel.world_size) + int(worker.rank)
        try:
            self.watch.start()
        except ImportError as error:
            info_once(f"no compilation is counted: {error}")
        self.no_steps = have_steps_told(worker)
        runner = worker.model_runner
        capture = runner.capture_model

        def capture_model(*args: Any, **named: Any) -> Any:
            del runner.capture_model
            return self.ledger.capturing(capture, *args, **named)

        runner.capture_model = capture_model

    def ready(self, worker: Any) -> None:
        """After it: everything is captured, and what is compiled now keeps requests waiting."""
        # A worker that captures nothing still has the wrapper.
        vars(worker.model_runner).pop("capture_model", None)
        again = self._told != ""
        self.ledger.ready()
        self.watch.ready()
        failed = self.tell()
        if failed:
            warn_once(f"vLLM's metrics will not show what serves: {failed}")
        if not again:
            threading.Thread(target=self._keep_telling, name="autotune-counts", daemon=True).start()
            # Also at the end of a process that vLLM forked, which runs no atexit.
            Finalize(None, self.end, exitpriority=100)

    def tell(self) -> str:
        """Write what has changed for the front end. Returns why it failed, or an empty string."""
        report = WorkerReport(
            os.getpid(), self._rank, self.no_steps, tuple(self.ledger.reports()),
            dict(self.watch.compiled), dict(self.watch.read), self.watch.before_ready,
        )  # fmt: skip
        text = report.to_json()
        if text == self._told:
            return ""
        self._told = text
        return run_folder.write(report, os.environ)

    def lines(self) -> list[str]:
        """What the log says at the end."""
        said = [f"served outside CUDA graphs: {line}" for line in self.ledger.lines()]
        return [*said, *run_folder.compile_lines(self.watch.compiled, self.watch.read)]

    def end(self) -> None:
        """At the end of the process."""
        self._stopping.set()
        _guarded(self.tell)
        for line in self.lines():
            logger().info("autotune: %s", line)

    def _keep_telling(self) -> None:
        while not self._stopping.wait(WRITE_S):
            _guarded(self.tell)


def have_steps_told(worker: Any) -> str:
    """Switch on vLLM's own statistics of each step's padded token count, for this worker alone.

    Done here and not in the front end, whose log would print a table of them every few seconds.

    Returns:
        Why the statistics will not tell, or an empty string.
    """
    kinds = [cls for cls in type(worker.model_runner).__mro__ if cls.__module__.startswith("vllm.")]
    if worker.vllm_config.parallel_config.use_ubatching:
        return "vLLM runs a step in parts (dual batch overlap), and its statistics do not say in which"
    if not any(_SWITCH in inspect.getsource(sys.modules[cls.__module__]) for cls in kinds):
        where = kinds[0].__module__ if kinds else type(worker.model_runner).__module__
        return f"the model runner of this vLLM ({where}) does not state a step's token count"
    observability = worker.model_runner.vllm_config.observability_config
    if not observability.cudagraph_metrics:
        if run_folder.is_front_end(os.environ):
            return "the engine runs in the front end's process: cudagraph_metrics=True makes vLLM state it"
        observability.cudagraph_metrics = True
    return ""


def _guarded(action: Callable[..., Any], *args: Any) -> None:
    try:
        action(*args)
    except Exception as error:
        # Counting costs nobody the server.
        warn_once(f"counts are incomplete: {action.__name__}: {type(error).__name__}: {error}")
