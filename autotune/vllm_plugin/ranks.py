"""All ranks decide with the same tables, or none of them with any."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from autotune.vllm_plugin.agreement import disagreement
from autotune.vllm_plugin.environment import installed
from autotune.vllm_plugin.features import Context, Feature
from autotune.vllm_plugin.log import info_once, warn_once
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.surface import require_attribute, require_function, require_source

_INIT = "init_worker_distributed_environment"
_INIT_ARGUMENTS = ("vllm_config", "rank", "distributed_init_method", "local_rank", "backend")


class Ranks(Feature):
    """Compares what decides on each rank, just after vLLM has connected them and before it builds a model.

    Args:
        others: the features to take off where the ranks differ.
    """

    name = "ranks"
    title = "comparing the ranks' tables"
    module = "vllm.v1.worker.gpu_worker"

    def __init__(self, context: Context, others: Sequence[Feature]) -> None:
        super().__init__(context)
        self._others = tuple(others)
        self._alike = False
        self.fallback = ""
        """Why this process fell back; empty if it did not."""

    def patches(self, module: ModuleType) -> list[Patch]:
        require_function(module, _INIT, _INIT_ARGUMENTS)
        require_source(require_attribute(module, "Worker"), "init_device", (f"{_INIT}(",))
        return [Patch(module, _INIT, self._after)]

    def _after(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init_worker_distributed_environment(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                self.compare()
            except Exception as error:
                # Between vLLM and its weights: a failure costs speed, never the server.
                self.fall_back(f"the ranks could not be compared: {type(error).__name__}: {error}")
            return result

        return init_worker_distributed_environment

    def compare(self) -> None:
        """Compare with the other ranks, within the time limit, and take every feature off if they differ.

        Raises:
            RuntimeError: if torch's store cannot be reached.
        """
        dist: Any = importlib.import_module("torch.distributed")
        size = _world_size()
        group: Any = importlib.import_module("vllm.distributed.parallel_state").get_world_group()
        if group.world_size != size:
            self.fall_back(f"vLLM connects {group.world_size} ranks, torch {size} of them")
            return
        if size > 1:
            store = dist.distributed_c10d._get_default_store()
            timeout_s = self.context.client.settings.timeout_s
            why = disagreement(store, dist.get_rank(), size, self.facts(), timeout_s)
            if why:
                self.fall_back(why)
                return
            info_once(f"all {size} ranks decide alike: {self._tables()}")
        self._alike = True

    def require(self) -> None:
        """Take every feature off if there are several ranks that have not been found alike."""
        if self._alike or self.fallback:
            return
        size = _world_size()
        if size > 1:
            reason = f": {self.reason}" if self.reason else ""
            self.fall_back(f"the tables of {size} ranks were not compared{reason}")

    def facts(self) -> dict[str, str]:
        """What decides on this rank, by the words in which a difference is told."""
        settings = self.context.client.settings
        return {
            "tables": self._tables(),
            "AUTOTUNE_MODE": settings.mode,
            "AUTOTUNE_MATCH": settings.match,
            "AUTOTUNE_CONCURRENCY": str(settings.concurrency),
            "environment": str(self.context.client.environment),
            "moe-autotune": installed("moe-autotune") or "unknown",
        }

    def _tables(self) -> str:
        snapshot = self.context.client.snapshot
        return f"digest {snapshot.digest[:16]}" if snapshot.tables and not self.fallback else "none"

    def fall_back(self, reason: str) -> None:
        """Leave vLLM as it was found, on this rank, and say why in one line."""
        self.fallback = self.fallback or reason
        for feature in reversed(self._others):
            feature.take_off(reason)
        warn_once(f"fallback on all ranks, vLLM runs unchanged: {reason}")


def _world_size() -> int:
    dist: Any = importlib.import_module("torch.distributed")
    return int(dist.get_world_size()) if dist.is_available() and dist.is_initialized() else 1
