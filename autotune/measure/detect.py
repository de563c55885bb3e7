"""The environment of this machine, as a routing table names it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from typing import Any

from autotune.kernels.backends.libraries import selection_surface
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import GpuNotReadyError, MissingDependencyError
from autotune.vocabulary.installing import install_extra


def version_of(package: str) -> str | None:
    """An installed package's version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def vllm_version() -> str | None:
    """vLLM's version if it imports and its choice of a backend can be asked for, else None.

    Without that choice there is no baseline, and a table must not be taken for one of that vLLM.
    """
    version = version_of("vllm")
    return version if version and selection_surface().ok else None


def flashinfer_version() -> str | None:
    """FlashInfer's version if vLLM would use it (the package, and cubins or nvcc), else None."""
    version = version_of("flashinfer-python")
    if version is None or importlib.util.find_spec("vllm") is None:
        return version
    try:
        from vllm.utils.flashinfer import has_flashinfer_cutlass_fused_moe

        usable = has_flashinfer_cutlass_fused_moe()
    # A broken library raises anything while it is imported; then vLLM does without it, and so do we.
    except Exception:
        return None
    return version if usable else None


def absent_libraries(environment: Environment) -> tuple[str, ...]:
    """Why libraries that are installed are not in the environment, for a person."""
    found = []
    if environment.vllm is None and version_of("vllm"):
        found.append(selection_surface().reason)
    flashinfer = version_of("flashinfer-python")
    if environment.flashinfer is None and flashinfer:
        found.append(
            f"FlashInfer {flashinfer} is installed but vLLM would not use it: it needs a version that has "
            "the fused MoE, and cubins or nvcc; install them with "
            "`pip install -U flashinfer-python flashinfer-cubin`"
        )
    return tuple(found)


def detect_environment() -> Environment:
    """Ask torch for the GPU and the metadata for versions. Initializes CUDA: call it in a worker process.

    Raises:
        MissingDependencyError: without torch.
        GpuNotReadyError: without a CUDA GPU.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "Measuring needs PyTorch, which is not installed.",
            install_extra("gpu"),
        ) from error
    if not torch.cuda.is_available():
        raise GpuNotReadyError(
            "There is no CUDA GPU here, and this measures on one.",
            "Run it on a machine with one. What was recorded on an H200 is shown without a GPU by "
            "`autotune sweep --replay` and `python benchmarks/kernels.py --replay`.",
        )
    major, minor = torch.cuda.get_device_capability()
    return Environment(
        gpu=torch.cuda.get_device_name().replace(" ", "_"),
        capability=f"{major}.{minor}",
        vllm=vllm_version(),
        torch=version_of("torch"),
        triton=version_of("triton"),
        cuda=torch.version.cuda,
        flashinfer=flashinfer_version(),
    )


def _nvml() -> Any | None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no NVML library, or no permission: there is no GPU to see
        return None
    return pynvml


def visible_gpu() -> str | None:
    """The first GPU's device name as vLLM spells it, or None. Asks NVML: no CUDA context, no torch."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        handle = gpu_handle(nvml)
        if handle is None:
            return None
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    return (name.decode() if isinstance(name, bytes) else str(name)).replace(" ", "_")


def driver_version() -> str:
    """The NVIDIA driver's version, or an empty string."""
    nvml = _nvml()
    if nvml is None:
        return ""
    try:
        version = nvml.nvmlSystemGetDriverVersion()
    finally:
        nvml.nvmlShutdown()
    return version.decode() if isinstance(version, bytes) else str(version)


def gpu_handle(nvml: Any) -> Any:
    """NVML's handle of the first GPU in `CUDA_VISIBLE_DEVICES`: by index, or by UUID or its beginning.

    None where CUDA sees none: an empty list, -1, what no GPU has, a beginning that several share.

    Raises:
        nvml.NVMLError: if NVML does not know that GPU.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.startswith("MIG-"):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    if first.startswith("GPU-"):
        handles = [handle for handle in handles if _uuid(nvml, handle).startswith(first)]
        return handles[0] if len(handles) == 1 else None
    if not re.fullmatch("[0-9]{1,4}", first):
        return None
    return handles[int(first)] if int(first) < len(handles) else None


def _uuid(nvml: Any, handle: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)
