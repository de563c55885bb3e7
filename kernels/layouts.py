"""Which backends can run from one copy of prepared weights, and through what. Data; imports no torch.

A gated layer's first matrix stacks two: `w13` is the checkpoint's order (gate rows, then up rows), `w31` the
other (up rows first), which FlashInfer's CUTLASS MoE reads. A GEMM does not care about the order of its
output columns, so a backend whose activation runs apart from its GEMMs reads either, given an activation
that takes its halves in that order. The second matrix, and all scales but the first matrix's own, are the
same for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from autotune.kernels.specs import Support, backend_spec
from autotune.vocabulary.candidate import BACKENDS, BackendName
from autotune.vocabulary.problem import Scheme

Layout = Literal["w13", "w31"]
LAYOUTS: tuple[Layout, ...] = ("w13", "w31")

AS_IT_IS = "as it is"
REVERSED_OP = "vLLM's mul_and_silu in place of silu_and_mul, in TritonExperts.activation"
REVERSED_GLOBAL = "vLLM's mul_and_silu in place of silu_and_mul, in cutlass_moe.apply_moe_activation"
REVERSED_KERNEL = "the kernel's UP_FIRST argument"
NO_HALVES = "as it is: without a gate there are no halves to order"

_FP8 = frozenset({Scheme.FP8_TENSOR, Scheme.FP8_CHANNEL, Scheme.FP8_BLOCK128})
_READS: dict[BackendName, tuple[frozenset[Scheme], dict[Layout, str]]] = {
    "triton": (_FP8 | {Scheme.BF16}, {"w13": AS_IT_IS, "w31": REVERSED_OP}),
    "vllm_cutlass": (
        frozenset({Scheme.FP8_TENSOR, Scheme.FP8_CHANNEL}),
        {"w13": AS_IT_IS, "w31": REVERSED_GLOBAL},
    ),
    "flashinfer_cutlass": (
        frozenset({Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128}),
        {"w31": AS_IT_IS},
    ),
    # Its activation is fused with the second quantization, gate first (vLLM deep_gemm_moe.py).
    "deep_gemm": (frozenset({Scheme.FP8_BLOCK128}), {"w13": AS_IT_IS}),
    "fused_triton": (_FP8 | {Scheme.BF16}, {"w13": AS_IT_IS, "w31": REVERSED_KERNEL}),
    "fused_decode": (
        _FP8 - {Scheme.FP8_CHANNEL} | {Scheme.BF16},
        {"w13": AS_IT_IS, "w31": REVERSED_KERNEL},
    ),
}
assert tuple(_READS) == BACKENDS

GATED = "silu"
UNGATED = "relu2_no_mul"


def readable(
    scheme: Scheme, backend: str, act: str = GATED, capability: str = "9.0"
) -> Mapping[Layout, str] | Support:
    """The layouts that a backend reads, each with how; or a refusal that names the cause.

    Raises:
        UnknownNameError: for a backend that does not exist.
    """
    name = backend_spec(backend).name
    schemes, reads = _READS[name]
    if scheme not in schemes:
        return Support(False, f"{name} does not take {scheme.value}")
    if name == "deep_gemm" and capability != "9.0":
        # There vLLM rewrites values and scales for it (prepare_fp8_moe_layer_for_deepgemm).
        return Support(
            False,
            f"deep_gemm reads the checkpoint's block scales on compute capability 9.0 only, not {capability}",
        )
    if act == UNGATED:
        return {"w13": NO_HALVES}
    if act != GATED:
        # vLLM has the reversed order for silu only (torch.ops._C.mul_and_silu).
        return {layout: how for layout, how in reads.items() if how == AS_IT_IS}
    return reads


def layouts(
    scheme: Scheme, act: str = GATED, capability: str = "9.0"
) -> dict[Layout, dict[BackendName, str]]:
    """For each layout the backends that can run from it, and through what."""
    found: dict[Layout, dict[BackendName, str]] = {layout: {} for layout in LAYOUTS}
    for name in BACKENDS:
        reads = readable(scheme, name, act, capability)
        if not isinstance(reads, Support):
            for layout, how in reads.items():
                found[layout][name] = how
    return found


def shares_layout(
    scheme: Scheme, first: str, second: str, act: str = GATED, capability: str = "9.0"
) -> Support:
    """Whether two backends can run from one copy of prepared weights; the reason if not.

    Raises:
        UnknownNameError: for a backend that does not exist.
    """
    reads = [readable(scheme, name, act, capability) for name in (first, second)]
    for answer in reads:
        if isinstance(answer, Support):
            return answer
    one, other = (set(answer) for answer in reads if not isinstance(answer, Support))
    if one & other:
        return Support(True)
    return Support(
        False, f"{first} reads {', '.join(sorted(one))} only, {second} {', '.join(sorted(other))} only"
    )


def common_layouts(
    scheme: Scheme, backends: Iterable[str], act: str = GATED, capability: str = "9.0"
) -> tuple[Layout, ...]:
    """The layouts from which all of these backends can run; `w13` first, since no copy has to be made for it.

    Raises:
        UnknownNameError: for a backend that does not exist.
    """
    answers = [readable(scheme, name, act, capability) for name in backends]
    return tuple(
        layout
        for layout in LAYOUTS
        if all(not isinstance(answer, Support) and layout in answer for answer in answers)
    )
