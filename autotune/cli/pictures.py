"""Writing a picture whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from autotune.client.cache import write_atomically
from autotune.vocabulary.errors import AutotuneError, UsageError

HINT = "Give a writable .svg, .png or .pdf."


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure in the format of the path's ending.

    Raises:
        UsageError: if the ending is none that matplotlib writes.
        AutotuneError: if the path cannot be written; a picture that is there stays as it is.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise UsageError(f"{path} does not end like a picture.", HINT)
    content = io.BytesIO()
    # Equal content gives equal files: no date.
    figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    if problem := write_atomically(path, content.getvalue(), private=False):
        raise AutotuneError(f"{problem}.", HINT)
