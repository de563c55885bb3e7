"""What of our backends runs with vLLM's real source on a CPU. Started by test_backends.py in a process.

Reads `[path, ...]` from its argument and prints one JSON object.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

sys.path[:0] = json.loads(sys.argv[1])

import scenarios  # noqa: E402
import torch  # noqa: E402

from autotune.kernels.backends import libraries, up_first  # noqa: E402
from autotune.kernels.backends.registry import baseline_backend  # noqa: E402
from autotune.kernels.backends.vllm_modular import moe_config, vllm_config  # noqa: E402
from autotune.vocabulary.problem import Problem, Scheme  # noqa: E402

SELECTIONS = (
    (Scheme.BF16, "unquantized", 1),
    (Scheme.FP8_TENSOR, "fp8", 1),
    (Scheme.FP8_BLOCK128, "fp8", 1),
    (Scheme.FP8_BLOCK128, "fp8", 2),
    (Scheme.FP8_CHANNEL, "compressed-tensors", 1),
)


def problem(scheme: Scheme, ep: int = 1) -> Problem:
    return Problem(E=8, N=256, K=512, topk=2, scheme=scheme, ep=ep)


def define_op() -> None:
    """vLLM's op is in its compiled part; here it is what vLLM's own class says it computes."""
    layers: Any = importlib.import_module("vllm.model_executor.layers.activation")
    op = object.__new__(layers.MulAndSilu)

    def mul_and_silu(out: torch.Tensor, x: torch.Tensor) -> None:
        out.copy_(op.forward_native(x))

    library = torch.library.Library("_C", "FRAGMENT")
    library.define("mul_and_silu(Tensor! out, Tensor input) -> ()")
    library.impl("mul_and_silu", mul_and_silu, "CPU")
    globals()["_kept"] = library


def activations() -> dict[str, Any]:
    layers: Any = importlib.import_module("vllm.model_executor.layers.activation")
    kinds: Any = importlib.import_module(f"{scenarios.FM}.activation").MoEActivation
    triton: Any = importlib.import_module(f"{scenarios.FM}.experts.triton_moe").TritonExperts
    cutlass: Any = importlib.import_module(f"{scenarios.FM}.experts.cutlass_moe")
    config: Any = importlib.import_module(f"{scenarios.FM}.config")
    columns = torch.randn(7, 512, generator=torch.Generator().manual_seed(1))
    swapped = torch.cat([columns[:, 256:], columns[:, :256]], dim=1)
    expected = object.__new__(layers.SiluAndMul).forward_native(columns)
    found: dict[str, Any] = {}
    with vllm_config():
        experts = up_first.up_first_triton(triton)(
            moe_config=moe_config(problem(Scheme.BF16), "cpu"),
            quant_config=config.FUSED_MOE_UNQUANTIZED_CONFIG,
        )
    output = torch.full((7, 256), float("nan"))
    experts.activation(kinds.SILU, output, swapped)
    found["triton"] = torch.equal(output, expected)
    experts.activation(kinds.SILU, output, columns)
    found["wrong_order_differs"] = not torch.allclose(output, expected)
    original = cutlass.apply_moe_activation
    with up_first.up_first_cutlass():
        output.fill_(float("nan"))
        cutlass.apply_moe_activation(kinds.SILU, output, swapped)
        found["cutlass"] = torch.equal(output, expected)
        try:
            cutlass.apply_moe_activation(kinds.GELU, output, swapped)
        except NotImplementedError as error:
            found["gelu"] = str(error)
    found["restored"] = cutlass.apply_moe_activation is original
    return found


def selections() -> dict[str, str]:
    """vLLM's own choice on an H200 with FlashInfer, which this machine only seems to have."""
    scenarios.fake_h200()
    flashinfer: Any = importlib.import_module(f"{scenarios.FM}.experts.flashinfer_cutlass_moe")
    flashinfer.has_flashinfer_cutlass_fused_moe = lambda: True
    cutlass: Any = importlib.import_module(f"{scenarios.FM}.experts.cutlass_moe")
    cutlass.cutlass_group_gemm_supported = lambda: True
    return {
        f"{scheme.value} {checkpoint} ep={ep}": baseline_backend(problem(scheme, ep), checkpoint)  # type: ignore[arg-type]
        for scheme, checkpoint, ep in SELECTIONS
    }


def main() -> None:
    supports = {name: libraries.library_support(name) for name in libraries.EXPERTS}
    from vllm.platforms import current_platform

    type(current_platform).device_type = "cpu"  # a VllmConfig asks for one
    define_op()
    answer = {
        "selection": libraries.selection_surface().reason,
        "libraries": {name: support.reason for name, support in supports.items()},
        "activations": activations(),
        "selections": selections(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
