"""Shared test set-up: property tests without deadlines; tests marked `gpu` only where there is a CUDA GPU."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import pytest

# What the shell says about colours, widths and this program's settings is no part of any test.
for _name in [*os.environ]:
    if _name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES") or (
        _name.startswith("AUTOTUNE_") and not _name.startswith(("AUTOTUNE_VLLM_VERSIONS", "AUTOTUNE_TEST_"))
    ):
        del os.environ[_name]

if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # A deadline measures the machine, which others may share, and not the code.
    settings.register_profile("shared-machine", deadline=None)
    settings.load_profile("shared-machine")


@cache
def missing_gpu() -> str | None:
    """Why tests that need a CUDA GPU cannot run here; None if they can."""
    if importlib.util.find_spec("torch") is None:
        return "needs a CUDA GPU, and torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA GPU, and torch sees none"


FIRST = ("vllm_plugin", "kernels", "lab", "cli")
"""Folders whose files take longest: begun last, one of them would keep a single worker busy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the slowest folders to the front; within a folder the order stays."""
    items.sort(key=lambda item: FIRST.index(at) if (at := item.path.parent.name) in FIRST else len(FIRST))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip `gpu` tests where they cannot run; torch is imported only if there is such a test."""
    if item.get_closest_marker("gpu") is not None:
        reason = missing_gpu()
        if reason is not None:
            pytest.skip(reason)
