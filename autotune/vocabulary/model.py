"""A model's MoE layer and how it is split over GPUs: from published dimensions to a problem."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.vocabulary.errors import UsageError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Activation, Problem, Scheme

MAX_LISTED_SPLIT = 64
"""Splits beyond this are not worth naming in an error message."""


@dataclass(frozen=True)
class Model:
    """The MoE layer of one checkpoint, before any split.

    Args:
        name: how `--model` calls it.
        title: for people.
        experts: routed experts, over all GPUs.
        intermediate: width of one expert's hidden layer, before tensor parallelism.
        hidden: width of the token vectors that enter the experts.
        topk: experts per token.
        source: where the dimensions and the scheme were read.
        notes: what a reader must know before trusting the mapping.
        aliases: Hugging Face ids and other names of the same layer.
    """

    name: str
    title: str
    experts: int
    intermediate: int
    hidden: int
    topk: int
    scheme: Scheme
    checkpoint: Checkpoint
    source: str
    act: Activation = "silu"
    notes: str = ""
    aliases: tuple[str, ...] = ()

    def problem(self, *, tp: int = 1, ep: int = 1) -> Problem:
        """The layer as one GPU sees it.

        Args:
            tp: tensor-parallel size. Without expert parallelism it divides the intermediate size.
            ep: expert-parallel size, over all GPUs that share the experts. As in vLLM, every GPU then holds
                whole experts, so that `tp` does not divide the intermediate size; `ep` is a multiple of it.

        Raises:
            UsageError: if the layer cannot be split so, naming the sizes that are possible.
        """
        for option, size in (("--tp", tp), ("--ep", ep)):
            if size < 1:
                raise UsageError(f"{option} must be at least 1, not {size}.", "Leave it out for one GPU.")
        if ep == 1:
            return self._problem(self._width(tp), self.experts, 1)
        if ep % tp:
            raise UsageError(
                f"--ep {ep} is not a multiple of --tp {tp}.",
                "In vLLM the expert-parallel size is tensor-parallel size x data-parallel size.",
            )
        if self.experts % ep:
            raise UsageError(
                f"{self.name} has {self.experts} experts, which {ep} GPUs do not share equally: "
                "they would have different problems.",
                f"Possible --ep: {_listing(_divisors(self.experts))}.",
            )
        return self._problem(self._width(1), self.experts // ep, ep)

    def _problem(self, width: int, experts: int, ep: int) -> Problem:
        return Problem(
            E=experts, N=width, K=self.hidden, topk=self.topk, scheme=self.scheme, act=self.act, ep=ep
        )

    def _width(self, tp: int) -> int:
        block = self.scheme.block_shape[0] if self.scheme.block_shape else 1
        possible = [d for d in _divisors(self.intermediate) if self.intermediate // d % block == 0]
        if tp in possible:
            return self.intermediate // tp
        hint = f"Possible --tp: {_listing(possible)}. --ep keeps experts whole."
        if not possible:
            hint = "Quantize it per tensor or per channel."
        if self.intermediate % tp:
            raise UsageError(
                f"--tp {tp} does not divide the intermediate size {self.intermediate} of {self.name}.", hint
            )
        raise UsageError(
            f"--tp {tp} leaves {self.name} an intermediate size of {self.intermediate // tp} per GPU, "
            f"which is not a multiple of the {block}-wide quantization blocks: vLLM refuses to load it.",
            hint,
        )


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, min(number, 4096) + 1) if number % d == 0]


def _listing(sizes: list[int]) -> str:
    shown = [str(size) for size in sizes if size <= MAX_LISTED_SPLIT]
    return ", ".join(shown) + (" and more" if len(shown) < len(sizes) else "")
