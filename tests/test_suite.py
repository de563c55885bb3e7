"""What all tests rely on, whatever machine and shell they are started from."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.processes import ignores_hangups, takes_interrupts

IGNORING = "import signal, sys; print(signal.getsignal(getattr(signal, sys.argv[1])) is signal.SIG_IGN)"


def test_property_tests_have_no_deadline() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None


@settings(max_examples=2)
@given(st.just(0.25))
def test_a_slow_example_is_no_failure(seconds: float) -> None:
    # Longer than the 200 ms that Hypothesis allows by itself.
    time.sleep(seconds)


def ignored(name: str, prepare: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", IGNORING, name], capture_output=True, text=True, check=True, timeout=60,
        preexec_fn=prepare,  # type: ignore[arg-type]
    )  # fmt: skip
    return done.stdout.strip()


def test_programs_under_test_take_interrupts_that_this_process_ignores() -> None:
    """A shell starts what it runs in the background, and nohup all, with signals ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert ignored("SIGINT", None) == "True"
        assert ignored("SIGINT", takes_interrupts) == "False"
    finally:
        signal.signal(signal.SIGINT, before)
    assert ignored("SIGHUP", ignores_hangups) == "True"
