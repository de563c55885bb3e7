"""From published tables and a query to one decision: the same rules for client, service and command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.vocabulary.candidate import BackendName
from autotune.vocabulary.environment import Environment, Match
from autotune.vocabulary.measurement import Checkpoint, vllm_backends
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import Decision, Miss, PublishedTable, RoutingTable, Verdict
from autotune.vocabulary.text import counted
from autotune.vocabulary.traffic import TrafficProfile


@dataclass(frozen=True)
class Query:
    """What a look-up asks for.

    Args:
        environment: the asker's own; None for a person at a terminal, who gets the newest one on record.
        gpu: vLLM's device name; not needed beside an environment.
        checkpoint: the checkpoint's format; None takes any, `fp8` first.
        compatible: also take tables of the same GPU with other library versions, marked as inferred.
        profile: also answer the static choice for this traffic, among `allowed` backends (None: those
            that vLLM can select for the table's checkpoint format).
    """

    problem: Problem
    environment: Environment | None = None
    gpu: str | None = None
    checkpoint: Checkpoint | None = None
    compatible: bool = False
    profile: TrafficProfile | None = None
    allowed: frozenset[BackendName] | None = None


@dataclass(frozen=True)
class Selection:
    """The table that answers a query, or why none does."""

    published: PublishedTable | None
    inferred: bool = False
    miss: Miss | None = None
    detail: str = ""

    @property
    def table(self) -> RoutingTable | None:
        return self.published.table if self.published and self.miss is None else None


def select_table(tables: Sequence[PublishedTable], query: Query) -> Selection:
    """Pick the one table that a query may use. Nothing is guessed from a neighbouring problem or GPU."""
    gpu = query.environment.gpu if query.environment else query.gpu
    of_problem = [t for t in tables if t.problem == query.problem]
    if query.checkpoint is not None:
        of_problem = [t for t in of_problem if t.checkpoint == query.checkpoint]
    if not of_problem:
        known = sorted({str(t.problem) for t in tables})
        listing = f" Known: {'; '.join(known[:6])}{' ...' if len(known) > 6 else ''}." if known else ""
        return Selection(
            None,
            miss=Miss.UNKNOWN_PROBLEM,
            detail=f"No table for {query.problem}.{listing} Sweep it with `autotune sweep`.",
        )
    of_gpu = [t for t in of_problem if gpu is None or t.environment.gpu == gpu]
    if not of_gpu:
        gpus = ", ".join(sorted({t.environment.gpu for t in of_problem}))
        return Selection(
            None,
            miss=Miss.UNKNOWN_GPU,
            detail=f"Tables for {query.problem} exist for {gpus}, not for {gpu}. "
            "Sweep there with `autotune sweep`.",
        )
    if query.environment is None:
        return _checked(max(of_gpu, key=_newest), inferred=False)
    exact = [t for t in of_gpu if t.environment.match(query.environment) is Match.EXACT]
    if exact:
        return _checked(max(exact, key=_newest), inferred=False)
    stale = [t for t in of_gpu if t.environment.match(query.environment) is Match.STALE]
    if not stale:
        found = ", ".join(sorted({t.environment.capability for t in of_gpu}))
        return Selection(
            None,
            miss=Miss.UNKNOWN_GPU,
            detail=f"Tables for {gpu} exist for compute capability {found}, "
            f"not {query.environment.capability}.",
        )
    newest = max(stale, key=_newest)
    if query.compatible:
        return _checked(newest, inferred=True)
    different = newest.environment.differences(query.environment)
    versions = ", ".join(
        f"{field} {theirs or 'none'} (table: {mine})" for field, (mine, theirs) in different.items()
    )
    return Selection(
        newest,
        miss=Miss.STALE,
        detail=f"The table for this GPU was measured with other versions: {versions}. "
        "Sweep again, or set AUTOTUNE_MATCH=compatible to take it as inferred.",
    )


def decide(tables: Sequence[PublishedTable], query: Query, tokens: int, source: str = "") -> Decision:
    """Answer one look-up.

    Args:
        tokens: rows entering the layer, at least 1.

    Raises:
        ValueError: if tokens is not positive.
    """
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, not {tokens}")
    return decide_selected(select_table(tables, query), query, tokens, source)


def decide_selected(selection: Selection, query: Query, tokens: int, source: str = "") -> Decision:
    """As `decide`, for a table selected before."""
    published = selection.published
    decision = Decision(
        answer="fallback",
        reason=selection.miss,
        detail=selection.detail,
        problem=query.problem,
        tokens=tokens,
        source=source,
        environment=published.environment if published else None,
        inferred=selection.inferred,
        revision=published.revision if published else None,
        channel=published.channel if published else None,
    )
    table = selection.table
    if table is None:
        return decision
    static = (
        table.static_choice(query.profile, query.allowed or vllm_backends(table.checkpoint))
        if query.profile
        else None
    )
    found = table.lookup(tokens)
    common = {"table_digest": table.digest, "static": static}
    if isinstance(found, Miss):
        asked = counted(tokens, "token")
        measured = f"{table.routes[0].first} to {table.routes[-1].last}"
        detail = {
            Miss.BELOW_RANGE: f"{asked} is below the measured range {measured}.",
            Miss.ABOVE_RANGE: f"{asked} is above the measured range {measured}.",
        }.get(found) or _between(table, tokens)
        return decision.model_copy(
            update={**common, "reason": found, "detail": f"{detail} vLLM's own choice stays."}
        )
    if found.verdict is Verdict.WIN and found.speedup is not None:
        detail = (
            f"{found.winner} is {found.speedup.median:.3f}x the baseline {found.baseline} "
            f"(at least {found.speedup.low:.3f}x at 95%), measured at {counted(found.tokens, 'token')}."
        )
    else:
        detail = (
            f"No candidate beat the baseline {found.baseline} beyond the margin "
            f"at {counted(found.tokens, 'token')}: it is kept."
        )
    return decision.model_copy(
        update={**common, "answer": "route", "reason": None, "detail": detail, "route": found}
    )


def _between(table: RoutingTable, tokens: int) -> str:
    """Why no route reaches a count between two measured ones: what wins at the upper end is no answer."""
    before = max((r for r in table.routes if r.last < tokens), key=lambda r: r.last)
    after = min((r for r in table.routes if r.first > tokens), key=lambda r: r.first)
    ends = " and ".join(
        f"{r.tokens} ({r.winner}{'' if r.verdict is Verdict.WIN else ', the baseline'})"
        for r in (before, after)
    )
    return (
        f"{counted(tokens, 'token')} lies between the measured counts {ends}. What runs at {after.tokens} "
        f"also has to be measured at {before.tokens}, and be no slower than the baseline there, to run "
        "between them; it was not, or is slower."
    )


def _newest(published: PublishedTable) -> tuple[bool, int, float]:
    # Moments, not their texts: a table may name its own in any time zone.
    last = published.table.recording.last.timestamp() if published.table else 0.0
    return (published.checkpoint == "fp8", published.revision or 0, last)


def _checked(published: PublishedTable, inferred: bool) -> Selection:
    if published.broken:
        detail = f"The published table is broken and not used: {published.broken} Publish it again."
        return Selection(published, inferred, Miss.BROKEN_TABLE, detail)
    if published.table is None:
        return Selection(
            published,
            inferred,
            Miss.NONE_PUBLISHED,
            "The channel says that nothing is to be applied (rolled back to none, or published so).",
        )
    return Selection(published, inferred)
