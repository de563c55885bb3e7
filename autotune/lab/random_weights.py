"""A vLLM plugin for benchmarks: `--load-format dummy` fills weights with values that behave like a model's.

vLLM's own dummy values are uniform within 1e-3, which rounds FP8 weights to almost nothing and leaves the
router undecided, so that every token goes to the same few experts. Outputs still mean nothing.
"""

from __future__ import annotations

from typing import Any

import torch

FP8_DEVIATION = 64.0
SCALE = 0.01
GATE_DEVIATION = 0.02
CHUNK = 1 << 26


def register() -> None:
    """Entry point of `vllm.general_plugins`."""
    from vllm.model_executor.model_loader import dummy_loader, weight_utils

    weight_utils.initialize_single_dummy_weight = initialize
    dummy_loader.initialize_single_dummy_weight = initialize


@torch.no_grad()
def initialize(param: torch.Tensor, low: float = 0.0, high: float = 0.0, seed: int = 1234, **_: Any) -> None:
    """Fill one parameter: FP8 and matrices normal, norms 1, scales a constant. The shape seeds it."""
    if param.device.type == "meta" or not torch.is_floating_point(param):
        return
    generator = torch.Generator(device=param.device).manual_seed(seed + param.numel() % 9973)
    if torch.finfo(param.dtype).bits < 16:
        for part in param.data.view(-1).split(CHUNK):
            values = torch.randn(part.numel(), generator=generator, device=param.device) * FP8_DEVIATION
            part.copy_(values.clamp_(-448, 448).to(param.dtype))
    elif param.dtype == torch.float32:
        param.fill_(SCALE)
    elif param.dim() == 1:
        param.fill_(1.0)
    else:
        param.normal_(0.0, GATE_DEVIATION, generator=generator)
