"""Ctrl-C, a plain kill and a closed terminal as one exception that does not get lost."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """From its making on each of `SIGNALS` raises `KeyboardInterrupt`, unless it was ignored before.

    Python prints and drops what is raised in a destructor or the callback of a weak reference, so long work
    asks `check` at each of its steps.
    """

    def __init__(self) -> None:
        self._asked = False
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup starts a program
                signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises:
        KeyboardInterrupt: if one was asked for, and the work goes on all the same.
        """
        if self._asked:
            raise KeyboardInterrupt
