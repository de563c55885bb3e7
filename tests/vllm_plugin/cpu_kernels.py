"""CPU versions of the compiled operations behind vLLM's MoE experts, for the processes with its real source.

Everything above them stays vLLM's own: FusedMoEKernel, the prepare step, the workspaces, TritonExperts.apply,
run_cutlass_moe_fp8, FlashInferExperts.apply. `ran` names what computed each call, in order.
"""

from __future__ import annotations

import enum
import importlib
import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

FM = "vllm.model_executor.layers.fused_moe"
BLOCK = 128
ran: list[str] = []
"""`triton:32` (with its BLOCK_SIZE_M), `cutlass`, `flashinfer`, or what a test adds."""
library: list[torch.library.Library] = []
tuner = SimpleNamespace(is_tuning_mode=False)
wrong: dict[str, float] = {}
"""Factor on a backend's output, to make it wrong."""


def install() -> None:
    """Register the operations and replace the launchers; once a process."""
    _operations()
    _triton()
    _cutlass()
    _flashinfer()
    _block_scales()
    # vLLM frees an accelerator's cache when it grows a workspace.
    torch.accelerator.empty_cache = lambda: None


def _operations() -> None:
    ops = torch.library.Library("_C", "FRAGMENT")
    moe = torch.library.Library("_moe_C", "FRAGMENT")
    library.extend((ops, moe))

    def silu_and_mul(out: torch.Tensor, x: torch.Tensor) -> None:
        gate, up = x.float().chunk(2, dim=-1)
        out.copy_(torch.nn.functional.silu(gate) * up)

    def mul_and_silu(out: torch.Tensor, x: torch.Tensor) -> None:
        up, gate = x.float().chunk(2, dim=-1)
        out.copy_(torch.nn.functional.silu(gate) * up)

    def static_scaled_fp8_quant(
        out: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, group: Any = None
    ) -> None:
        out.copy_((x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn))

    def moe_sum(x: torch.Tensor, out: torch.Tensor, ids: Any = None, expert_map: Any = None) -> None:
        out.copy_(x.float().sum(dim=1) * wrong.get("triton", 1.0))

    for name, function, schema in (
        ("silu_and_mul", silu_and_mul, "(Tensor(a!) out, Tensor x) -> ()"),
        ("mul_and_silu", mul_and_silu, "(Tensor(a!) out, Tensor x) -> ()"),
        (
            "static_scaled_fp8_quant",
            static_scaled_fp8_quant,
            "(Tensor(a!) out, Tensor x, Tensor scale, int[]? group=None) -> ()",
        ),
    ):
        ops.define(name + schema)
        ops.impl(name, function, "CPU")
    moe.define("moe_sum(Tensor x, Tensor(a!) out, Tensor? ids=None, Tensor? map=None) -> ()")
    moe.impl("moe_sum", moe_sum, "CPU")


def _product(a: torch.Tensor, a_scale: Any, w: torch.Tensor, w_scale: Any) -> torch.Tensor:
    """One expert's rows, float32: a `[rows, in]`, w `[out, in]`, each with one scale or one a block."""
    return _wide(a, a_scale, rows=1) @ _wide(w, w_scale, rows=BLOCK).T


def _wide(values: torch.Tensor, scale: Any, rows: int) -> torch.Tensor:
    if scale is None:
        return values.float()
    if scale.numel() == 1 and values.shape[-1] > BLOCK:
        return values.float() * scale.float().reshape(())
    scale = scale.float().reshape(-1, max(1, values.shape[-1] // BLOCK)) if scale.dim() else scale.float()
    if scale.dim():
        scale = scale.repeat_interleave(rows, 0)[: values.shape[0]].repeat_interleave(BLOCK, 1)
        scale = scale[:, : values.shape[-1]]
    return values.float() * scale


def _triton() -> None:
    module: Any = importlib.import_module(f"{FM}.experts.triton_moe")

    def assign(topk_ids: torch.Tensor, *_: Any, **__: Any) -> Any:
        return topk_ids, None, None

    def launch(
        a: torch.Tensor, w: torch.Tensor, out: torch.Tensor, a_scale: Any, w_scale: Any, weights: Any,
        ids: torch.Tensor, expert_ids: Any, padded: Any, weigh: bool, top_k: int, config: dict[str, int],
        **_: Any,
    ) -> None:  # fmt: skip
        # As the real launcher reads them, Swap-AB's question included.
        fused_moe = importlib.import_module(f"{FM}.fused_moe")
        swap = fused_moe.enable_swap_ab(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"])
        if weigh:
            ran.append(f"triton:{config['BLOCK_SIZE_M']}{':swap' if swap else ''}")
        for token in range(ids.shape[0]):
            for slot in range(ids.shape[1]):
                row = token if top_k > 1 else token * ids.shape[1] + slot
                expert = int(ids[token, slot])
                scale = None if w_scale is None else w_scale[expert]
                by_row = a_scale if a_scale is None or a_scale.numel() == 1 else a_scale[row : row + 1]
                value = _product(a[row : row + 1], by_row, w[expert], scale)[0]
                out[token, slot] = value * weights[token, slot] if weigh else value

    module._prepare_expert_assignment = assign
    module.invoke_fused_moe_triton_kernel = launch


def _cutlass() -> None:
    module: Any = importlib.import_module(f"{FM}.experts.cutlass_moe")
    module.cutlass_group_gemm_supported = lambda: True
    module.moe_permute_unpermute_supported = lambda: False

    def moe_permute(a: torch.Tensor, scale: Any, ids: torch.Tensor, experts: int, *_: Any, **__: Any) -> Any:
        order = ids.flatten().argsort(stable=True)
        counts = ids.flatten().bincount(minlength=experts)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        return a[order // ids.shape[1]], scale, offsets, order, None

    def moe_unpermute(
        out: torch.Tensor, permuted_hidden_states: torch.Tensor, topk_weights: torch.Tensor,
        inv_permuted_idx: torch.Tensor, expert_first_token_offset: Any,
    ) -> None:  # fmt: skip
        rows = torch.empty_like(permuted_hidden_states, dtype=torch.float32)
        rows[inv_permuted_idx] = permuted_hidden_states.float()
        weighted = rows.view(*topk_weights.shape, -1) * topk_weights[..., None]
        out.copy_(weighted.sum(dim=1) * wrong.get("cutlass", 1.0))
        ran.append("cutlass")

    def cutlass_moe_mm(out: torch.Tensor, a: torch.Tensor, w: torch.Tensor, a_scale: Any, w_scale: Any,
                       starts: torch.Tensor, *_: Any) -> None:  # fmt: skip
        bounds = [*starts.tolist(), a.shape[0]]
        for expert, (first, last) in enumerate(itertools.pairwise(bounds)):
            out[first:last] = _product(a[first:last], a_scale, w[expert], w_scale[expert]).to(out.dtype)

    module.moe_permute, module.moe_unpermute = moe_permute, moe_unpermute
    module.ops.cutlass_moe_mm = cutlass_moe_mm
    module.ops.get_cutlass_moe_mm_problem_sizes_from_expert_offsets = lambda *args: None


ActivationType = enum.Enum("ActivationType", ("Swiglu", "Geglu", "Relu2", "Silu", "Gelu"))


class AutoTuner:
    """What the router asks of FlashInfer's."""

    @classmethod
    def get(cls) -> Any:
        return tuner


def _flashinfer() -> None:
    """FlashInfer itself is not there: its packages with the two names that are used, and its kernel."""
    for name, content in (
        ("flashinfer", {}),
        ("flashinfer.fused_moe", {}),
        ("flashinfer.fused_moe.core", {"ActivationType": ActivationType}),
        ("flashinfer.autotuner", {"AutoTuner": AutoTuner}),
    ):
        package = ModuleType(name)
        package.__dict__.update(content, __path__=[])
        sys.modules[name] = package
    module: Any = importlib.import_module(f"{FM}.experts.flashinfer_cutlass_moe")

    def fused_moe(
        input: torch.Tensor, token_selected_experts: torch.Tensor, token_final_scales: torch.Tensor,
        fc1_expert_weights: torch.Tensor, fc2_expert_weights: torch.Tensor, output: torch.Tensor,
        quant_scales: list[torch.Tensor], **_: Any,
    ) -> None:  # fmt: skip
        ran.append("flashinfer:tuning" if tuner.is_tuning_mode else "flashinfer")
        output.zero_()
        total = torch.zeros(output.shape)
        for token, experts in enumerate(token_selected_experts.tolist()):
            for slot, expert in enumerate(experts):
                inner = fc1_expert_weights[expert].float() @ input[token].float()
                if quant_scales:
                    inner = inner * quant_scales[0][expert]
                up, gate = inner.chunk(2)
                inner = torch.nn.functional.silu(gate) * up
                if quant_scales:
                    inner = (inner * quant_scales[1]).clamp(-448, 448).to(torch.float8_e4m3fn).float()
                result = fc2_expert_weights[expert].float() @ inner
                if quant_scales:
                    result = result * quant_scales[2][expert]
                total[token] += result * token_final_scales[token, slot]
        output.copy_(total * wrong.get("flashinfer", 1.0))

    module.flashinfer_cutlass_fused_moe = fused_moe


def _block_scales() -> None:
    """FP8 in blocks: the quantization of activations, its fusion with silu, and DeepGEMM's experts."""
    utils: Any = importlib.import_module(f"{FM}.utils")
    triton_moe: Any = importlib.import_module(f"{FM}.experts.triton_moe")
    deep_gemm: Any = importlib.import_module(f"{FM}.experts.deep_gemm_moe")

    def quantize(rows: torch.Tensor, group: int = BLOCK, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        groups = rows.float().view(rows.shape[0], -1, group)
        scale = groups.abs().amax(dim=2, keepdim=True).clamp_min(1e-10) / 448
        values = (groups / scale).clamp(-448, 448).view(rows.shape).to(torch.float8_e4m3fn)
        return values, scale.squeeze(2)

    def silu_and_mul_per_block_quant(x: torch.Tensor, group_size: int, quant_dtype: Any, **_: Any) -> Any:
        gate, up = x.float().chunk(2, dim=1)
        return quantize(torch.nn.functional.silu(gate) * up, group_size)

    def apply(
        self: Any, output: torch.Tensor, hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor,
        topk_weights: torch.Tensor, topk_ids: torch.Tensor, *rest: Any,
    ) -> None:  # fmt: skip
        a1q_scale = rest[3]
        total = torch.zeros(output.shape)
        for token, experts in enumerate(topk_ids.tolist()):
            for slot, expert in enumerate(experts):
                row = hidden_states[token : token + 1], a1q_scale[token : token + 1]
                gate, up = _product(*row, w1[expert], self.w1_scale[expert]).chunk(2, dim=1)
                inner = quantize(torch.nn.functional.silu(gate) * up)
                total[token] += (
                    _product(*inner, w2[expert], self.w2_scale[expert])[0] * topk_weights[token, slot]
                )
        output.copy_(total * wrong.get("deep_gemm", 1.0))
        ran.append("deep_gemm")

    utils.per_token_group_quant_fp8 = quantize
    triton_moe.ops.silu_and_mul_per_block_quant = silu_and_mul_per_block_quant
    triton_moe.is_deep_gemm_e8m0_used = lambda: False
    deep_gemm.is_deep_gemm_supported = lambda: True
    deep_gemm.get_mk_alignment_for_contiguous_layout = lambda: [BLOCK, BLOCK]
    deep_gemm.DeepGemmExperts.apply = apply
