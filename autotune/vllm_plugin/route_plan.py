"""The choice per token count that all layers of one shape share: an array, and what has been found out."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from autotune.vllm_plugin.log import info_once, warn_once
from autotune.vllm_plugin.route_reach import Entry, Outlook, span
from autotune.vocabulary.candidate import BackendName
from autotune.vocabulary.problem import Problem

if TYPE_CHECKING:
    from autotune.vllm_plugin.route_ahead import Ahead

Shape = tuple[int, ...]
Shapes = tuple[Shape, Shape, Shape]
_MAX_SHAPES = 65_536

BASE = 0
"""Index of the experts that vLLM chose; the route `entries[i]` is i + 1."""


class RoutePlan:
    """Which experts serve a token count, for one problem on one base backend.

    Nothing but the base serves until a route has been proved (`prove`); a backend that fails leaves for
    good (`remove`). `serving` is replaced, never changed in place, so a reader needs no lock.

    Args:
        outlook: the routes that other backends than the base can serve.
        removed: backends that this process has already found wanting, with the reasons.
    """

    def __init__(
        self, problem: Problem, outlook: Outlook, removed: dict[BackendName, str] | None = None
    ) -> None:
        self.problem = problem
        self.base = outlook.base
        self.entries = outlook.entries
        self.declined = outlook.declined
        self.removed: dict[BackendName, str] = dict(removed or {})
        self.size = max((entry.last for entry in self.entries), default=0) + 1
        self.serving = array("H", bytes(2 * self.size))
        self.pending: tuple[int, ...] = tuple(
            index for index, entry in enumerate(self.entries, 1) if entry.backend not in self.removed
        )
        """Indices still to be proved."""
        self.next_first = self._next_first()
        """The smallest token count at which something is due: what a call compares its own with."""
        self.shapes: dict[int, tuple[Shape, Shapes]] = {}
        """Workspaces by M, the larger of each over all possible experts, with the (N, K, topk, local experts)
        that they are for: the same in all layers of a shape."""
        self.calls: dict[tuple[int, int], int] | None = None
        """Calls that Python made, by token count and index, once they are counted (`Ledger.ready`)."""
        self.ahead_s = 0.0
        """Seconds for which our kernels may be compiled side by side before the first routes are tried."""
        self.ahead: Ahead | None = None
        """Those that are being compiled since the plan was made."""
        self.gate_wrong: str | None = None
        """What is wrong with our gate in front of one token's route (`gate.py`); None until it is tried."""
        self.lock = threading.Lock()

    def __str__(self) -> str:
        served = ", ".join(
            str(entry) for index, entry in enumerate(self.entries, 1) if self.serving[entry.first] == index
        )
        return served or "nothing"

    @property
    def backends(self) -> tuple[BackendName, ...]:
        """The added backends that are still in, in the order of their routes."""
        seen = dict.fromkeys(entry.backend for entry in self.entries)
        return tuple(backend for backend in seen if backend not in self.removed)

    def chosen(self, tokens: int) -> int:
        """Index of the experts for a token count."""
        return self.serving[tokens] if tokens < self.size else BASE

    def due(self, tokens: int) -> list[int]:
        """Indices to be proved whose routes begin at or below `tokens`."""
        return [index for index in self.pending if self.entries[index - 1].first <= tokens]

    def _next_first(self) -> int:
        return min((self.entries[index - 1].first for index in self.pending), default=sys.maxsize)

    def prove(
        self,
        indices: Sequence[int],
        check: Callable[[int, int], str],
        tried_at: Callable[[Entry], Sequence[int]] = lambda entry: (entry.first,),
    ) -> None:
        """Try routes once; those that pass serve from now on, the backend of one that fails leaves.

        Args:
            check: tries one index at a token count; returns what is wrong, or an empty string. An exception
                counts as that.
            tried_at: the token counts at which a route is tried.
        """
        with self.lock:
            for index in indices:
                if index not in self.pending:
                    continue
                entry = self.entries[index - 1]
                wrong = _first_wrong(entry, partial(check, index), tried_at)
                if wrong:
                    self._remove(entry.backend, f"its probe at {wrong}")
                    continue
                serving = array("H", self.serving)
                serving[entry.first : entry.last + 1] = array("H", [index]) * (entry.last + 1 - entry.first)
                self.serving = serving
                self.pending = tuple(other for other in self.pending if other != index)
            self.next_first = self._next_first()
            info_once(f"routing per call for {self.problem} over {self.base}: {self}")

    def remove(self, backend: BackendName, reason: str) -> None:
        """Give a backend's routes back to the base, for the life of this process, with one log line."""
        with self.lock:
            self._remove(backend, reason)

    def _remove(self, backend: BackendName, reason: str) -> None:
        if backend in self.removed:
            return
        self.removed[backend] = reason
        gone = {index for index, entry in enumerate(self.entries, 1) if entry.backend == backend}
        self.serving = array("H", (BASE if index in gone else index for index in self.serving))
        self.pending = tuple(index for index in self.pending if index not in gone)
        self.next_first = self._next_first()
        counts = ", ".join(span(self.entries[i - 1].first, self.entries[i - 1].last) for i in sorted(gone))
        warn_once(f"{backend} leaves the table of {self.problem}, {self.base} serves M in {counts}: {reason}")

    def remember(self, tokens: int, sizes: Shape, shapes: Shapes) -> None:
        """Keep the workspaces of a token count.

        Args:
            sizes: N, K, topk and local experts, as vLLM gave them.
        """
        if len(self.shapes) >= _MAX_SHAPES:
            self.shapes.clear()
        self.shapes[tokens] = sizes, shapes


def _first_wrong(
    entry: Entry, check: Callable[[int], str], tried_at: Callable[[Entry], Sequence[int]]
) -> str:
    tokens = entry.first
    try:
        for tokens in tried_at(entry):
            if wrong := check(tokens):
                return f"{tokens} tokens failed: {wrong}"
    except Exception as error:
        return f"{tokens} tokens failed: {type(error).__name__}: {error}"
    return ""
