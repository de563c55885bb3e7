"""What this vLLM runs on, in the words in which tables are matched."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from typing import Any

from autotune.vocabulary.environment import Environment

OLDEST = (0, 25, 1)
NEWEST = (0, 33, 0)
"""vLLM releases whose source the tests run against; each feature checks the parts it needs besides."""


class NoGpuError(Exception):
    """This process has no GPU that tables are made for; the message says what there is."""


def installed(package: str) -> str | None:
    """Version of an installed package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """`0.25.1rc1+cu130` as `(0, 25, 1)`."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def tested(version: str) -> bool:
    """Whether a vLLM version lies in the range that the tests cover."""
    return OLDEST <= release(version)[:3] <= NEWEST


def resolve_environment() -> Environment:
    """This machine's environment, read without initializing CUDA (a fork may follow).

    Raises:
        NoGpuError: if vLLM sees no CUDA GPU, or cannot name it without initializing CUDA.
    """
    current_platform: Any = importlib.import_module("vllm.platforms").current_platform
    if not current_platform.is_cuda():
        name = str(getattr(current_platform, "device_name", "") or type(current_platform).__name__)
        raise NoGpuError(f"vLLM's platform here is {name}, not CUDA")
    if any(cls.__name__ == "NonNvmlCudaPlatform" for cls in type(current_platform).__mro__):
        raise NoGpuError("the GPU cannot be named without initializing CUDA (no NVML)")
    try:
        gpu = re.sub(r"[\s/]+", "_", current_platform.get_device_name())
        capability = current_platform.get_device_capability()
    except Exception as error:
        # NVML raises its own kinds; all mean the same here.
        raise NoGpuError(f"the GPU cannot be named: {type(error).__name__}: {error}") from error
    if capability is None:
        raise NoGpuError(f"the compute capability of {gpu} is unknown")
    return Environment(
        gpu=gpu,
        capability=f"{capability.major}.{capability.minor}",
        vllm=installed("vllm"),
        torch=installed("torch"),
        triton=installed("triton"),
        cuda=cuda_minor(),
        flashinfer=installed("flashinfer-python"),
    )


def cuda_minor() -> str | None:
    """The CUDA version that torch was built for, as major.minor."""
    try:
        import torch
    except ImportError:
        return None
    version: Any = torch.version.cuda
    return ".".join(version.split(".")[:2]) if isinstance(version, str) else None
