"""The plugin's log lines: through vLLM's logging if vLLM is there, each line once per process."""

from __future__ import annotations

import logging
import sys

from autotune.vocabulary.text import printable

_said: set[str] = set()
_told: set[tuple[str, str]] = set()


def logger() -> logging.Logger:
    """A child of vLLM's logger once vLLM is imported, so that its handlers and format apply."""
    return logging.getLogger("vllm.autotune" if "vllm" in sys.modules else "autotune")


def info_once(message: str) -> None:
    """Log a line unless this process has logged it before."""
    _once(logging.INFO, message)


def warn_once(message: str) -> None:
    """As `info_once`, as a warning."""
    _once(logging.WARNING, message)


def first_time(subject: object, cause: str) -> bool:
    """Whether this cause has not been told of the subject yet; from now on it has.

    Several features meet the same cause, such as a stale table; one line is enough.
    """
    key = (str(subject), cause)
    if key in _told:
        return False
    _told.add(key)
    return True


def _once(level: int, message: str) -> None:
    # One line each, whatever a service, a file or a library put into it.
    message = printable(message, 4000)
    if message not in _said:
        _said.add(message)
        logger().log(level, "autotune: %s", message)
