"""Labelled lines of text, wrapped for the terminal."""

from __future__ import annotations

import textwrap


def labelled(label: str, text: str, indent: int = 13) -> str:
    """`label` and, from column `indent` on, the text, wrapped at the terminal's width.

    Words, such as paths, stay whole, so that they can be copied.
    """
    from rich.console import Console

    return textwrap.fill(
        text,
        # One column is left free, as some terminals wrap at the last one.
        width=max(Console().width - 1, indent + 20),
        initial_indent=f"{label:<{indent - 1}} " if indent else "",
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
