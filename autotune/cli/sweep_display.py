"""The live display of a sweep: what is being tried, the best so far and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from autotune.vocabulary.text import counted

PLAIN_EVERY_S = 10.0
"""Without a terminal (a log file), one line about this often, seconds."""


class SweepDisplay:
    """Shows a sweep's progress on stderr; a bar on terminals, occasional lines elsewhere.

    Args:
        check: called at each step; may raise.
    """

    def __init__(
        self, console: Console, budget_s: float | None, check: Callable[[], None] = lambda: None
    ) -> None:
        self._console = console
        self._check = check
        self._budget_s = budget_s
        self._start = time.monotonic()
        self._last = 0.0
        self._name = ""
        self._done = self._total = 0
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[trying]}", style="dim"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task: Any = None

    def __enter__(self) -> SweepDisplay:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def phase(self, name: str, total: int) -> None:
        """A new phase begins; `total` steps are all of it."""
        self._name, self._done, self._total = name, 0, total
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total, trying="", left="")
        if not self._console.is_terminal:
            self._console.print(f"{name}{self._left()}")
        self._last = time.monotonic()

    def step(self, tokens: int, trying: str, best: str = "", *, advance: int = 1) -> None:
        """One step further, or another thing being tried."""
        self._check()
        self._done += advance
        text = f"{counted(tokens, 'token')}: {trying}" + (f"  best {best}" if best else "")
        self._bar.update(self._task, advance=advance, trying=text, left=self._left())
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last >= PLAIN_EVERY_S:
            self._last = now
            self._console.print(
                f"{self._name} {self._done / max(self._total, 1):.0%}{self._left()}: {text}", soft_wrap=True
            )

    def note(self, text: str) -> None:
        """A sentence that stays, wrapped at the terminal's width."""
        self._console.print(text, markup=False)

    def _left(self) -> str:
        if self._budget_s is None:
            return ""
        left = self._budget_s - (time.monotonic() - self._start)
        return f" {left:.0f} s left" if left > 0 else " over budget, finishing the evidence"
