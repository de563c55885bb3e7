"""Run by `test_warmup.py` in a process of its own that has vLLM's real source on its path, and no GPU.

`warm.py requests SCHEMES`: the variants that the warm-up expects, against those that vLLM's own
`TritonExperts.apply` asks Triton for. `warm.py serve TABLE LIMIT MOST`: what the plugin does around vLLM's
kernel warm-up.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

FM = "vllm.model_executor.layers.fused_moe"
MOST = 16_384
COUNTS = (*range(1, 140), 255, 256, 257, 512, 513, 514, 1000, 1024, 2048, 4095, 5000, MOST)


def prepare() -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from autotune.kernels.ahead.target import TargetOnly

    driver.set_active(TargetOnly(GPUTarget("cuda", 90, 32)))
    for name in ("fused_moe", "config", "oracle.fp8", "oracle.unquantized", "experts.triton_moe"):
        importlib.import_module(f"{FM}.{name}")
    import scenarios
    import vllm.v1.worker.gpu_worker  # noqa: F401

    scenarios.fake_h200()
    from vllm.platforms import current_platform

    type(current_platform).is_device_capability = classmethod(lambda cls, c, device_id=0: c in (90, (9, 0)))


@contextlib.contextmanager
def no_kernels_but_tritons() -> Iterator[None]:
    """vLLM's compiled operations do nothing; what they would return has the right shape."""
    import torch

    fp8 = torch.float8_e4m3fn
    triton_moe: Any = importlib.import_module(f"{FM}.experts.triton_moe")
    align: Any = importlib.import_module(f"{FM}.moe_align_block_size")

    def quantize(x: Any, scale: Any, dtype: Any, per_token: bool, block: Any, **_: Any) -> Any:
        rows, columns = x.shape
        if dtype is None:
            return x, None
        if block:
            return torch.empty(rows, columns, dtype=fp8), torch.empty(rows, columns // block[1])
        return torch.empty(rows, columns, dtype=fp8), torch.empty(rows, 1) if per_token else scale

    def gated(x: Any, group_size: int, quant_dtype: Any) -> Any:
        rows, columns = x.shape[0], x.shape[1] // 2
        return torch.empty(rows, columns, dtype=fp8), torch.empty(rows, columns // group_size)

    triton_moe.moe_kernel_quantize_input = quantize
    triton_moe.ops = SimpleNamespace(silu_and_mul_per_block_quant=gated, moe_sum=lambda *a: None)
    triton_moe.TritonExperts.activation = lambda *a, **k: None
    triton_moe.TritonExperts.moe_sum = lambda *a, **k: None
    original = align.ops.moe_align_block_size
    align.ops.moe_align_block_size = lambda *a, **k: None
    try:
        yield
    finally:
        align.ops.moe_align_block_size = original


class Experts:
    """vLLM's TritonExperts on CPU tensors."""

    def __init__(self, problem: Any) -> None:
        from autotune.kernels.backends.fused import unfilled
        from autotune.kernels.backends.vllm_modular import VllmBackend, moe_config

        self.problem = problem
        self.weights, _ = unfilled(problem, 1)
        quant = VllmBackend("triton")._quant_config(self.weights)
        triton_moe: Any = importlib.import_module(f"{FM}.experts.triton_moe")
        self.experts = triton_moe.TritonExperts(moe_config(problem, "cpu"), quant)

    def run(self, tokens: int) -> None:
        import torch

        p, e = self.problem, self.experts
        hidden = torch.empty(tokens, p.K, dtype=torch.bfloat16)
        triton_moe: Any = importlib.import_module(f"{FM}.experts.triton_moe")
        quantized, scale = triton_moe.moe_kernel_quantize_input(
            hidden, self.weights.a1_scale, e.quant_dtype, e.per_act_token_quant, e.block_shape
        )
        activation = importlib.import_module(f"{FM}.activation").MoEActivation
        first, second, _ = e.workspace_shapes(
            tokens, p.gate_up_rows, p.K, p.topk, p.E, p.E, None, activation.SILU
        )
        e.apply(
            torch.empty_like(hidden), quantized, self.weights.w13, self.weights.w2,
            torch.empty(tokens, p.topk), torch.empty(tokens, p.topk, dtype=torch.int32), activation.SILU,
            p.global_experts, None, scale, self.weights.a2_scale,
            torch.empty(first, dtype=torch.bfloat16), torch.empty(second, dtype=torch.bfloat16), None, False,
        )  # fmt: skip


def requests(schemes: str) -> Any:
    """For each scheme: the variants expected, those asked for, and what either lacks."""
    from autotune.kernels.unspecialized import VLLM_SCALARS, without_specialization

    found = {scheme: requested(scheme) for scheme in schemes.split(",")}
    module: Any = importlib.import_module(f"{FM}.fused_moe")
    module.fused_moe_kernel = without_specialization(module.fused_moe_kernel, VLLM_SCALARS)
    first = schemes.split(",")[0]
    return {**found, f"{first} unspecialized": requested(first)}


def requested(scheme: str) -> Any:
    from autotune.kernels.ahead.variants import collecting
    from autotune.kernels.backends.vllm_gemms import TritonGemms, reachable
    from autotune.vocabulary.problem import Problem

    problem = Problem.parse(f"E=128,N=768,K=2048,topk=8,scheme={scheme}")
    gemms = TritonGemms(problem)
    expected = reachable(gemms, MOST).missing
    experts = Experts(problem)
    with no_kernels_but_tritons(), collecting() as asked:
        for tokens in {*COUNTS, *(variant.tokens for variant in expected.values())}:
            experts.run(tokens)
    with collecting() as every:
        for tokens in range(1025, MOST + 1, 29):
            gemms.launch(tokens, gemms.config(tokens))
    return {
        "expected": len(expected),
        "asked": len(asked.missing),
        "unexpected": sorted(set(asked.missing) - set(expected)),
        "never": sorted(expected[key].tokens for key in set(expected) - set(asked.missing)),
        "left out": sorted(set(every.missing) - set(expected)),
    }


def serve(table: str, limit: str, most: str) -> Any:
    """vLLM has run its largest batch; then its kernel warm-up is called twice, as two starts would."""
    import scenarios
    import triton
    import vllm.v1.worker.gpu_worker as gpu_worker

    from autotune.kernels.ahead.variants import held_by
    from autotune.kernels.backends.vllm_modular import compiling_only
    from autotune.measure.compiles import counting_compiles
    from autotune.vocabulary.problem import Problem

    os.environ.update({"AUTOTUNE_TABLE": table, "AUTOTUNE_WARMUP_SECONDS": limit})
    ran: list[Any] = []
    gpu_worker.kernel_warmup = lambda worker: ran.append(worker)
    plugin, lines = scenarios.register()
    scenarios.order("fp8_block128")
    fm = scenarios.module("fused_moe")
    experts = Experts(Problem.parse("E=128,N=768,K=2048,topk=8,scheme=fp8_block128"))
    worker = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=int(most)))
    result: dict[str, Any] = {"states": scenarios.features(plugin)}
    gpu_worker.kernel_warmup(worker)
    result["unused"], seen = list(lines), len(lines)
    if limit != "0":
        with no_kernels_but_tritons(), compiling_only():
            experts.run(int(most))
        with counting_compiles() as here:
            gpu_worker.kernel_warmup(worker)
        result["first"], seen = lines[seen:], len(lines)
        result["compiled in the worker"] = here.count
        with no_kernels_but_tritons(), compiling_only(), counting_compiles() as later:
            for tokens in range(1, int(most) + 1):
                experts.run(tokens)
        result["compiled later"] = later.count
        result["held"] = len(held_by(fm.fused_moe_kernel))
        # Another start: nothing in memory, everything on disk.
        fm.fused_moe_kernel.device_caches.clear()
        with no_kernels_but_tritons(), compiling_only():
            experts.run(int(most))
        gpu_worker.kernel_warmup(worker)
        result["second"] = lines[seen:]
    result["vllm's own ran"] = len(ran)
    result["triton"] = triton.__version__
    return result


if __name__ == "__main__":
    prepare()
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), file=sys.stdout)
