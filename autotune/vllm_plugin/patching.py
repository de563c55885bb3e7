"""Reversible replacement of a module's function or a class's method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
_MARK = "__autotune_patch__"


class Patch:
    """One replaced attribute.

    Other plugins may replace the same one before or after: each calls what it found. If another sits on
    top when this one is undone, its chain stays whole and this link passes everything through.

    Args:
        owner: module or class.
        make: given the original, returns the function to call instead.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        self.owner = owner
        self.name = name
        self._make = make
        self._original: Function | None = None
        self._link: Function | None = None
        self._active = False

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"

    @property
    def found(self) -> str:
        """The module outside vLLM that had replaced the attribute before; empty if none had."""
        where = str(getattr(self._original, "__module__", "") or "")
        return "" if where.split(".")[0] in ("", "vllm") else where

    def apply(self) -> None:
        """Replace the attribute; a patch that an earlier loading of this plugin left is taken off first."""
        if self._active:
            return
        earlier = getattr(getattr(self.owner, self.name), _MARK, None)
        if earlier is not None:
            earlier.unapply()
        original = getattr(self.owner, self.name)
        replacement = self._make(original)

        @functools.wraps(original)
        def link(*args: Any, **kwargs: Any) -> Any:
            return replacement(*args, **kwargs) if self._active else original(*args, **kwargs)

        setattr(link, _MARK, self)
        for helper in ("cache_clear", "cache_info"):
            if hasattr(original, helper):
                setattr(link, helper, getattr(original, helper))
        self._original, self._link, self._active = original, link, True
        setattr(self.owner, self.name, link)

    def unapply(self) -> None:
        """Put the original back, or let calls through to it if another patch sits on top."""
        if not self._active:
            return
        self._active = False
        if getattr(self.owner, self.name) is self._link:
            setattr(self.owner, self.name, self._original)


def is_patched(owner: Any, name: str) -> bool:
    """Whether a patch of ours is in force on an attribute, also beneath another plugin's that wraps it."""
    current = getattr(owner, name, None)
    while current is not None:
        patch = getattr(current, _MARK, None)
        if patch is not None:
            return bool(patch._active)
        current = getattr(current, "__wrapped__", None)
    return False


class Replacement:
    """One replaced attribute that is no plain function, such as a Triton kernel, and cannot be wrapped.

    Args:
        owner: module or class.
        make: given the original, returns the object to put in its place.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner = owner
        self.name = name
        self._make = make
        self._original: Any = None
        self._new: Any = None

    def apply(self) -> None:
        """Replace the attribute; one that an earlier loading of this plugin put there is replaced in turn."""
        if self._new is not None:
            return
        current = getattr(self.owner, self.name)
        earlier = getattr(current, _MARK, None)
        if earlier is not None:
            earlier.unapply()
            current = getattr(self.owner, self.name)
        self._original, self._new = current, self._make(current)
        setattr(self._new, _MARK, self)
        setattr(self.owner, self.name, self._new)

    def unapply(self) -> None:
        """Put the original back, unless somebody else has replaced it since."""
        if self._new is not None and getattr(self.owner, self.name) is self._new:
            setattr(self.owner, self.name, self._original)
        self._new = None
