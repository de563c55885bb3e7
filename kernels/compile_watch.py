"""Counts what Triton compiles in a serving process, before and after it was ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


class CompileWatch:
    """Listens to Triton (`triton.knobs.compilation.listener`) and passes each event on to who did before.

    A variant that Triton finds in its cache on disk is no compilation, and counted apart.
    """

    def __init__(self) -> None:
        self.before_ready = 0
        """Compilations before `ready`."""
        self.compiled: Counter[str] = Counter()
        """Compilations since, by kernel."""
        self.read: Counter[str] = Counter()
        """Variants read from the cache on disk since, by kernel."""
        self._ready = False
        self._previous: Callable[..., Any] | None = None
        self._listener: Callable[..., Any] | None = None

    def start(self) -> None:
        """Begin to listen; a second call does nothing.

        Raises:
            ImportError: without a Triton that has this listener (3.6 has).
        """
        if self._listener is not None:
            return
        from triton import knobs

        if not hasattr(knobs.compilation, "listener"):
            raise ImportError("this Triton tells nobody of its compilations")
        self._previous = previous = knobs.compilation.listener

        def listen(**event: Any) -> None:
            if self._listener is listen:
                self._add(event)
            if previous is not None:
                previous(**event)

        self._listener = knobs.compilation.listener = listen

    def ready(self) -> None:
        """What comes from now on is compiled while requests wait."""
        self._ready = True

    def stop(self) -> None:
        """Listen no more; who began to listen later stays."""
        from triton import knobs

        if self._listener is not None and knobs.compilation.listener is self._listener:
            knobs.compilation.listener = self._previous
        self._listener = None

    def _add(self, event: dict[str, Any]) -> None:
        hit = bool(event.get("cache_hit", False))
        name = str(getattr(event.get("src"), "name", None) or "a kernel")
        if self._ready:
            (self.read if hit else self.compiled)[name] += 1
        elif not hit:
            self.before_ready += 1
