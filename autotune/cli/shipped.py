"""What comes with this installation, by layer: recorded evidence and starter tables."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from autotune.vocabulary.catalogue import MODELS
from autotune.vocabulary.environment import GPU_ALIASES
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.model import Model

_RANKS = re.compile(r"-tp(\d+)$")
_KINDS = {"evidence": ".jsonl.gz", "tables": ".json"}


@dataclass(frozen=True)
class Shipped:
    """What there is for one layer and checkpoint format on one GPU.

    Args:
        gpu: vLLM's device name.
        evidence: recorded measurements, which `autotune sweep` replays on a machine without that GPU.
        table: a starter table, which answers where no other source does.
        tp: the tensor-parallel size that makes it this model's layer.
    """

    gpu: str
    evidence: bool
    table: bool
    tp: int = 1

    def __str__(self) -> str:
        name = next((alias for alias, gpu in GPU_ALIASES.items() if gpu == self.gpu), self.gpu)
        if self.tp > 1:
            name += f" tp{self.tp}"
        if self.evidence and self.table:
            return name
        return f"{name} ({'evidence' if self.evidence else 'table'} only)"

    def to_json_data(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)


def shipped() -> dict[tuple[str, Checkpoint], list[Shipped]]:
    """By problem and checkpoint format, whatever model has that layer.

    Told from the names of the files alone: GPU and model with a hyphen between; `-tp8` behind them where
    the layer is one rank's of eight.
    """
    found: dict[tuple[str, Checkpoint], dict[str, set[str]]] = {}
    for kind, ending in _KINDS.items():
        folder = files("autotune") / "data" / kind
        for file in folder.iterdir() if folder.is_dir() else ():
            if not file.name.endswith(ending):
                continue
            named = _split(file.name.removesuffix(ending))
            if named is not None:
                gpu, model, tp = named
                key = (str(model.problem(tp=tp)), model.checkpoint)
                found.setdefault(key, {}).setdefault(gpu, set()).add(kind)
    return {
        key: [Shipped(gpu, "evidence" in kinds, "tables" in kinds) for gpu, kinds in sorted(gpus.items())]
        for key, gpus in found.items()
    }


def _split(stem: str) -> tuple[str, Model, int] | None:
    split = _RANKS.search(stem)
    stem = _RANKS.sub("", stem)
    # Both parts may hold hyphens: the longest model name that ends the file's name is meant.
    named = [m for m in MODELS if stem.endswith(f"-{m.name}")]
    if not named:
        return None
    model = max(named, key=lambda m: len(m.name))
    gpu = stem.removesuffix(f"-{model.name}")
    return (
        next((known for known in GPU_ALIASES.values() if known.casefold() == gpu), gpu),
        model,
        int(split[1]) if split else 1,
    )
