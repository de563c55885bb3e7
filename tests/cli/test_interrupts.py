"""An interrupt ends a sweep, also where Python drops what it raises."""

from __future__ import annotations

import os
import signal
import sys
import weakref
from collections.abc import Iterator

import pytest

from autotune.cli.interrupts import SIGNALS, Interrupts


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Thing:
    """Something that a weak reference can be to."""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_an_interrupt(number: signal.Signals) -> None:
    interrupts = Interrupts()
    interrupts.check()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_one_that_python_drops_is_raised_at_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: dropped.append(told.exc_type))
    interrupts = Interrupts()
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del thing
    assert reference() is None
    assert dropped == [KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        interrupts.check()


def test_what_was_ignored_stays_ignored() -> None:
    """As nohup starts a program."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts = Interrupts()
    signal.raise_signal(signal.SIGHUP)
    interrupts.check()
