"""Strings that can be stored anywhere: bounded, without control characters or lone surrogates."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field


def _printable(value: str) -> str:
    for character in value:
        if not character.isprintable() and character not in "\n\t":
            raise ValueError(f"unprintable character {character!r}".encode("unicode_escape").decode())
    return value


Text = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
"""A name or version."""
LongText = Annotated[str, Field(max_length=2000), AfterValidator(_printable)]
"""A sentence or two."""


def counted(number: int, noun: str) -> str:
    """`1 range`, `2 ranges`: a number with its noun, which forms its plural by an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str, most: int = 500) -> str:
    """Foreign text, such as a library's error, made fit to be stored: control characters become spaces."""
    return "".join(c if c.isprintable() else " " for c in text)[:most]
