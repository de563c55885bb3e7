"""What a routing table is valid for: the GPU and the library versions."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, field_validator

from autotune.vocabulary.errors import UnknownNameError
from autotune.vocabulary.text import Text

GPU_ALIASES: dict[str, str] = {
    "h200": "NVIDIA_H200",
    "h200-nvl": "NVIDIA_H200_NVL",
    "gh200": "NVIDIA_GH200_480GB",
    "h100": "NVIDIA_H100_80GB_HBM3",
    "h100-pcie": "NVIDIA_H100_PCIe",
    "h20": "NVIDIA_H20",
    "a100": "NVIDIA_A100-SXM4-80GB",
    "a100-pcie": "NVIDIA_A100_80GB_PCIe",
    "l40s": "NVIDIA_L40S",
    "l4": "NVIDIA_L4",
    "b200": "NVIDIA_B200",
    "rtx-4090": "NVIDIA_GeForce_RTX_4090",
}
"""Short names for vLLM's device names (`current_platform.get_device_name()`, spaces as underscores)."""


def gpu_name(text: str) -> str:
    """Resolve an alias or a device name to vLLM's device name.

    Any name that begins with `NVIDIA` is taken as a device name, since every CUDA GPU may have tables.

    Raises:
        UnknownNameError: for anything else.
    """
    folded = text.strip().casefold().replace(" ", "-").replace("_", "-")
    if folded in GPU_ALIASES:
        return GPU_ALIASES[folded]
    name = text.strip().replace(" ", "_")
    for known in GPU_ALIASES.values():
        if known.casefold() == name.casefold():
            return known
    if name.startswith("NVIDIA_") and len(name) > len("NVIDIA_"):
        return name
    raise UnknownNameError("GPU", text, GPU_ALIASES, "A full device name (NVIDIA_...) works too.")


class Match(StrEnum):
    """How a table's environment fits a query's."""

    EXACT = "exact"
    STALE = "stale"
    """The same GPU and capability, other library versions."""
    NONE = "none"


class Environment(BaseModel):
    """GPU and versions. Everything here is matched; the driver is recorded with measurements, not here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu: Text = Field(min_length=1, description="vLLM's device name, such as NVIDIA_H200")
    capability: str = Field(
        pattern=r"^[0-9]{1,3}\.[0-9]{1,2}$", description="compute capability, such as 9.0"
    )
    vllm: Text | None = None
    torch: Text | None = None
    triton: Text | None = None
    cuda: Text | None = Field(default=None, description="major.minor")
    flashinfer: Text | None = Field(default=None, description="only if a route or its baseline uses it")

    @field_validator("gpu")
    @classmethod
    def _underscores(cls, value: str) -> str:
        return value.replace(" ", "_")

    @field_validator("vllm", "torch", "triton", "flashinfer")
    @classmethod
    def _without_local_version(cls, value: str | None) -> str | None:
        # "2.11.0+cu130" and "2.11.0" are one torch; the CUDA version is a field of its own.
        return value.split("+")[0] if value else None

    def differences(self, other: Environment) -> dict[str, tuple[str | None, str | None]]:
        """Fields that do not match, as `{field: (self, other)}`.

        FlashInfer counts only if this environment names it: a table whose routes and baselines do
        without FlashInfer is valid with any FlashInfer.
        """
        mine, theirs = self.model_dump(), other.model_dump()
        if self.flashinfer is None:
            mine.pop("flashinfer"), theirs.pop("flashinfer")
        return {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}

    def match(self, other: Environment) -> Match:
        """How this environment, a table's, fits `other`, a query's."""
        different = self.differences(other)
        if not different:
            return Match.EXACT
        if "gpu" in different or "capability" in different:
            return Match.NONE
        return Match.STALE

    def __str__(self) -> str:
        versions = [f"{k} {v}" for k, v in self.model_dump(exclude={"gpu", "capability"}).items() if v]
        return f"{self.gpu} (sm_{self.capability.replace('.', '')}; {', '.join(versions)})"
