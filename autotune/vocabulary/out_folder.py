"""A folder for results, tried before minutes are spent on them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from autotune.vocabulary.errors import AutotuneError
from autotune.vocabulary.files import reason


def out_folder(folder: Path) -> Path:
    """The folder, made if it is not there, and written to once.

    Raises:
        AutotuneError: if nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise AutotuneError(
            f"{folder} cannot be written: {reason(error)}.", "Name a folder that you may write with --out."
        ) from error
    return folder
