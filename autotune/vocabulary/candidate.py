"""Ways to run a problem: a backend with its options."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
)

from autotune.vocabulary.canonical import content_digest

BackendName = Literal[
    "triton", "vllm_cutlass", "flashinfer_cutlass", "deep_gemm", "fused_triton", "fused_decode"
]
BACKENDS: tuple[BackendName, ...] = (
    "triton",
    "vllm_cutlass",
    "flashinfer_cutlass",
    "deep_gemm",
    "fused_triton",
    "fused_decode",
)
VLLM_BACKENDS: frozenset[BackendName] = frozenset(
    {"triton", "vllm_cutlass", "flashinfer_cutlass", "deep_gemm"}
)
"""Those that stock vLLM can run; the others are ours."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tile(_Frozen):
    """Launch parameters of one tiled GEMM kernel."""

    block_m: int = Field(ge=1, le=512)
    block_n: int = Field(ge=1, le=512)
    block_k: int = Field(ge=1, le=1024)
    group_m: int = Field(default=1, ge=1, le=256)
    num_warps: int = Field(default=4, ge=1, le=32)
    num_stages: int = Field(default=3, ge=1, le=10)

    def __str__(self) -> str:
        size = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{size} g{self.group_m} w{self.num_warps} s{self.num_stages}"

    def vllm_config(self) -> dict[str, int]:
        """As a value of vLLM's tuned-config files."""
        return {
            "BLOCK_SIZE_M": self.block_m,
            "BLOCK_SIZE_N": self.block_n,
            "BLOCK_SIZE_K": self.block_k,
            "GROUP_SIZE_M": self.group_m,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }

    @classmethod
    def from_vllm_config(cls, config: dict[str, int]) -> Tile:
        """Read a value of vLLM's tuned-config files (Triton's defaults where it leaves them out)."""
        return cls(
            block_m=config["BLOCK_SIZE_M"],
            block_n=config["BLOCK_SIZE_N"],
            block_k=config["BLOCK_SIZE_K"],
            group_m=config.get("GROUP_SIZE_M", 1),
            num_warps=config.get("num_warps", 4),
            num_stages=config.get("num_stages", 3),
        )


def not_compilable(sizes: BaseModel, of: str = "") -> list[str]:
    """What Triton refuses of a candidate or tile: blocks and warps that are no powers of two."""
    found = []
    for name in type(sizes).model_fields:
        value = getattr(sizes, name)
        if isinstance(value, Tile):
            found += not_compilable(value, f"{name}." if name != "tile" else "")
        elif ("block_" in name or name == "num_warps") and value & (value - 1):
            found.append(f"{of}{name} {value} is no power of two")
    return found


class _CandidateBase(_Frozen):
    @cached_property
    def digest(self) -> str:
        """Content digest: the same candidate has the same one everywhere."""
        return content_digest(self.model_dump(mode="json"))

    @property
    def servable(self) -> bool:
        """Whether a server can run it. What is not is measured and shown, but never wins or is chosen."""
        return True


class TritonCandidate(_CandidateBase):
    """vLLM's `fused_experts`: one tile for both GEMMs."""

    backend: Literal["triton"] = "triton"
    tile: Tile
    swap_ab: bool = False

    def __str__(self) -> str:
        return f"triton {self.tile}{' swap_ab' if self.swap_ab else ''}"


class VllmCutlassCandidate(_CandidateBase):
    """vLLM's CUTLASS grouped GEMM; its tiles are compiled in."""

    backend: Literal["vllm_cutlass"] = "vllm_cutlass"

    def __str__(self) -> str:
        return "vllm_cutlass"


class FlashinferCutlassCandidate(_CandidateBase):
    """FlashInfer's CUTLASS fused MoE; `tuned` means after FlashInfer's own autotuner ran.

    vLLM tunes FlashInfer while it warms up: the untuned state shows what tuning is worth, and is no choice.
    """

    backend: Literal["flashinfer_cutlass"] = "flashinfer_cutlass"
    tuned: bool = True

    def __str__(self) -> str:
        return f"flashinfer_cutlass{'' if self.tuned else ' untuned'}"

    @property
    def servable(self) -> bool:
        return self.tuned


class DeepGemmCandidate(_CandidateBase):
    """DeepGEMM's contiguous grouped GEMM."""

    backend: Literal["deep_gemm"] = "deep_gemm"

    def __str__(self) -> str:
        return "deep_gemm"


class FusedTritonCandidate(_CandidateBase):
    """Our Triton fused MoE: a tile per GEMM over one expert-sorted row order.

    Both tiles use the same `block_m`, since they walk the same padded row blocks.
    """

    backend: Literal["fused_triton"] = "fused_triton"
    gate_up: Tile
    down: Tile
    swap_ab: bool = False

    def model_post_init(self, context: object) -> None:
        if self.gate_up.block_m != self.down.block_m:
            raise ValueError(
                f"both tiles need one block_m, not {self.gate_up.block_m} and {self.down.block_m}"
            )

    def __str__(self) -> str:
        return f"fused_triton {self.gate_up} | {self.down}{' swap_ab' if self.swap_ab else ''}"


class FusedDecodeCandidate(_CandidateBase):
    """Our decode kernel: the whole layer in one launch, no sort, SwiGLU and sum over experts fused.

    `*_block_n` counts columns of N (first GEMM, gate and up each) and of K (second); `*_block_k` is the step
    of the reduction. With `down_stages` 0 a block of the second GEMM has no pipeline: it asks for all of its
    weights before it waits for the first one, and holds them on chip. With `crowded_block_m` an expert that
    many tokens chose is read for more rows at a time, in a pipeline one stage shorter.
    """

    backend: Literal["fused_decode"] = "fused_decode"
    block_m: int = Field(ge=8, le=128, description="rows of one expert handled together")
    crowded_block_m: int = Field(
        default=0,
        ge=0,
        le=128,
        description="rows handled together of an expert that has more than block_m; 0: block_m of them",
        # Later than the others: left out where it says nothing, recorded candidates keep their digests.
        exclude_if=lambda rows: not rows,
    )
    gate_up_block_n: int = Field(ge=8, le=256)
    gate_up_block_k: int = Field(ge=32, le=512)
    gate_up_stages: int = Field(default=3, ge=1, le=8)
    down_block_n: int = Field(ge=16, le=256)
    down_block_k: int = Field(ge=32, le=512)
    down_stages: int = Field(default=3, ge=0, le=8)
    num_warps: int = Field(default=4, ge=1, le=16)
    down_split_k: int = Field(default=1, ge=1, le=16)
    quantize_first: bool = Field(default=False, description="activations to FP8 once, ahead of the GEMMs")

    def model_post_init(self, context: object) -> None:
        crowded = self.crowded_block_m
        if crowded and (crowded <= self.block_m or crowded & (crowded - 1)):
            raise ValueError(
                f"crowded_block_m must be 0, or a power of two above block_m={self.block_m}, not {crowded}"
            )

    def __str__(self) -> str:
        rows = f"{self.block_m}/{self.crowded_block_m}" if self.crowded_block_m else f"{self.block_m}"
        extra = f" k{self.down_split_k}" if self.down_split_k > 1 else ""
        extra += " q" if self.quantize_first else ""
        return (
            f"fused_decode m{rows} {self.gate_up_block_n}x{self.gate_up_block_k} "
            f"s{self.gate_up_stages} | {self.down_block_n}x{self.down_block_k} s{self.down_stages} "
            f"w{self.num_warps}{extra}"
        )


Candidate = Annotated[
    TritonCandidate
    | VllmCutlassCandidate
    | FlashinferCutlassCandidate
    | DeepGemmCandidate
    | FusedTritonCandidate
    | FusedDecodeCandidate,
    Field(discriminator="backend"),
]

_ADAPTER: TypeAdapter[Candidate] = TypeAdapter(Candidate)


def parse_candidate(value: object) -> Candidate:
    """Build a candidate from plain data (`{"backend": ..., ...}`).

    Raises:
        pydantic.ValidationError: if a field is missing, unknown or out of range.
    """
    return _ADAPTER.validate_python(value)
