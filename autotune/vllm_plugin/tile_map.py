"""What `get_moe_configs` returns in place of vLLM's mapping from token counts to tiles.

vLLM takes `configs[min(configs.keys(), key=lambda x: abs(x - M))]`: the nearest key, with no outside. The
mapping here has one key object, made anew for each look-up, that notes M when it is subtracted from; the
item look-up then answers for exactly that M.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Config = dict[str, Any]
_read = threading.local()


class _Key:
    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0

    def __sub__(self, tokens: int) -> int:
        self.tokens = int(tokens)
        return 0


class TileMap(Mapping[Any, Config]):
    """Answers per token count.

    Args:
        choose: the configuration for a token count; never None.
    """

    def __init__(self, choose: Callable[[int], Config]) -> None:
        self._choose = choose
        self._known: dict[int, Config] = {}

    def __getitem__(self, key: _Key | int) -> Config:
        tokens = key.tokens if isinstance(key, _Key) else key
        config = self._known.get(tokens)
        if config is None:
            config = self._known[tokens] = self._choose(tokens)
        return config

    def __iter__(self) -> Iterator[Any]:
        return iter((_Key(),))

    def __len__(self) -> int:
        return 1


class TileConfig(dict[str, Any]):
    """A tile with a Swap-AB choice, in vLLM's keys only: an unknown one would fail in the launch.

    vLLM asks `enable_swap_ab(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"])`; the two reads, in that
    order and with nothing between, leave the choice for the question that follows on the same thread.
    """

    def __init__(self, values: Mapping[str, int], swap_ab: bool) -> None:
        super().__init__(values)
        self.swap_ab = swap_ab

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if key == "BLOCK_SIZE_M":
            _read.first = self
            _read.choice = None
        elif key == "BLOCK_SIZE_N" and getattr(_read, "first", None) is self:
            _read.choice = (super().__getitem__("BLOCK_SIZE_M"), value, self.swap_ab)
            _read.first = None
        return value


def force(tiles: TileMap | None) -> None:
    """Make this thread's look-ups answer with these tiles, whatever they ask for; None ends it."""
    _read.forced = tiles


def forced() -> TileMap | None:
    """What `force` set in this thread."""
    return getattr(_read, "forced", None)


def take_swap_ab(block_m: int, block_n: int) -> bool | None:
    """The choice that the last two reads left for this tile; None if it is vLLM's own configuration."""
    choice = getattr(_read, "choice", None)
    _read.choice = None
    if choice is None or choice[:2] != (block_m, block_n):
        return None
    return bool(choice[2])
