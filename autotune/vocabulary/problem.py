"""The MoE layer to run: schemes, problems, and their text form."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from autotune.vocabulary.errors import ShapeError, UnknownNameError, UsageError

Activation = Literal["silu", "gelu", "gelu_tanh", "swigluoai", "relu2_no_mul"]
ACTIVATIONS: tuple[str, ...] = ("silu", "gelu", "gelu_tanh", "swigluoai", "relu2_no_mul")
"""Spelled as in vLLM's MoEActivation; all but `relu2_no_mul` are gated (the first GEMM has 2N columns)."""

GRAMMAR = (
    "KEY=VALUE,... with E, N, K, topk (positive integers) and scheme "
    "(bf16, fp8_tensor, fp8_channel, fp8_block128), optionally act (default silu) and ep (default 1); "
    "for example E=128,N=768,K=2048,topk=8,scheme=fp8_block128"
)


class Scheme(StrEnum):
    """How weights and activations are quantized."""

    BF16 = "bf16"
    FP8_TENSOR = "fp8_tensor"
    """One static scale per expert and GEMM for weights, one static scale for activations."""
    FP8_CHANNEL = "fp8_channel"
    """One scale per output channel for weights, one dynamic scale per token for activations."""
    FP8_BLOCK128 = "fp8_block128"
    """One scale per 128x128 block of weights, one dynamic scale per 1x128 group of activations."""

    @property
    def is_fp8(self) -> bool:
        return self is not Scheme.BF16

    @property
    def block_shape(self) -> tuple[int, int] | None:
        """`(block_n, block_k)` of the weight scales, as in vLLM's `block_shape`."""
        return (128, 128) if self is Scheme.FP8_BLOCK128 else None

    @property
    def vllm_dtype(self) -> str | None:
        """The `dtype` part of vLLM's tuned-config file names."""
        return "fp8_w8a8" if self.is_fp8 else None

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight element, scales not counted."""
        return 1 if self.is_fp8 else 2


class Problem(BaseModel):
    """One fused MoE layer as one GPU sees it. Frozen and hashable; `str()` gives its text form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    E: int = Field(gt=0, le=4096, description="local experts")
    N: int = Field(gt=0, le=1 << 20, description="intermediate size per partition")
    K: int = Field(gt=0, le=1 << 20, description="hidden size")
    topk: int = Field(gt=0, le=256, description="experts per token")
    scheme: Scheme
    act: Activation = "silu"
    ep: int = Field(default=1, gt=0, le=4096, description="expert-parallel size")

    def model_post_init(self, context: Any) -> None:
        if self.topk > self.global_experts:
            raise ValueError(f"topk={self.topk} exceeds the {self.global_experts} experts")

    @property
    def global_experts(self) -> int:
        """Experts over all expert-parallel ranks."""
        return self.E * self.ep

    @property
    def gated(self) -> bool:
        return self.act != "relu2_no_mul"

    @property
    def gate_up_rows(self) -> int:
        """Rows of the first weight matrix: 2N when the activation is gated, else N."""
        return 2 * self.N if self.gated else self.N

    @property
    def weight_bytes_per_expert(self) -> int:
        """Bytes of one expert's two weight matrices, scales not counted."""
        return (self.gate_up_rows + self.N) * self.K * self.scheme.weight_bytes

    def __str__(self) -> str:
        text = f"E={self.E},N={self.N},K={self.K},topk={self.topk},scheme={self.scheme.value}"
        if self.act != "silu":
            text += f",act={self.act}"
        if self.ep != 1:
            text += f",ep={self.ep}"
        return text

    @classmethod
    def parse(cls, text: str) -> Problem:
        """Read the text form.

        Raises:
            ShapeError: with the position of the first character that does not fit.
            UnknownNameError: for a scheme or activation that does not exist.
        """
        values = _parse_pairs(text, ("E", "N", "K", "topk", "scheme", "act", "ep"))
        numbers = {key: _number(key, *values[key], text) for key in _LIMITS if key in values}
        for key in ("E", "N", "K", "topk", "scheme"):
            if key not in values:
                raise ShapeError(f"{key}= is missing", len(text), text, GRAMMAR)
        scheme = values["scheme"][0]
        if scheme not in {s.value for s in Scheme}:
            raise UnknownNameError("scheme", scheme, [s.value for s in Scheme])
        act = values.get("act", ("silu", 0))[0]
        if act not in ACTIVATIONS:
            raise UnknownNameError("activation", act, ACTIVATIONS)
        experts = numbers["E"] * numbers.get("ep", 1)
        if numbers["topk"] > experts:
            raise ShapeError(
                f"topk={numbers['topk']} exceeds the {experts} experts", values["topk"][1], text, GRAMMAR
            )
        return cls.model_validate({"scheme": scheme, "act": act, **numbers})


class PartialProblem(BaseModel):
    """What a vLLM tuned-config file name tells: neither K, nor top-k, nor the scheme's granularity.

    Import and search take it; look-ups do not, since several problems share one name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    E: int = Field(gt=0)
    N: int = Field(gt=0)
    device_name: str
    dtype: str | None = None
    block_shape: tuple[int, int] | None = None

    @classmethod
    def parse_file_name(cls, name: str) -> PartialProblem:
        """Read `E=...,N=...,device_name=...[,dtype=...][,block_shape=[n,k]].json`.

        Raises:
            UsageError: if the name has another form.
        """
        pattern = (
            r"E=(?P<E>[1-9]\d{0,5}),N=(?P<N>[1-9]\d{0,6}),device_name=(?P<device>[^,/]+)"
            r"(,dtype=(?P<dtype>[^,/]+))?(,block_shape=\[(?P<bn>\d+),\s?(?P<bk>\d+)\])?\.json"
        )
        match = re.fullmatch(pattern, name, re.ASCII)
        if match is None:
            raise UsageError(
                f"{name!r} is not a vLLM tuned-config file name.",
                "It must read E=..,N=..,device_name=..[,dtype=..][,block_shape=[n,k]].json.",
            )
        block = (int(match["bn"]), int(match["bk"])) if match["bn"] else None
        return cls(
            E=int(match["E"]),
            N=int(match["N"]),
            device_name=match["device"],
            dtype=match["dtype"],
            block_shape=block,
        )

    def covers(self, problem: Problem) -> bool:
        """Whether vLLM would read this file for that problem (the GPU left aside)."""
        return (
            problem.E == self.E
            and problem.N == self.N
            and problem.scheme.vllm_dtype == self.dtype
            and problem.scheme.block_shape == self.block_shape
        )


def vllm_config_file_name(problem: Problem, device_name: str) -> str:
    """The name under which vLLM looks for tuned Triton tiles of this problem."""
    dtype = f",dtype={problem.scheme.vllm_dtype}" if problem.scheme.vllm_dtype else ""
    block = problem.scheme.block_shape
    shape = f",block_shape=[{block[0]},{block[1]}]" if block else ""
    # vLLM folds the whole H200 family into one file name (get_config_file_name).
    device = "NVIDIA_H200" if "H200" in device_name.split("_") else device_name
    return f"E={problem.E},N={problem.N},device_name={device}{dtype}{shape}.json"


_LIMITS = {"E": 4096, "N": 1 << 20, "K": 1 << 20, "topk": 256, "ep": 4096}


def _number(key: str, value: str, position: int, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value, re.ASCII) or not 0 < int(value) <= _LIMITS[key]:
        raise ShapeError(
            f"{key} must be an integer from 1 to {_LIMITS[key]}, not {value!r}", position, text, GRAMMAR
        )
    return int(value)


def _parse_pairs(text: str, known: tuple[str, ...]) -> dict[str, tuple[str, int]]:
    """Split `key=value,...` into `{key: (value, position of the value)}`."""
    values: dict[str, tuple[str, int]] = {}
    position = 0
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise ShapeError(f"expected KEY=VALUE, found {part!r}", position, text, GRAMMAR)
        if key not in known:
            raise ShapeError(f"unknown key {key!r}", position, text, GRAMMAR)
        if key in values:
            raise ShapeError(f"{key}= is given twice", position, text, GRAMMAR)
        if not value:
            raise ShapeError(f"{key}= has no value", position + len(key) + 1, text, GRAMMAR)
        values[key] = (value, position + len(key) + 1)
        position += len(part) + 1
    return values
