"""Checks of the parts of vLLM that a feature relies on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


class SurfaceChangedError(Exception):
    """vLLM differs from what a feature needs; the message says where."""


def require_attribute(owner: Any, name: str) -> Any:
    """The attribute `name` of a module or class.

    Raises:
        SurfaceChangedError: if it is not there.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        raise SurfaceChangedError(f"{_label(owner)} has no {name}") from None


def require_function(owner: Any, name: str, parameters: Sequence[str]) -> Callable[..., Any]:
    """A function whose parameters are exactly these, in this order.

    Raises:
        SurfaceChangedError: if it is not there, or takes others.
    """
    function = require_attribute(owner, name)
    try:
        found = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise SurfaceChangedError(f"{_label(owner)}.{name} has no signature: {error}") from None
    if found != tuple(parameters):
        raise SurfaceChangedError(
            f"{_label(owner)}.{name} takes ({', '.join(found)}), not ({', '.join(parameters)})"
        )
    return function  # type: ignore[no-any-return]


def require_source(owner: Any, name: str, expressions: Sequence[str]) -> None:
    """That the body of a function contains these expressions (white space aside).

    Raises:
        SurfaceChangedError: if one is missing, or there is no source to look at.
    """
    try:
        source = inspect.getsource(require_attribute(owner, name))
    except (OSError, TypeError) as error:
        raise SurfaceChangedError(f"the source of {_label(owner)}.{name} is not at hand: {error}") from None
    squeezed = "".join(source.split())
    for expression in expressions:
        if "".join(expression.split()) not in squeezed:
            raise SurfaceChangedError(f"{_label(owner)}.{name} no longer contains `{expression}`")


def require_fields(cls: type, names: Sequence[str]) -> None:
    """That a dataclass has these fields or properties.

    Raises:
        SurfaceChangedError: naming those that are missing.
    """
    fields = getattr(cls, "__dataclass_fields__", {})
    missing = [name for name in names if name not in fields and not hasattr(cls, name)]
    if missing:
        raise SurfaceChangedError(f"{cls.__name__} has no {', '.join(missing)}")


def _label(owner: Any) -> str:
    return str(getattr(owner, "__name__", owner))
