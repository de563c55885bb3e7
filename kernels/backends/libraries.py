"""Whether the libraries behind a vLLM backend are here, in a version whose surface is the known one.

Asked in the process that measures: what is missing makes its backend absent, with the reason, and no more.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from functools import cache
from typing import Any

from autotune.kernels.specs import YES, Support
from autotune.vocabulary.candidate import BackendName

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
EXPERTS: dict[BackendName, tuple[str, str]] = {
    "triton": (f"{FUSED_MOE}.experts.triton_moe", "TritonExperts"),
    "vllm_cutlass": (f"{FUSED_MOE}.experts.cutlass_moe", "CutlassExpertsFp8"),
    "flashinfer_cutlass": (f"{FUSED_MOE}.experts.flashinfer_cutlass_moe", "FlashInferExperts"),
    "deep_gemm": (f"{FUSED_MOE}.experts.deep_gemm_moe", "DeepGemmExperts"),
}
"""The class of vLLM that each backend is driven through."""
SHARED = (
    (f"{FUSED_MOE}.modular_kernel", "FusedMoEKernel"),
    (f"{FUSED_MOE}.prepare_finalize.no_dp_ep", "MoEPrepareAndFinalizeNoDPEPModular"),
    (f"{FUSED_MOE}.config", "FusedMoEConfig"),
    ("vllm.v1.worker.workspace", "init_workspace_manager"),
)
"""What all of them are driven with."""
SELECTION = (
    (f"{FUSED_MOE}.oracle.fp8", "select_fp8_moe_backend"),
    (f"{FUSED_MOE}.oracle.unquantized", "select_unquantized_moe_backend"),
    (f"{FUSED_MOE}.fused_moe", "try_get_optimal_moe_config"),
)
"""What its own choice is asked through."""
DRIVEN = "0.25.1"
"""The version that the backends were measured with."""


def vllm_surface(name: BackendName) -> Support:
    """Whether the installed vLLM has what a backend is driven through."""
    if importlib.util.find_spec("vllm") is None:
        return Support(False, "vLLM is not installed here; install it with `pip install vllm`")
    version = _version("vllm")
    for module, attribute in (*SHARED, EXPERTS[name]):
        missing = _missing(module, attribute)
        if missing:
            return Support(
                False,
                f"vLLM {version} is not one that can be driven here: {missing}; "
                f"install another with `pip install vllm=={DRIVEN}`",
            )
    return YES


@cache
def selection_surface() -> Support:
    """Whether the installed vLLM can be asked which backend it would run."""
    if importlib.util.find_spec("vllm") is None:
        return Support(False, "vLLM is not installed here; install it with `pip install vllm`")
    for module, attribute in SELECTION:
        missing = _missing(module, attribute)
        if missing:
            return Support(
                False,
                f"vLLM {_version('vllm')} is not one whose own choice can be asked for: {missing}; "
                f"install another with `pip install vllm=={DRIVEN}`",
            )
    return YES


def flashinfer_surface() -> Support:
    """Whether the installed FlashInfer has what vLLM and its tuning are driven through."""
    if importlib.util.find_spec("flashinfer") is None:
        return Support(
            False,
            "FlashInfer is not installed here; install it with "
            "`pip install flashinfer-python flashinfer-cubin`",
        )
    version = _version("flashinfer-python")
    for module, attribute in (
        ("flashinfer.fused_moe", "cutlass_fused_moe"),
        ("flashinfer.autotuner", "autotune"),
        ("flashinfer.autotuner", "AutoTuner"),
    ):
        missing = _missing(module, attribute)
        if missing:
            return Support(
                False,
                f"FlashInfer {version} is not one that can be driven here: {missing}; install the one that "
                "this vLLM asks for: `pip install -U flashinfer-python flashinfer-cubin`",
            )
    return YES


def deep_gemm_surface() -> Support:
    """Whether vLLM finds a DeepGEMM with the grouped GEMM that its experts call."""
    try:
        wrapper: Any = importlib.import_module("vllm.utils.deep_gemm")
        if not wrapper.has_deep_gemm():
            return Support(
                False,
                "DeepGEMM is not installed here and this vLLM brings none; install it with vLLM's "
                "tools/install_deepgemm.sh, or take a vLLM wheel that has it",
            )
        if not wrapper.is_deep_gemm_supported():
            return Support(
                False,
                "vLLM has DeepGEMM turned off here (VLLM_USE_DEEP_GEMM, or this GPU); "
                "set VLLM_USE_DEEP_GEMM=1 to measure it",
            )
        # Loads DeepGEMM, and settles the format of scales that the experts class asks for.
        wrapper.is_deep_gemm_e8m0_used()
        wrapper._lazy_init()
        found = wrapper._grouped_impl is not None
    # As in _missing: of another version, or built for another torch, it may fail in any way.
    except Exception as error:
        found, why = False, f"{type(error).__name__}: {error}"
    else:
        why = "it has no m_grouped_fp8_gemm_nt_contiguous"
    if found:
        return YES
    return Support(
        False,
        f"DeepGEMM {_version('deep_gemm')} cannot be driven by vLLM {_version('vllm')}: {why}; "
        "install the one that this vLLM asks for with its tools/install_deepgemm.sh",
    )


@cache
def library_support(name: BackendName) -> Support:
    """Whether the libraries of one of vLLM's backends are here and known."""
    support = vllm_surface(name)
    if support.ok and name == "flashinfer_cutlass":
        support = flashinfer_surface()
    if support.ok and name == "deep_gemm":
        support = deep_gemm_surface()
    return support


def _missing(module: str, attribute: str) -> str:
    try:
        found = importlib.import_module(module)
    # A library of another version, or one that was built for another torch, may fail in any way.
    except Exception as error:
        text = str(error).strip().splitlines()
        return f"{module} does not import ({type(error).__name__}: {text[0] if text else ''})"
    return "" if hasattr(found, attribute) else f"{module} has no {attribute}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"
