"""An experiment as data: what is compared, at which points, how often. What a result is stored under."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.problem import Scheme

MIN_ROUNDS, MAX_ROUNDS = 3, 1000
MAX_SEED = (2**32 - MAX_ROUNDS) // 1000
"""numpy takes seeds below 2**32, and each round's is the plan's times 1000, and its own number."""
MAX_TOKENS = MAX_REQUESTS = 1 << 20
"""Beyond what any model reads, and below what overflows a float or a file's name."""
OWN_VARIABLES = frozenset({"TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "DG_JIT_CACHE_DIR", "AUTOTUNE_CACHE"})
"""Caches of an arm, which the experiment sets."""
Restriction = Literal["tiles", "swap_ab", "swap_ab_off", "route", "fused_decode", "fused_triton", "nothing"]
Name = Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Arm(_Frozen):
    """One way to start the server; arms differ in nothing else.

    Args:
        plugin: load the `autotune` plugin beside the one that fills the weights.
        env: environment variables, over those of all arms.
        serve_args: more words for the server's command line.
        table: `published` (the whole table, through the service), one of the restrictions of
            `autotune.lab.tables` (handed over as a file), or None.
        against: the arm that this one is compared with; None for a reference.
        note: what the arm shows, in one sentence.
    """

    name: str = Name
    plugin: bool = False
    env: dict[str, str] = {}
    serve_args: tuple[str, ...] = ()
    table: Literal["published"] | Restriction | None = None
    against: str | None = None
    note: str = ""


class Point(_Frozen):
    """One load: closed loop, `concurrency` requests in flight.

    Args:
        shortest, longest: prompt tokens; drawn uniformly from the range by `vllm bench serve`.
        output: new tokens of each request, exactly.
        requests: measured requests; as many as `concurrency` run ahead of them unmeasured.
    """

    concurrency: int = Field(gt=0, le=4096)
    shortest: int = Field(gt=0, le=MAX_TOKENS)
    longest: int = Field(gt=0, le=MAX_TOKENS)
    output: int = Field(gt=1, le=MAX_TOKENS)
    requests: int = Field(gt=0, le=MAX_REQUESTS)

    @property
    def name(self) -> str:
        """Tells points of one plan apart; part of file names."""
        return f"c{self.concurrency}-p{self.shortest}-{self.longest}-o{self.output}"

    def __str__(self) -> str:
        return (
            f"concurrency {self.concurrency}, prompts of {self.shortest} to {self.longest} tokens, "
            f"{self.output} new"
        )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"prompts of {self.shortest} to {self.longest} tokens: the shortest comes first")
        if self.requests < self.concurrency:
            raise ValueError(f"{self.requests} requests never reach concurrency {self.concurrency}")
        return self


class Plan(_Frozen):
    """One experiment. `digest` names its content; a result belongs to one digest.

    Args:
        rounds: how often each pair is measured, in turns with all others.
        seed: of the prompts, from 0 to `MAX_SEED`.
        servers: `together`: the servers of all arms stay resident on one GPU, each with its share of
            `gpu_memory`, and only one is driven at a time. `one at a time`: a server starts for each round
            and arm.
        cache: `warm`: Triton's and vLLM's compile caches are kept, one of each per arm. `cold`: they are
            emptied before each start, a server starts for each measurement (`together`: those of a pair are
            resident until each has been measured), and nothing runs ahead of it. The same load runs a second
            time afterwards, with what the first has left in the caches.
        gpu_memory: fraction of the GPU's memory that all resident servers share.
        env: environment of all arms.
        server: the command that serves, with `{python}`, `{model}`, `{port}` and `{memory}` to fill in;
            empty for `vllm serve`.
        table: SHA-256 of the routing table that the arms use; empty if none uses one.
    """

    scheme: Scheme
    layers: int = Field(gt=0, le=48)
    arms: tuple[Arm, ...] = Field(min_length=2)
    points: tuple[Point, ...] = Field(min_length=1)
    rounds: int = Field(default=MIN_ROUNDS, ge=MIN_ROUNDS, le=MAX_ROUNDS)
    seed: int = Field(default=1, ge=0, le=MAX_SEED)
    servers: Literal["together", "one at a time"] = "together"
    cache: Literal["warm", "cold"] = "warm"
    gpu_memory: float = Field(default=0.9, gt=0, lt=1)
    env: dict[str, str] = {}
    server: tuple[str, ...] = ()
    table: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return content_digest(self.model_dump(mode="json"))

    def arm(self, name: str) -> Arm:
        """The arm of a name.

        Raises:
            KeyError: if there is none.
        """
        found = {arm.name: arm for arm in self.arms}
        return found[name]

    def order(self, turn: int) -> tuple[Arm, ...]:
        """The arms in the order of one turn: each goes first equally often."""
        first = turn % len(self.arms)
        return self.arms[first:] + self.arms[:first]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError(f"two arms of one name: {', '.join(names)}")
        if len({point.name for point in self.points}) < len(self.points):
            raise ValueError("two points are the same")
        for arm in self.arms:
            if arm.against is not None and (arm.against == arm.name or arm.against not in names):
                raise ValueError(f"arm {arm.name} is compared with {arm.against}, which is no other arm")
        if all(arm.against is None for arm in self.arms):
            raise ValueError("no arm is compared with another")
        shared = sorted(
            OWN_VARIABLES & {name for env in (self.env, *(a.env for a in self.arms)) for name in env}
        )
        if shared:
            raise ValueError(f"{', '.join(shared)}: every arm has its own, under the experiment's folder")
        for arm in self.arms:
            if arm.table is not None and not arm.plugin:
                raise ValueError(f"arm {arm.name} has a table and no plugin that would read it")
        self._can_be_started()
        return self

    def _can_be_started(self) -> None:
        """What no process can be given.

        Raises:
            ValueError: naming it.
        """
        for env in (self.env, *(arm.env for arm in self.arms)):
            for name, value in env.items():
                if not name or "=" in name or not _passable(name + value):
                    raise ValueError(f"{name!r} = {value!r} is no environment variable in UTF-8")
        words = [*self.server, *(word for arm in self.arms for word in arm.serve_args)]
        for word in words:
            if not _passable(word):
                raise ValueError(f"the command that serves holds {word!r}: a NUL character, or no UTF-8")
        if self.server and not self.server[0].strip():
            raise ValueError("the command that serves begins with nothing")


def _passable(text: str) -> bool:
    """Whether a process can be given the text, and the plan written down with it.

    Python reads bytes of a command line that are no UTF-8 as lone surrogates, which JSON cannot hold.
    """
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
