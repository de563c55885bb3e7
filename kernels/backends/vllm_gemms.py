"""The two launches of vLLM's Triton MoE kernel, with the arguments that a server passes, on no GPU.

Enumerating what vLLM would compile means asking Triton's binder with those arguments. vLLM's own functions
take them; which they are stands in `TritonExperts.apply` (`experts/triton_moe.py`), and the plugin's tests
hold the two against each other. The tensors are CPU ones that are never touched.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from autotune.kernels.ahead.variants import Found, collecting
from autotune.kernels.backends.fused import unfilled
from autotune.vocabulary.problem import Problem, Scheme

_FUSED_MOE = "vllm.model_executor.layers.fused_moe"
DENSE = 1024
"""Up to here, or twice the number of experts, every token count is looked at."""
PERIOD = 16
"""Triton asks whether an integer is divisible by 16."""
Config = Mapping[str, Any]


class TritonGemms:
    """One layer of vLLM's Triton MoE, as TritonExperts launches it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.module: Any = importlib.import_module(f"{_FUSED_MOE}.fused_moe")
        self._align: Any = importlib.import_module(f"{_FUSED_MOE}.moe_align_block_size")
        self._weights, _ = unfilled(problem, 1)
        self._expert_map = torch.empty(problem.global_experts, dtype=torch.int32, device="cpu")
        self._block = [128, 128] if problem.scheme is Scheme.FP8_BLOCK128 else None

    def config(self, tokens: int) -> Config:
        """The tile that vLLM looks up for a token count: its own, or what a plugin answers in its place."""
        problem = self.problem
        found: Config = self.module.try_get_optimal_moe_config(
            (problem.E, problem.gate_up_rows, problem.K), (problem.E, problem.K, problem.N), problem.topk,
            problem.scheme.vllm_dtype, tokens, block_shape=self._block,
        )  # fmt: skip
        return found

    def launch(self, tokens: int, config: Config) -> None:
        """Launch both GEMMs. Only where launches are caught: the tensors are not on a GPU."""
        problem, weights, scheme = self.problem, self._weights, self.problem.scheme
        pairs = tokens * problem.topk
        topk_ids = _empty(tokens, problem.topk, dtype=torch.int32)
        topk_weights = _empty(tokens, problem.topk)
        ids, expert_ids, padded = self._assign(topk_ids, config, tokens)
        hidden, hidden_scale = self._activations(tokens, problem.K)
        inner, inner_scale = self._activations(pairs, problem.N)
        first = _empty(tokens, problem.topk, problem.gate_up_rows, dtype=torch.bfloat16)
        second = _empty(tokens, problem.topk, problem.K, dtype=torch.bfloat16)
        for a, a_scale, w, w_scale, out, routed, topk in (
            (hidden, hidden_scale, weights.w13, weights.w13_scale, first, None, problem.topk),
            (inner, inner_scale, weights.w2, weights.w2_scale, second, topk_weights, 1),
        ):
            weigh = routed is not None
            self.module.invoke_fused_moe_triton_kernel(
                a, w, out, a_scale, w_scale, routed, ids, expert_ids, padded, weigh, topk, config,
                compute_type=self.module.tl.bfloat16,
                use_fp8_w8a8=scheme.is_fp8,
                use_int8_w8a8=False,
                use_int8_w8a16=False,
                use_int4_w4a16=False,
                per_channel_quant=scheme is Scheme.FP8_CHANNEL,
                block_shape=self._block,
            )  # fmt: skip

    def _assign(self, topk_ids: torch.Tensor, config: Config, tokens: int) -> tuple[Any, Any, Any]:
        problem = self.problem
        expert_map = self._expert_map if problem.ep > 1 else None
        original = self._align.ops.moe_align_block_size
        self._align.ops.moe_align_block_size = lambda *args, **kwargs: None
        try:
            found: tuple[Any, Any, Any] = self.module._prepare_expert_assignment(
                # Dropping other ranks' pairs, as 0.33 does, or marking them, changes no shape and no type;
                # this way nothing reads what the sort would have written.
                topk_ids, config, tokens, problem.topk, problem.global_experts, expert_map,
                ignore_invalid_experts=expert_map is not None,
            )  # fmt: skip
        finally:
            self._align.ops.moe_align_block_size = original
        return found

    def _activations(self, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        scheme = self.problem.scheme
        if scheme is Scheme.BF16:
            return _empty(rows, columns, dtype=torch.bfloat16), None
        values = _empty(rows, columns, dtype=torch.float8_e4m3fn)
        if scheme is Scheme.FP8_TENSOR:
            return values, _empty()
        return values, _empty(rows, columns // 128 if scheme is Scheme.FP8_BLOCK128 else 1)


def reachable(gemms: TritonGemms, most: int) -> Found:
    """Every variant that vLLM's launches need between 1 and `most` tokens; nothing is compiled.

    Where the tile stays the same, the padded rows and the pairs grow by a whole number for each token, so
    what Triton asks of them repeats every 16 counts. That holds once all of vLLM's cases for few tokens are
    behind: fewer tokens than a tile has rows, fewer pairs than experts, pairs that need no sort.
    """
    with collecting() as found:
        for tokens, config in _representatives(gemms.config, most, 2 * gemms.problem.global_experts):
            found.tokens = tokens
            gemms.launch(tokens, config)
    return found


def _representatives(
    look_up: Callable[[int], Config], most: int, at_least: int
) -> Iterator[tuple[int, Config]]:
    dense = max(DENSE, at_least)
    last: Any = None
    since = 0
    for tokens in range(1, most + 1):
        config = look_up(tokens)
        tile = (sorted(config.items()), getattr(config, "swap_ab", None))
        if tile != last:
            last, since = tile, tokens
        if tokens <= dense or tokens - since < PERIOD:
            yield tokens, config


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")
