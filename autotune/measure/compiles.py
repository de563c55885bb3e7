"""Counting Triton compilations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class CompileCount:
    """How many compilations were seen, and of which kernels."""

    count: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, source: Any) -> None:
        """Count one, naming its kernel."""
        self.count += 1
        self.names.append(str(getattr(source, "name", source)))


@contextmanager
def counting_compiles() -> Iterator[CompileCount]:
    """Count Triton compilations that were not found in its cache (`triton.knobs.compilation.listener`)."""
    from triton import knobs

    counted = CompileCount()
    previous = knobs.compilation.listener

    def listen(**event: Any) -> None:
        if not event.get("cache_hit", False):
            counted.add(event.get("src"))
        if previous is not None:
            previous(**event)

    knobs.compilation.listener = listen
    try:
        yield counted
    finally:
        knobs.compilation.listener = previous


@contextmanager
def counting_variants() -> Iterator[CompileCount]:
    """Count kernel variants that a process had not loaded yet, whether or not they were in the disk cache."""
    from triton import knobs

    counted = CompileCount()
    previous = knobs.compilation.listener

    def listen(**event: Any) -> None:
        counted.add(event.get("src"))
        if previous is not None:
            previous(**event)

    knobs.compilation.listener = listen
    try:
        yield counted
    finally:
        knobs.compilation.listener = previous
