"""One process of a host at a time: the ranks of a server share Triton's cache and need the same variants."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.1


@contextmanager
def alone(folder: str, deadline: float) -> Iterator[bool]:
    """Hold the folder's lock, waiting for it until `deadline` (of `time.monotonic`).

    Yields whether it is held. A folder that cannot be locked (read-only, a file system without locks) does
    not count as somebody else's: True.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        handle = os.open(Path(folder) / "autotune-warmup.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        yield True
        return
    try:
        yield _acquire(handle, deadline)
    finally:
        os.close(handle)


def _acquire(handle: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        except OSError:
            return True
