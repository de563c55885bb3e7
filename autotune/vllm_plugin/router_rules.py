"""What the router takes and what it refuses, with the reasons."""

from __future__ import annotations

from typing import Any

from autotune.vllm_plugin.own_experts import takes_up_first
from autotune.vllm_plugin.route_reach import unreachable
from autotune.vocabulary.candidate import BackendName
from autotune.vocabulary.problem import Scheme
from autotune.vocabulary.table import Decision, Miss

PREPARE = "MoEPrepareAndFinalizeNoDPEPModular"
"""vLLM's prepare step without all-to-all."""


class RefusedError(Exception):
    """A layer's calls are not routed; the message says why.

    Args:
        miss: the table's answer, if that is the reason.
    """

    def __init__(self, message: str, miss: Miss | None = None) -> None:
        super().__init__(message)
        self.miss = miss


def would_do(decision: Decision, base: BackendName | None) -> str:
    """What routing would have done with a call, for the counts of `observe`."""
    route = decision.route
    if route is None:
        return f"fallback ({decision.reason.value if decision.reason else 'none'})"
    where = f"{route.first}..{route.last}"
    if decision.candidate is None:
        return f"{where} no benefit, {route.baseline.backend} kept"
    if base is None:
        return f"{where} {route.winner}, but vLLM's choice shares its weights with no other backend"
    reason = unreachable(decision.problem, base, route.winner.backend, takes_up_first)
    return f"{where} {route.winner}{f', but {reason}' if reason else ''}"


def kernel_refusal(module: Any, prepare_finalize: Any, experts: Any) -> str:
    """Why a kernel as vLLM builds it cannot be routed per call, or an empty string."""
    name = type(experts).__name__
    if not isinstance(experts, module.FusedMoEExpertsModular):
        return f"{name} is monolithic: it picks the experts and runs them in one call"
    if type(prepare_finalize).__name__ != PREPARE:
        return f"expert parallel with all-to-all, or another prepare step ({type(prepare_finalize).__name__})"
    if experts.activation_format() is not module.FusedMoEActivationFormat.Standard:
        return f"{name} takes batched activations"
    if experts.moe_config.is_lora_enabled or getattr(experts, "_lora_context", None) is not None:
        return "LoRA is enabled"
    if getattr(experts, "post_gemm2_hook", None) is not None:
        return "post_gemm2_hook is set"
    if experts.w1_bias is not None or experts.w2_bias is not None:
        return "the layer has biases"
    return ""


def scheme_of(experts: Any) -> Scheme | None:
    """The scheme by the scales that vLLM gave the experts; None for one that is not in the vocabulary."""
    import torch

    config = experts.quant_config
    kinds = (config.quant_dtype, config.weight_quant_dtype)
    if experts.moe_config.in_dtype is not torch.bfloat16:
        return None
    if kinds == (None, None):
        return Scheme.BF16
    if kinds != (torch.float8_e4m3fn, torch.float8_e4m3fn):
        return None
    if config.block_shape is not None:
        return Scheme.FP8_BLOCK128 if list(config.block_shape) == [128, 128] else None
    per = (bool(config.per_act_token_quant), bool(config.per_out_ch_quant))
    if per == (True, True):
        return Scheme.FP8_CHANNEL
    static = config.a1_scale is not None and config.a2_scale is not None
    return Scheme.FP8_TENSOR if per == (False, False) and static else None
