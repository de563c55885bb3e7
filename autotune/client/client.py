"""Answers look-ups in memory, from one snapshot of routing tables."""

from __future__ import annotations

from autotune.client.snapshot import Snapshot
from autotune.client.sources import resolve
from autotune.vocabulary.candidate import BackendName
from autotune.vocabulary.decide import Query, Selection, decide_selected, select_table
from autotune.vocabulary.environment import Environment, gpu_name
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import Decision, Miss
from autotune.vocabulary.traffic import TrafficProfile

_REMEMBERED = 65_536
"""Decisions kept in memory: a table answers up to 16,384 counts for each of a few layers."""


class RoutingClient:
    """Look-ups for one process.

    The source is read when first needed, within `settings.timeout_s` seconds, and again on `refresh`.
    Nothing here raises for a source that is missing, slow or broken: the answer is then a fallback that
    names the reason.

    Args:
        settings: None reads `AUTOTUNE_*` from the process environment.
        environment: the asker's; None answers as for a person, from the newest table on record.
        gpu: vLLM's device name or an alias such as `h200`, where there is no environment.
        snapshot: decide with these tables instead of reading a source.

    Raises:
        UsageError: if an `AUTOTUNE_*` variable does not fit.
        UnknownNameError: if `gpu` is no alias and no device name.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        environment: Environment | None = None,
        gpu: str | None = None,
        *,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.settings = settings if settings is not None else Settings.from_env()
        self.environment = environment
        self.gpu = environment.gpu if environment else gpu_name(gpu) if gpu is not None else None
        self._snapshot = snapshot
        self._selections: dict[tuple[Problem, Checkpoint | None], Selection] = {}
        self._decisions: dict[tuple[Problem, int, Checkpoint | None, int | None], Decision] = {}

    @property
    def snapshot(self) -> Snapshot:
        """The tables that decide; read from the source on first use."""
        if self._snapshot is None:
            self._snapshot = resolve(self.settings, self.gpu)
        return self._snapshot

    def refresh(self) -> Snapshot:
        """Read the source again and decide with what it answers from now on."""
        self._snapshot = resolve(self.settings, self.gpu)
        self._selections.clear()
        self._decisions.clear()
        return self._snapshot

    def select(self, problem: Problem, checkpoint: Checkpoint | None = None) -> Selection:
        """The table for a problem, or why there is none."""
        key = (problem, checkpoint)
        if key not in self._selections:
            self._selections[key] = self._select(problem, checkpoint)
        return self._selections[key]

    def route(
        self,
        problem: Problem,
        tokens: int,
        *,
        checkpoint: Checkpoint | None = None,
        concurrency: int | None = None,
        allowed: frozenset[BackendName] | None = None,
    ) -> Decision:
        """Answer one look-up. A repeated one takes about a microsecond.

        Args:
            tokens: rows entering the layer, at least 1.
            checkpoint: the checkpoint's format; None takes any, `fp8` first.
            concurrency: also answer the static choice for this traffic, among `allowed` backends.

        Raises:
            ValueError: if tokens or concurrency is not positive.
        """
        key = (problem, tokens, checkpoint, concurrency)
        if allowed is None and key in self._decisions:
            return self._decisions[key]
        if tokens < 1:
            raise ValueError(f"tokens must be at least 1, not {tokens}")
        profile = TrafficProfile.concurrency(concurrency) if concurrency is not None else None
        query = self._query(problem, checkpoint, profile, allowed)
        decision = decide_selected(self.select(problem, checkpoint), query, tokens, self.snapshot.source)
        if allowed is None and len(self._decisions) < _REMEMBERED:
            self._decisions[key] = decision
        return decision

    def _query(
        self,
        problem: Problem,
        checkpoint: Checkpoint | None,
        profile: TrafficProfile | None = None,
        allowed: frozenset[BackendName] | None = None,
    ) -> Query:
        return Query(
            problem=problem,
            environment=self.environment,
            gpu=self.gpu,
            checkpoint=checkpoint,
            compatible=self.settings.match == "compatible",
            profile=profile,
            allowed=allowed,
        )

    def _select(self, problem: Problem, checkpoint: Checkpoint | None) -> Selection:
        if self.settings.mode == "off":
            return Selection(None, miss=Miss.DISABLED, detail="AUTOTUNE_MODE=off: nothing is applied.")
        snapshot = self.snapshot
        if snapshot.miss is not None:
            return Selection(None, miss=snapshot.miss, detail=snapshot.why)
        selection = select_table(snapshot.tables, self._query(problem, checkpoint))
        if selection.miss is Miss.UNKNOWN_PROBLEM and snapshot.reasons:
            # The table that is missing may be among the broken ones: say so instead of "unknown".
            detail = f"{selection.detail} Left out: {snapshot.why}"
            return Selection(None, miss=selection.miss, detail=detail)
        return selection
