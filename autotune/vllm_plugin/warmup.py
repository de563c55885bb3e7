"""Compiles what a routing table can reach before the server reports ready."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from autotune.vllm_plugin.features import Feature
from autotune.vllm_plugin.log import info_once, logger, warn_once
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.surface import SurfaceChangedError, require_attribute, require_source
from autotune.vllm_plugin.tile_lookup import TileKey
from autotune.vllm_plugin.tile_map import TileMap
from autotune.vocabulary.problem import Problem

_WARM_UP = "kernel_warmup(self)"
_FUSED_MOE = "vllm.model_executor.layers.fused_moe.fused_moe"
_LAUNCH_SOURCE = ("fused_moe_kernel[grid](", "EM = sorted_token_ids.size(0)")
PROGRESS_S = 5.0
"""Seconds between two lines of progress in the log."""


class WarmUpKernels(Feature):
    """Runs in each worker just before vLLM's own kernel warm-up: weights are loaded, no graph is captured."""

    name = "warmup"
    title = "compiling the table's Triton variants before the server is ready"
    module = "vllm.v1.worker.gpu_worker"

    def patches(self, module: ModuleType) -> list[Patch]:
        require_attribute(module, "kernel_warmup")
        worker = require_attribute(module, "Worker")
        # 0.33 moved the body into a method of its own.
        name = "_compile_or_warm_up_model"
        require_source(worker, name if hasattr(worker, name) else name[1:], (_WARM_UP,))
        return [Patch(module, "kernel_warmup", self._before)]

    def _before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def kernel_warmup(worker: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                self.warm(int(worker.scheduler_config.max_num_batched_tokens))
            except Exception as error:
                # A failure costs a compilation in the request path, never the server.
                warn_once(f"warm-up skipped: {type(error).__name__}: {error}")
            return original(worker, *args, **kwargs)

        return kernel_warmup

    def warm(self, most: int) -> None:
        """Compile for every layer that this process built and a table covers.

        Args:
            most: the largest token count of one step, vLLM's `max_num_batched_tokens`.

        Raises:
            SurfaceChangedError: if vLLM launches its kernel otherwise than is reproduced here.
        """
        module: Any = importlib.import_module(_FUSED_MOE)
        require_source(module, "invoke_fused_moe_triton_kernel", _LAUNCH_SOURCE)
        deadline = time.monotonic() + self.context.client.settings.warmup_s
        for problem in self.context.deployment.problems():
            if self._has_tiles(module, problem):
                self._warm_problem(module, problem, most, deadline)
            else:
                info_once(f"no warm-up for {problem}: its tiles are vLLM's own")

    def _has_tiles(self, module: Any, problem: Problem) -> bool:
        scheme = problem.scheme
        block_n, block_k = scheme.block_shape or (0, 0)
        key = TileKey(problem.E, problem.N, scheme.vllm_dtype, block_n, block_k)
        return isinstance(module.get_moe_configs(key.E, key.N, key.dtype, key.block_n, key.block_k), TileMap)

    def _warm_problem(self, module: Any, problem: Problem, most: int, deadline: float) -> None:
        from triton.runtime import driver

        from autotune.kernels.ahead.variants import held_by
        from autotune.kernels.ahead.warmup import warm_up
        from autotune.kernels.backends.vllm_gemms import TritonGemms, reachable

        held = held_by(module.fused_moe_kernel)
        if not held:
            # vLLM has measured its memory by now with a batch of the largest size.
            info_once(f"no warm-up for {problem}: vLLM has not run its Triton MoE kernel")
            return
        started = time.monotonic()
        found = reachable(TritonGemms(problem), most)
        if not found.loaded & held:
            raise SurfaceChangedError(
                f"of the {len(held)} variants that vLLM has run, none is among the {found.total} expected "
                f"for {problem}"
            )
        limit = max(0.0, deadline - time.monotonic())
        logger().info(
            "autotune: warm-up for %s: 1 to %d tokens need %d variants of fused_moe_kernel, %d of them "
            "loaded; at most %.0f s",
            problem, most, found.total, len(found.loaded), limit,
        )  # fmt: skip
        last = started

        def tell(done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last >= PROGRESS_S:
                last = time.monotonic()
                logger().info("autotune: warm-up: %d of %d variants, %.0f s", done, total, last - started)

        variants = list(found.missing.values())
        done = warm_up(variants, driver.active.get_current_target(), limit, tell=tell)
        logger().info("autotune: warm-up for %s: %s", problem, done)
