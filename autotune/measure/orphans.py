"""Processes that must not outlive a sweep: they hold the GPU, and the resumed sweep would find it busy."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def started_for_good() -> bool:
    """Whether what this thread starts may end with it: to Linux a child's parent is the thread."""
    return threading.current_thread() is threading.main_thread()


def end_with_parent(with_thread: bool = False) -> None:
    """Have this process end when the one that started it is gone, be it by kill -9.

    A GPU process in a long kernel would notice only afterwards; a process of the pool never, since it holds
    the other end of its own queue, and its CUDA context keeps the GPU in use.

    Args:
        with_thread: `started_for_good()` in the parent. Then the kernel itself kills this process, even in a
            call that keeps Python from running; else only a thread waits for the parent.
    """
    if with_thread and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="end-with-parent", daemon=True).start()


def _end_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
