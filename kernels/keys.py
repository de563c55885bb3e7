"""Cache keys of Triton functions that do not depend on which of them was asked for its key first."""

from __future__ import annotations

from typing import Any


def settle(namespace: dict[str, Any]) -> None:
    """Ask all Triton functions of a module for their keys, those that others call first; at the module's end.

    Triton (3.6 to 3.8) puts into a function's key the globals that a called function uses, but only those
    that it knew of before it computed the called one's own key. So a key came out otherwise in a process that
    had used the called function before, and what one process compiled was not found by another.
    """
    for value in list(namespace.values()):
        getattr(value, "cache_key", None)
