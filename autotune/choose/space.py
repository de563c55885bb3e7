"""The conditional search space: a backend, and for Triton kernels Swap-AB, tile sizes, warps and stages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from autotune.kernels.specs import DECODE_PAIRS, Support, backends_for, tunes_flashinfer
from autotune.vocabulary.candidate import (
    BackendName,
    Candidate,
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    FusedDecodeCandidate,
    FusedTritonCandidate,
    Tile,
    TritonCandidate,
    VllmCutlassCandidate,
)
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.text import counted

TUNABLE: tuple[BackendName, ...] = ("triton", "fused_triton", "fused_decode")
"""Backends with options to search; the others have one candidate each."""

BLOCK_M = (16, 32, 64, 128)
BLOCK_N = (32, 64, 128, 256)
BLOCK_K = (64, 128, 256)
GROUP_M = (1, 8, 32)
WARPS = (4, 8)
STAGES = (2, 3, 4, 5)
DECODE_BLOCK_M = (8, 16, 32, 64, 128)
DECODE_GATE_UP_N = (16, 32, 64)
DECODE_DOWN_N = (32, 64, 128, 256)
DECODE_STAGES = (3, 4, 5)
DECODE_DOWN_STAGES = (0, 2, 3, 4, 5)
DECODE_WARPS = (2, 4)
DECODE_SPLITS = (1, 2, 4)
DECODE_CROWDED_M = 32
"""Rows together of an expert that has more than a block's, in calls of more than `DECODE_FEW` tokens."""
DECODE_FEW = 16
"""Up to so many tokens no expert has more rows than a block of 16."""


class Space:
    """What may be proposed for one problem at one token count.

    Args:
        only: restrict to these backends; None for all that support the problem.
    """

    def __init__(
        self,
        problem: Problem,
        tokens: int,
        environment: Environment,
        only: frozenset[BackendName] | None = None,
    ) -> None:
        self.problem = problem
        self.tokens = tokens
        self.support: dict[BackendName, Support] = {
            name: support
            for name, support in backends_for(problem, environment).items()
            if only is None or name in only
        }
        if tokens * problem.topk > DECODE_PAIRS and "fused_decode" in self.support:
            most = DECODE_PAIRS // problem.topk
            self.support["fused_decode"] = Support(
                False, f"fused_decode takes up to {counted(most, 'token')} here"
            )
        self.backends = tuple(name for name, support in self.support.items() if support.ok)
        self.tunable = tuple(name for name in self.backends if name in TUNABLE)
        # Swap-AB matters for WGMMA only, which has capability 9.0; vLLM's kernel swaps FP8 only.
        self._hopper = environment.capability == "9.0"
        rows = tokens * problem.topk / problem.global_experts
        # Row blocks much taller than an expert's rows are mostly padding; much shorter ones read the
        # weights again and again.
        self._block_m = tuple(m for m in BLOCK_M if (m <= max(16, 4 * rows)) and (m >= min(64, rows / 16)))
        # `fused_decode` reads an expert's weights once for every `block_m` of its rows.
        crowded = rows + 1.5 * math.sqrt(rows)
        self._decode_tall = next((m for m in DECODE_BLOCK_M if m >= crowded), DECODE_BLOCK_M[-1])
        self._decode_m = tuple(
            m for m in DECODE_BLOCK_M if m <= max(16, 2 * self._decode_tall) and m >= min(64, rows / 2)
        )
        self._block_k = tuple(k for k in BLOCK_K if k <= 128) if problem.scheme.block_shape else BLOCK_K

    def fixed(self) -> list[Candidate]:
        """Backends without options: measured once, not searched. FlashInfer also as it is before tuning."""
        flashinfer: list[Candidate] = [FlashinferCutlassCandidate()]
        if tunes_flashinfer(self.problem):
            flashinfer.append(FlashinferCutlassCandidate(tuned=False))
        made: dict[str, list[Candidate]] = {
            "vllm_cutlass": [VllmCutlassCandidate()],
            "flashinfer_cutlass": flashinfer,
            "deep_gemm": [DeepGemmCandidate()],
        }
        return [candidate for name in self.backends for candidate in made.get(name, [])]

    def seeds(self, baseline: Candidate, neighbours: list[Candidate]) -> list[Candidate]:
        """Where the search starts: the baseline's own config, the neighbouring token count's best, and a
        translation of each between the two Triton kernels."""
        found: dict[str, Candidate] = {}
        starts = [baseline, *map(self._here, neighbours)]
        if "fused_decode" in self.tunable:
            starts += self._decode_starts()
        if "fused_triton" in self.tunable and BLOCK_M[-1] in self._block_m:
            starts += self._prefill_starts()
        for start in starts:
            for candidate in (start, *self._translate(start)):
                if candidate.backend in self.backends:
                    found.setdefault(candidate.digest, candidate)
        return list(found.values())

    def _here(self, neighbour: Candidate) -> Candidate:
        """Another token count's best as it would be proposed for this one."""
        if not isinstance(neighbour, FusedDecodeCandidate):
            return neighbour
        fields = neighbour.model_dump() | {"crowded_block_m": self._crowded_m(neighbour.block_m)}
        return FusedDecodeCandidate.model_validate(fields)

    def _decode_starts(self) -> list[Candidate]:
        """The forms that an exploration of `fused_decode` on an H200 found best, from few tokens to many.

        There (Qwen3-30B-A3B, fp8_tensor) shared memory for one more block per SM was worth more than a
        deeper pipeline. Where an expert has more rows than theirs, one block of rows still takes them all.
        """
        wide = 64 if self.problem.scheme.weight_bytes == 2 else 128
        # With a short reduction a block has little to read for what it costs to hand its rows on.
        broad, pipeline = (256, 2) if self.problem.N <= 512 else (128, 4)
        deep = wide if self.problem.scheme.block_shape else 2 * wide
        first = self.problem.scheme.is_fp8
        starts: list[Candidate] = []
        for short, n, k, stages, down_n, down_k, down_stages, warps, split in (
            (16, 32, deep, 4, 64, wide, 3, 4, 1),
            (16, 32, deep, 4, 64, deep, 3, 4, 1),
            (8, 32, deep, 3, 64, deep, 3, 4, 1),
            (8, 32, wide, 4, 64, wide, 3, 2, 1),
            (8, 64, wide, 3, broad, wide, min(3, pipeline), 4, 1),
            (16, 64, wide, 4, broad, wide, pipeline, 4, 1),
            (16, 64, wide, 4, 128, wide, pipeline, 4, 2),
            (16, 32, deep, 4, 64, wide, 0, 4, 1),
            (16, 32, wide, 4, 32, wide, 0, 4, 1),
        ):
            m = short if self._decode_tall <= 16 else self._decode_tall
            starts.append(
                FusedDecodeCandidate(
                    block_m=m,
                    crowded_block_m=self._crowded_m(m),
                    gate_up_block_n=n,
                    gate_up_block_k=k,
                    gate_up_stages=stages,
                    down_block_n=down_n,
                    down_block_k=down_k,
                    down_stages=down_stages,
                    num_warps=warps,
                    down_split_k=split,
                    quantize_first=first,
                )
            )
        return starts

    def _crowded_m(self, block_m: int) -> int:
        """`crowded_block_m` for a block of so many rows: no choice of the search's, which would judge by its
        own routing.

        With uniform routing it costs next to nothing, and where experts are crowded it saves up to a fifth
        (docs/fused_decode.md). With block scales it is left out: two more accumulators take 223 registers of
        a thread in place of 162, and so an SM holds a block fewer.
        """
        if self.problem.scheme.block_shape or self.tokens <= DECODE_FEW or block_m >= DECODE_CROWDED_M:
            return 0
        return DECODE_CROWDED_M

    def _prefill_starts(self) -> list[Candidate]:
        """Tall tiles for experts with many rows, which a search that begins at few tokens reaches late.

        The first is the tile with which vLLM's own kernel won at 4,096 and 8,192 tokens in the first sweep
        of Qwen3-30B-A3B per tensor, the last but one what won at 2,048. The others follow from what fits:
        accumulators in 128 registers a thread, of which the first GEMM has two, and one block's pipeline in
        an SM's shared memory.
        """
        deep = 64 if self.problem.scheme.weight_bytes == 2 else 128
        return [
            FusedTritonCandidate(
                gate_up=Tile(block_m=m, block_n=n, block_k=k, group_m=g, num_warps=warps, num_stages=stages),
                down=Tile(
                    block_m=m,
                    block_n=down_n,
                    block_k=k,
                    group_m=g,
                    num_warps=warps,
                    num_stages=down_stages,
                ),
                swap_ab=swap and self._hopper,
            )
            for m, n, k, g, warps, stages, down_n, down_stages, swap in (
                (128, 64, deep, 1, 4, 3, 128, 3, True),
                (128, 128, deep, 8, 8, 3, 128, 4, True),
                (128, 64, deep, 8, 4, 4, 128, 4, True),
                (128, 128, deep, 8, 8, 3, 256, 3, False),
                (128, 64, deep, 8, 8, 4, 128, 4, False),
                (64, 128, 64, 32, 4, 5, 128, 4, False),
                (64, 128, deep, 8, 4, 3, 128, 4, False),
            )
        ]

    def _translate(self, candidate: Candidate) -> list[Candidate]:
        if isinstance(candidate, TritonCandidate) and "fused_triton" in self.tunable:
            tile = candidate.tile
            # The gate-up kernel reads two weight tiles a step: half the width keeps its shared memory.
            narrow = tile.model_copy(update={"block_n": max(32, tile.block_n // 2)})
            return [FusedTritonCandidate(gate_up=narrow, down=tile, swap_ab=candidate.swap_ab)]
        if isinstance(candidate, FusedTritonCandidate) and "triton" in self.tunable:
            swap = candidate.swap_ab and self.problem.scheme.is_fp8
            return [TritonCandidate(tile=candidate.down, swap_ab=swap)]
        return []

    def suggest(self, trial: optuna.Trial) -> Candidate:
        """Let Optuna pick a candidate."""
        backend = trial.suggest_categorical("backend", self.tunable)
        picked = {
            name: trial.suggest_categorical(name, distribution.choices)
            for name, distribution in self._distributions(backend).items()
        }
        return self._build(backend, picked)

    def parameters(self, candidate: Candidate) -> tuple[dict[str, Any], dict[str, BaseDistribution]] | None:
        """A candidate as Optuna parameters; None if it lies outside the space."""
        if isinstance(candidate, TritonCandidate):
            values = {"swap": candidate.swap_ab, "m": candidate.tile.block_m, "group": candidate.tile.group_m}
            values |= _tile_values("", candidate.tile)
            prefix = "triton"
        elif isinstance(candidate, FusedTritonCandidate):
            values = {
                "swap": candidate.swap_ab,
                "m": candidate.gate_up.block_m,
                "group": candidate.gate_up.group_m,
            }
            values |= _tile_values("gate_up_", candidate.gate_up) | _tile_values("down_", candidate.down)
            prefix = "fused_triton"
        elif isinstance(candidate, FusedDecodeCandidate):
            fields = candidate.model_dump(exclude={"backend", "block_m", "crowded_block_m"})
            values = {"m": candidate.block_m} | {_DECODE_NAMES[name]: fields[name] for name in fields}
            prefix = "fused_decode"
        else:
            return None
        if prefix not in self.tunable:
            return None
        named: dict[str, Any] = {f"{prefix}_{key}": value for key, value in values.items()}
        distributions: dict[str, BaseDistribution] = {"backend": CategoricalDistribution(self.tunable)}
        known = self._distributions(prefix)
        if set(known) != set(named) or any(value not in known[key].choices for key, value in named.items()):
            return None
        return {"backend": prefix, **named}, {**distributions, **known}

    def _distributions(self, backend: str) -> dict[str, CategoricalDistribution]:
        if backend == "fused_decode":
            return self._decode_distributions()
        swaps: tuple[bool, ...] = (False, True)
        if not self._hopper or (backend == "triton" and not self.problem.scheme.is_fp8):
            swaps = (False,)
        choices: dict[str, tuple[Any, ...]] = {"swap": swaps, "m": self._block_m, "group": GROUP_M}
        for part in ("",) if backend == "triton" else ("gate_up_", "down_"):
            # Two weight tiles a step: the widest would not fit shared memory.
            wide = BLOCK_N[:-1] if part == "gate_up_" else BLOCK_N
            choices |= {
                f"{part}n": wide,
                f"{part}k": self._block_k,
                f"{part}warps": WARPS,
                f"{part}stages": STAGES,
            }
        return {f"{backend}_{key}": CategoricalDistribution(value) for key, value in choices.items()}

    def _decode_distributions(self) -> dict[str, CategoricalDistribution]:
        # With block scales a step must be exactly one scale block; bf16 steps are twice as many bytes.
        steps = (128,) if self.problem.scheme.block_shape else (128, 256)
        if not self.problem.scheme.is_fp8:
            steps = (64, 128)
        choices: dict[str, tuple[Any, ...]] = {
            "m": self._decode_m,
            "gate_up_n": DECODE_GATE_UP_N,
            "gate_up_k": steps,
            "gate_up_stages": DECODE_STAGES,
            "down_n": DECODE_DOWN_N,
            "down_k": steps,
            "down_stages": DECODE_DOWN_STAGES,
            "warps": DECODE_WARPS,
            "down_split": DECODE_SPLITS,
            "first": (True, False) if self.problem.scheme.is_fp8 else (False,),
        }
        return {f"fused_decode_{key}": CategoricalDistribution(value) for key, value in choices.items()}

    def _build(self, backend: str, picked: Mapping[str, Any]) -> Candidate:
        def value(key: str) -> Any:
            return picked[f"{backend}_{key}"]

        def tile(part: str) -> Tile:
            return Tile(
                block_m=value("m"),
                block_n=value(f"{part}n"),
                block_k=value(f"{part}k"),
                group_m=value("group"),
                num_warps=value(f"{part}warps"),
                num_stages=value(f"{part}stages"),
            )

        if backend == "fused_decode":
            named = {name: value(key) for name, key in _DECODE_NAMES.items()}
            m = value("m")
            return FusedDecodeCandidate(block_m=m, crowded_block_m=self._crowded_m(m), **named)
        if backend == "triton":
            return TritonCandidate(tile=tile(""), swap_ab=value("swap"))
        return FusedTritonCandidate(gate_up=tile("gate_up_"), down=tile("down_"), swap_ab=value("swap"))


_DECODE_NAMES = {
    f"{part}_{name}": f"{part}_{key}"
    for part in ("gate_up", "down")
    for name, key in (("block_n", "n"), ("block_k", "k"), ("stages", "stages"))
} | {"num_warps": "warps", "down_split_k": "down_split", "quantize_first": "first"}
"""A candidate's fields as the parameters of the search."""


def _tile_values(part: str, tile: Tile) -> dict[str, int]:
    return {
        f"{part}n": tile.block_n,
        f"{part}k": tile.block_k,
        f"{part}warps": tile.num_warps,
        f"{part}stages": tile.num_stages,
    }
