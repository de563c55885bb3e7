"""Processes that must not outlive a sweep: they hold the GPU, and the resumed sweep would find it busy."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Have this process end when the one that started it is gone, be it by kill -9.

    A GPU process in a long kernel would notice only afterwards; a process of the pool never, since it holds
    the other end of its own queue, and its CUDA context keeps the GPU in use.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="end-with-parent", daemon=True).start()


def _end_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
