"""What a program under test is started with: to be given to `subprocess` as `preexec_fn`."""

from __future__ import annotations

import signal


def takes_interrupts() -> None:
    """Have the program take Ctrl-C even where these tests were started with SIGINT ignored.

    A shell does so for what it runs in the background, and children inherit it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignores_hangups() -> None:
    """As `nohup` starts a program."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
