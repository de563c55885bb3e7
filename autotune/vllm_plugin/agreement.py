"""One verdict for all ranks on whether they decide alike, through the store that torch's ranks share.

A rank without the plugin would never join a collective, so nothing here waits without a limit. Ranks that
run out of patience at different moments could see different things; therefore the first to judge writes
its verdict where there is none, atomically, and all others follow it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

_PREFIX = "autotune/ranks"
_VERDICT = f"{_PREFIX}/verdict"


class Store(Protocol):
    """What is used of `torch.distributed.Store`."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


def disagreement(store: Store, rank: int, size: int, facts: Mapping[str, str], timeout_s: float) -> str:
    """Why the ranks do not decide alike, the same text on all of them; empty if they do.

    Args:
        facts: what decides on this rank, by the words in which a difference is told.
        timeout_s: how long to wait for the facts of the other ranks.

    Raises:
        RuntimeError: if the store cannot be reached.
    """
    keys = [f"{_PREFIX}/{each}" for each in range(size)]
    store.set(keys[rank], json.dumps(dict(facts)))
    with contextlib.suppress(RuntimeError):  # what a store raises when the time is over
        store.wait(keys, timedelta(seconds=timeout_s))
    told = {each: store.get(key).decode() for each, key in enumerate(keys) if store.check([key])}
    missing = [each for each in range(size) if each not in told]
    mine = _missing(missing, size, timeout_s) if missing else difference(told)
    verdict = json.loads(store.compare_set(_VERDICT, "", json.dumps({"why": mine})))
    return str(verdict["why"])


def _missing(missing: Sequence[int], size: int, timeout_s: float) -> str:
    return (
        f"{_ranks(missing)} of {size} did not tell its tables within {timeout_s:g} s (the plugin is not "
        "installed there, VLLM_PLUGINS leaves it out, or AUTOTUNE_MODE=off)"
    )


def difference(told: Mapping[int, str]) -> str:
    """What differs between ranks' facts (JSON objects of texts, by rank), in words; empty if nothing does."""
    facts: dict[int, dict[str, str]] = {each: json.loads(text) for each, text in told.items()}
    names = dict.fromkeys(name for of_rank in facts.values() for name in of_rank)
    found = []
    for name in names:
        holders: dict[str, list[int]] = {}
        for each, of_rank in facts.items():
            holders.setdefault(of_rank.get(name, "not told"), []).append(each)
        if len(holders) > 1:
            differ = "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in holders.items())
            found.append(f"{name}: {differ}")
    return ", ".join(found)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
