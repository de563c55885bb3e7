"""What `AUTOTUNE_MODE=observe` counts: which route each call of a layer would have taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Any

from autotune.vllm_plugin.log import logger

_TOPK_IDS = 5
"""Position of `topk_ids` among the arguments of vLLM's `apply`."""


class Observation:
    """Counts of one process, logged when it ends.

    Only calls that Python makes are seen: a replayed CUDA graph counts once, when it is captured.
    """

    def __init__(self) -> None:
        self._layers: list[tuple[str, Callable[[int], str], Counter[int]]] = []
        self._kinds: dict[tuple[str, int], Counter[int]] = {}

    def watch(self, experts: Any, layer: str, answer: Callable[[int], str]) -> None:
        """Count the calls of a layer's experts; what they compute stays as it is.

        Args:
            layer: what the layer is, for the log.
            answer: the route for a token count, or the reason why there is none, as text.
        """
        if not self._layers:
            # Also at the end of a process that vLLM forked, which runs no atexit.
            Finalize(None, self.report, exitpriority=100)
        counts: Counter[int] = Counter()
        self._layers.append((layer, answer, counts))
        original = experts.apply

        def apply(*args: Any, **named: Any) -> Any:
            ids = named["topk_ids"] if "topk_ids" in named else args[_TOPK_IDS]
            counts[ids.shape[0]] += 1
            return original(*args, **named)

        experts.apply = apply

    def lines(self) -> list[str]:
        """One line for each route and each reason of each kind of layer, most calls first."""
        calls: Counter[tuple[str, str]] = Counter()
        for layer, answer, counts in self._layers:
            for tokens, count in counts.items():
                calls[layer, answer(tokens)] += count
        return [f"{layer}: {answer}: {count} calls" for (layer, answer), count in calls.most_common()]

    def report(self) -> None:
        """Log the counts."""
        for line in self.lines():
            logger().info("autotune: observed: %s", line)
