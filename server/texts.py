"""Sentences that were written for the command line, as the service says them: cut, and in HTTP's words."""

from __future__ import annotations

ECHOED = 200
"""Characters of a caller's own text that an answer repeats."""
LONGEST = 2000
"""Characters of one sentence in an answer, whatever it is made of."""

_OVER_HTTP: tuple[tuple[str, str], ...] = (
    ("set AUTOTUNE_MATCH=compatible to take it", "ask with match=compatible to take it"),
    ("List them with `autotune revisions`.", "GET /revisions lists them."),
    ("List the fitting ones with `autotune revisions`.", "GET /revisions?gpu=...&shape=... lists them."),
    ("Compare two of one problem and GPU; `autotune revisions` lists them.",
     "Compare two of one problem and GPU; GET /revisions?gpu=...&shape=... lists them."),
    ("Say it with --author.", "Send it as `author`."),
    ("Say it with --reason.", "Send it as `reason`."),
    ("Give a revision with --to N, or --to none to have nothing applied.",
     "POST /revisions/{number}/activate takes any of them."),
)  # fmt: skip


def over_http(text: str) -> str:
    """Name the HTTP parameter or call where the text names an option, command or variable for the same."""
    for ours, theirs in _OVER_HTTP:
        text = text.replace(ours, theirs)
    return shortened(text, LONGEST)


def shortened(text: str, most: int = ECHOED) -> str:
    """At most `most` characters of a text; one that was cut ends in `...`."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
