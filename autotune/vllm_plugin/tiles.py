"""Triton tiles and Swap-AB per token count."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from autotune.client.snapshot import joined
from autotune.vllm_plugin.features import DeclinedError, Feature
from autotune.vllm_plugin.log import info_once, warn_once
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.surface import (
    require_attribute,
    require_function,
    require_source,
)
from autotune.vllm_plugin.tile_choice import covered, tile_at, unlaunchable
from autotune.vllm_plugin.tile_lookup import TileKey, pick_table
from autotune.vllm_plugin.tile_map import Config, TileConfig, TileMap, forced, take_swap_ab
from autotune.vocabulary.candidate import TritonCandidate
from autotune.vocabulary.table import PublishedTable, RoutingTable, table_label

_CONFIG_ARGUMENTS = ("E", "N", "dtype", "block_n", "block_k")
_DEFAULT_ARGUMENTS = ("M", "E", "N", "K", "topk", "dtype", "block_shape")
_LOOKUP = "config = configs[min(configs.keys(), key=lambda x: abs(x - M))]"
_SWAP_QUESTION = 'SWAP_AB = enable_swap_ab(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"])'


class Tiles(Feature):
    """Answers vLLM's look-up of tile configurations from the table."""

    name = "tiles"
    title = "Triton tiles and Swap-AB per token count"
    module = "vllm.model_executor.layers.fused_moe.fused_moe"

    def patches(self, module: ModuleType) -> list[Patch]:
        require_function(module, "get_moe_configs", _CONFIG_ARGUMENTS)
        require_function(module, "get_default_config", _DEFAULT_ARGUMENTS)
        require_function(module, "get_config_file_name", ("E", "N", "dtype", "block_shape"))
        require_source(module, "try_get_optimal_moe_config", (_LOOKUP, "configs = get_moe_configs("))
        require_function(module, "enable_swap_ab", ("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
        require_source(module, "invoke_fused_moe_triton_kernel", (_SWAP_QUESTION,))
        if require_attribute(require_attribute(module, "envs"), "VLLM_BATCH_INVARIANT"):
            raise DeclinedError("VLLM_BATCH_INVARIANT fixes the tiles")
        return [
            Patch(module, "get_moe_configs", lambda original: self._configs(module, original)),
            Patch(module, "enable_swap_ab", self._swap_ab),
        ]

    def _configs(self, module: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        answers: dict[TileKey, tuple[int, Any]] = {}

        def get_moe_configs(
            E: int, N: int, dtype: str | None, block_n: int | None = None, block_k: int | None = None
        ) -> Any:
            tiles = forced()
            if tiles is not None:
                return tiles
            key = TileKey(E, N, dtype, block_n or 0, block_k or 0)
            generation, answer = answers.get(key, (-1, None))
            if generation != self.context.deployment.generation:
                own = original(E, N, dtype, block_n, block_k)
                answer = self._answer(module, key, own)
                answers[key] = (self.context.deployment.generation, answer)
            return answer

        return get_moe_configs

    def _answer(self, module: Any, key: TileKey, own: dict[int, Config] | None) -> Any:
        try:
            picked = pick_table(self.context, key)
            if picked.published is None or picked.published.table is None:
                if picked.reason:
                    warn_once(f"no tiles for {key}: {picked.reason}")
                return own
            user_file = _user_file(module, key)
            if user_file:
                info_once(
                    f"no tiles for {key}: VLLM_TUNED_CONFIG_FOLDER has {user_file}, which stays in force"
                )
                return own
            return self._from_table(module, key, picked.published, picked.moved_to_triton, own)
        except Exception as error:
            # In the middle of a forward pass: a failure costs speed, never the server.
            warn_once(f"no tiles for {key}: {type(error).__name__}: {error}")
            return own

    def _from_table(
        self, module: Any, key: TileKey, published: PublishedTable, moved: bool, own: dict[int, Config] | None
    ) -> Any:
        table = published.table
        assert table is not None
        # Checked here and not by trying: a launch that fails would be in the middle of a forward pass.
        environment = self.context.client.environment or table.environment
        unfit = unlaunchable(table, environment, moved)
        counts = covered(table, moved, unfit)
        where = table_label(table, published.revision)
        if unfit:
            reasons = joined(unfit.values())
            warn_once(f"{where}: vLLM's own tile where the table's cannot run for {table.problem}: {reasons}")
        if not counts:
            info_once(f"{where} keeps vLLM's own tiles for {table.problem}")
            return own
        verb = "would be applied" if self.context.observe else "applied"
        info_once(f"{where} {verb} to {table.problem}: tiles for M in {counts}")
        if self.context.observe:
            return own
        return TileMap(_chooser(module, key, table, moved, own, unfit))

    def _swap_ab(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enable_swap_ab(BLOCK_SIZE_M: int, BLOCK_SIZE_N: int) -> Any:
            choice = take_swap_ab(BLOCK_SIZE_M, BLOCK_SIZE_N)
            return original(BLOCK_SIZE_M, BLOCK_SIZE_N) if choice is None else choice

        return enable_swap_ab


def _chooser(
    module: Any,
    key: TileKey,
    table: RoutingTable,
    moved: bool,
    own: dict[int, Config] | None,
    unfit: Collection[TritonCandidate],
) -> Callable[[int], Config]:
    problem = table.problem
    tiles: dict[TritonCandidate, TileConfig] = {}

    def choose(tokens: int) -> Config:
        candidate = tile_at(table, tokens, moved) if tokens > 0 else None
        if candidate is not None and candidate not in unfit:
            if candidate not in tiles:
                tiles[candidate] = TileConfig(candidate.tile.vllm_config(), candidate.swap_ab)
            return tiles[candidate]
        if own:
            return own[min(own, key=lambda count: abs(count - tokens))]
        default: Config = module.get_default_config(
            tokens, key.E, key.N, problem.K, problem.topk, key.dtype, key.block_shape
        )
        return default

    return choose


def _user_file(module: Any, key: TileKey) -> str:
    folder = module.envs.VLLM_TUNED_CONFIG_FOLDER
    if not folder:
        return ""
    name = str(module.get_config_file_name(key.E, key.N, key.dtype, key.block_shape))
    return name if os.path.exists(os.path.join(folder, name)) else ""
