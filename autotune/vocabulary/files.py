"""Reading files that somebody else names: a pipe, a device or an endless file must not hold a process up."""

from __future__ import annotations

import errno
import os
import stat
from importlib.resources.abc import Traversable
from pathlib import Path

from autotune.vocabulary.errors import UsageError

MAX_BYTES = 32 * 1024 * 1024
"""Of a table file, as of a service's answer: one GPU's tables take some hundred kB."""


def read_bytes(source: Path | Traversable, most: int = MAX_BYTES, *, own: bool = False) -> bytes:
    """The content of a regular file, without waiting for anybody to write it.

    Args:
        most: bytes that it may have.
        own: it must belong to this account or to root.

    Raises:
        OSError: if it cannot be read, is a pipe, a device or a folder, is larger than that, or another's.
    """
    if not isinstance(source, Path):
        return source.read_bytes()  # inside this package
    # By its path first: merely opening some devices has effects.
    _require_regular(os.stat(source), source)
    handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        _require_regular(status, source)
        if own and status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "it belongs to another account", str(source))
        content = bytearray()
        while chunk := os.read(handle, min(1 << 20, most + 1 - len(content))):
            content += chunk
            if len(content) > most:
                raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(source))
        return bytes(content)
    finally:
        os.close(handle)


def read_text(source: Path | Traversable, most: int = MAX_BYTES, *, own: bool = False) -> str:
    """As `read_bytes`, decoded from UTF-8; a byte order mark is left out.

    Raises:
        OSError: as above.
        UnicodeDecodeError: if it is no UTF-8.
    """
    return read_bytes(source, most, own=own).decode("utf-8-sig")


def read_given(source: Path, hint: str, most: int = MAX_BYTES) -> bytes:
    """As `read_bytes`, for a file that an argument names.

    Args:
        hint: what to name instead.

    Raises:
        UsageError: if the argument names no file that can be read.
    """
    try:
        return read_bytes(source, most)
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {reason(error)}.", hint) from error


def require_file(source: Path, hint: str) -> None:
    """Make sure that an argument names a file that can be read.

    Raises:
        UsageError: if it does not.
    """
    try:
        _require_regular(os.stat(source), source)
        os.close(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {reason(error)}.", hint) from error


def reason(error: Exception) -> str:
    """Why a file could not be read, in words that follow its name and a colon."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _require_regular(status: os.stat_result, source: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(source))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(source))
