"""Pictures: loading matplotlib, and writing a figure whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune.client.cache import write_atomically
from autotune.vocabulary.errors import AutotuneError, MissingDependencyError, UsageError
from autotune.vocabulary.installing import install_extra

HINT = "Give a writable .svg, .png or .pdf."


@contextmanager
def picture(path: Path, content: str, **layout: Any) -> Iterator[tuple[Any, Any]]:
    """A figure to draw on and its axes, written when the block ends, in the format of the path's ending.

    Args:
        content: a digest of what is drawn: equal content gives equal files.
        layout: of `matplotlib.pyplot.subplots`, such as `figsize` in inches.

    Raises:
        MissingDependencyError: without matplotlib.
        UsageError: if the ending is none that matplotlib writes.
        AutotuneError: if the path cannot be written; a picture that is there stays as it is.
    """
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingDependencyError("Plots need matplotlib.", install_extra("plot")) from error
    # For the ids in an SVG, which are drawn at random otherwise.
    with matplotlib.rc_context({"svg.hashsalt": content}):
        figure, axes = pyplot.subplots(layout="constrained", **layout)
        try:
            yield figure, axes
            _save(figure, path)
        finally:
            pyplot.close(figure)


def _save(figure: Any, path: Path) -> None:
    kind = path.suffix.removeprefix(".").lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise UsageError(f"{path} does not end like a picture.", HINT)
    content = io.BytesIO()
    # Equal content gives equal files: no date.
    figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    if problem := write_atomically(path, content.getvalue(), private=False):
        raise AutotuneError(f"{problem}.", HINT)
