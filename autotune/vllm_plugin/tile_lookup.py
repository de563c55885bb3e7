"""Which table answers vLLM's tile look-up, which names neither K, top-k nor the kind of scales."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.vllm_plugin.features import Context
from autotune.vllm_plugin.log import first_time
from autotune.vocabulary.problem import Problem, Scheme
from autotune.vocabulary.table import PublishedTable


@dataclass(frozen=True)
class TileKey:
    """The arguments of vLLM's `get_moe_configs`; 0 means: no block scales."""

    E: int
    N: int
    dtype: str | None
    block_n: int
    block_k: int

    @property
    def block_shape(self) -> list[int] | None:
        return [self.block_n, self.block_k] if self.block_n and self.block_k else None

    def covers(self, problem: Problem) -> bool:
        """Whether vLLM would ask with this key for that problem."""
        return (problem.E, problem.N) == (self.E, self.N) and self.covers_scheme(problem.scheme)

    def covers_scheme(self, scheme: Scheme) -> bool:
        """Whether vLLM would ask with this dtype and block shape for that scheme."""
        shape = tuple(self.block_shape) if self.block_shape else None
        return (scheme.vllm_dtype, scheme.block_shape) == (self.dtype, shape)

    def __str__(self) -> str:
        block = f",block_shape={self.block_shape}" if self.block_shape else ""
        return f"E={self.E},N={self.N},dtype={self.dtype or 'bf16'}{block}"


@dataclass(frozen=True)
class Picked:
    """The table, or why none answers (an empty reason: there simply is none, or it has been told)."""

    published: PublishedTable | None = None
    moved_to_triton: bool = False
    reason: str = ""


def pick_table(context: Context, key: TileKey) -> Picked:
    """The one table for a key.

    The layers that this process built decide. Where none is known (the look-up is called without a
    model), a table answers if it is the only one that the key can mean.
    """
    client = context.client
    problems = sorted({t.problem for t in client.snapshot.tables if key.covers(t.problem)}, key=str)
    selections = [(problem, client.select(problem)) for problem in problems]
    usable = {problem: s.published for problem, s in selections if s.miss is None and s.published}
    if not usable:
        return Picked(reason=" ".join(s.detail for problem, s in selections if first_time(problem, s.detail)))
    layers = [
        layer
        for layer in context.deployment.with_shape(key.E, key.N)
        if not (layer.scheme_known and layer.scheme and not key.covers_scheme(layer.scheme))
    ]
    if not layers:
        if len(problems) > 1:
            return Picked(reason=f"several tables share these dimensions ({'; '.join(map(str, problems))})")
        return Picked(usable.get(problems[0]))
    meant: set[Problem] = set()
    for layer in layers:
        refusal = layer.refusal()
        if refusal:
            return Picked(reason=refusal)
        fitting = [problem for problem in problems if layer.could_be(problem)]
        if not fitting:
            config = layer.config
            return Picked(
                reason=f"the layer has K={config.hidden_dim}, topk={config.experts_per_token}, "
                f"act={config.activation.value}; the tables are for {'; '.join(map(str, problems))}"
            )
        meant.update(fitting)
    if len(meant) > 1:
        return Picked(reason=f"it can mean any of {'; '.join(sorted(map(str, meant)))}")
    (problem,) = meant
    if problem not in usable:
        return Picked(reason=client.select(problem).detail)
    known = [layer for layer in layers if layer.scheme_known]
    moved = bool(known) and all(layer.moved_to == "triton" for layer in known)
    return Picked(usable[problem], moved)
