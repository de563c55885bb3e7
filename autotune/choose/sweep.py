"""A sweep: screen candidates per token count, re-time the finalists in several processes, build the table."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from autotune.choose.ranges import Wanted, range_ends, steps
from autotune.choose.routes import DEFAULT_MARGIN, PROCESSES, build_table, points_of
from autotune.choose.space import Space
from autotune.choose.store import MeasurementStore
from autotune.choose.study import TokenStudy, relative_time
from autotune.kernels.specs import backends_for
from autotune.measure.outcome import PROCESS_ENDED
from autotune.measure.task import Runner, Task
from autotune.vocabulary.candidate import BackendName, Candidate
from autotune.vocabulary.errors import AutotuneError, DatabaseError, NotFoundError, UsageError
from autotune.vocabulary.measurement import Checkpoint, Measurement, Stage, Status, vllm_backends
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import RoutingTable
from autotune.vocabulary.text import counted
from autotune.vocabulary.traffic import DEFAULT_TOKENS

ROUND = 8
"""Proposals per token count and round: enough to keep a compile pool busy, few enough to learn between."""
NEAR = 1.25
"""A backend's best candidate is re-timed only if screening saw it within this factor of the best of all."""
FINALISTS = 3
GIVE_UP_AFTER = 2
"""Token counts at which a candidate may end its process before it is left out at the others."""
SCREEN_SHARE = 0.5
"""Of a time budget, what screening may use; the rest is for the finals, which make the evidence."""


@dataclass(frozen=True)
class SweepPlan:
    """What to sweep.

    Args:
        budget_s: seconds for the whole sweep; screening stops at half of it. None: no limit.
        trials: screened candidates per token count, at most.
        backends: only these are tried, and only they and the baseline stand in the table; None: all.
        run: the name of the run to continue; None starts a new one.
        refine: also measure counts between these where that closes a gap between two routes.
    """

    problem: Problem
    checkpoint: Checkpoint
    tokens: tuple[int, ...] = DEFAULT_TOKENS
    routing: str = "uniform"
    budget_s: float | None = 300.0
    trials: int = 60
    margin: float = DEFAULT_MARGIN
    backends: frozenset[BackendName] | None = None
    seed: int = 0
    run: str | None = None
    refine: bool = False

    def tries(self, candidate: Candidate) -> bool:
        """Whether the plan has a candidate's backend."""
        return self.backends is None or candidate.backend in self.backends


class Progress(Protocol):
    """Where a sweep tells how far it is."""

    def phase(self, name: str, total: int) -> None: ...
    def step(self, tokens: int, trying: str, best: str = "", *, advance: int = 1) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass
class SweepResult:
    """What a sweep made. `table` is None only if no token count could be measured."""

    run: str
    table: RoutingTable | None
    new: int = 0
    known: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    unproven: list[int] = field(default_factory=list)
    """Token counts that were screened but have no final measurement, and so no route."""


class Sweep:
    """Runs a plan. Every measurement is stored as it is made, so a killed sweep loses at most one."""

    def __init__(
        self,
        plan: SweepPlan,
        runner: Runner,
        store: MeasurementStore,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.runner = runner
        self.store = store
        self.progress = progress
        self._clock = clock
        self._start = clock()
        self.environment = runner.machine.environment
        self.run = plan.run or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"
        self.result = SweepResult(self.run, None)
        self._studies: dict[int, TokenStudy] = {}
        self._baselines: dict[int, Candidate] = {}
        self._starts: dict[int, list[Candidate]] = {}
        """What vLLM's Triton backend would run, where the baseline is another backend."""
        self._said: set[str] = set()
        self._done: dict[tuple[int, str, Stage, int], Measurement] = {}

    def execute(self) -> SweepResult:
        """Screen, re-time, build the table.

        Raises:
            UsageError: if the plan names token counts that cannot be had, or backends without evidence.
            NotFoundError: if no final measurement succeeded, or a recording has none.
        """
        self._load()
        self._tell_absent()
        self._find_baselines()
        self._screen()
        self._finals()
        self._ranges()
        self.result.table = self._table()
        return self.result

    def _load(self) -> None:
        plan = self.plan
        if plan.run is None:
            return
        for m in self.store.measurements(
            plan.problem,
            environment=self.environment,
            checkpoint=plan.checkpoint,
            routing=plan.routing,
            run=plan.run,
        ):
            self._remember(m)
        self.progress.note(f"resuming run {plan.run}: {counted(len(self._done), 'measurement')} on record")

    def _tell_absent(self) -> None:
        """Which backends are left out, and what would bring them in.

        A recording's are what they are: it is only told why one that was asked for cannot run the problem.
        """
        recording = bool(self.runner.machine.recording)
        if not recording:
            for reason in self.runner.machine.absent:
                self.progress.note(reason)
        for name, support in backends_for(self.plan.problem, self.environment).items():
            asked = not recording if self.plan.backends is None else name in self.plan.backends
            if not support.ok and asked:
                self.progress.note(f"{name} is left out: {support.reason}")
        if recording:
            return
        if self.environment.vllm is None:
            self.progress.note("without vLLM there is no baseline of its own: fused_triton stands in for it")

    def _find_baselines(self) -> None:
        self.progress.phase("baselines", len(self.plan.tokens))
        absent: dict[str, list[int]] = {}
        for tokens in self.plan.tokens:
            try:
                baseline = self.runner.baseline(self.plan.problem, self.plan.checkpoint, tokens)
            except NotFoundError as error:
                self.result.skipped[tokens] = str(error)
                absent.setdefault(error.hint or str(error), []).append(tokens)
                continue
            space = Space(self.plan.problem, tokens, self.environment, self.plan.backends)
            recorded = self.runner.recorded(self.plan.problem, tokens)
            if recorded is not None and self.plan.backends is not None:
                recorded = [c for c in recorded if self.plan.tries(c)]
            study = TokenStudy(space, self.environment, self.plan.seed + tokens, recorded)
            for (count, _, stage, _), m in self._done.items():
                if count == tokens and stage is Stage.SCREEN:
                    study.tell(m)
            self._baselines[tokens] = baseline
            self._studies[tokens] = study
            if "triton" in space.tunable and baseline.backend != "triton":
                own = self.runner.vllm_triton(self.plan.problem, tokens)
                self._starts[tokens] = [] if own is None else [own]
            who = "vLLM alone" if self.environment.vllm else "in place of vLLM"
            self.progress.step(tokens, f"{who}: {baseline}")
        if not self._studies:
            raise UsageError(
                f"None of the token counts {_listed(self.plan.tokens)} can be measured.", " ".join(absent)
            )
        for why, counts in absent.items():
            self.progress.note(f"left out, as they cannot be measured: {_listed(counts)} tokens. {why}")

    def _screen(self) -> None:
        deadline = None if self.plan.budget_s is None else self._start + SCREEN_SHARE * self.plan.budget_s
        self.progress.phase(
            "screening", sum(study.room(self.plan.trials) for study in self._studies.values())
        )
        first, longest = True, 0.0
        while True:
            begun = self._clock()
            # The first round always runs; another only if it is likely to end in time.
            if not first and deadline is not None and begun + longest > deadline:
                return
            batches = self._propose(first)
            if not batches:
                return
            self._compile([(tokens, c) for tokens, batch in batches.items() for c in batch])
            for tokens, batch in batches.items():
                study = self._studies[tokens]
                hopeful = [c for c in batch if not self._hopeless(c)]
                for m in self._measure(tokens, hopeful, Stage.SCREEN, 0):
                    study.tell(m)
                    self._tell_unsupported(m)
                    self.progress.step(tokens, str(m.candidate), _describe(study.best))
            first, longest = False, max(0.8 * longest, self._clock() - begun)

    def _hopeless(self, candidate: Candidate) -> bool:
        """Whether it ended its process wherever it was tried: each time costs a new process."""
        tried = [
            m
            for (_, digest, stage, _), m in self._done.items()
            if stage is Stage.SCREEN and digest == candidate.digest
        ]
        if len(tried) < GIVE_UP_AFTER or not all(m.reason.startswith(PROCESS_ENDED) for m in tried):
            return False
        self._say(f"{candidate} is left out from here on: {tried[-1].reason} wherever it ran")
        return True

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.progress.note(text)

    def _tell_unsupported(self, m: Measurement) -> None:
        if m.status is Status.UNSUPPORTED:
            self._say(f"{m.candidate.backend} is left out: {m.reason}")

    def _propose(self, first: bool) -> dict[int, list[Candidate]]:
        batches: dict[int, list[Candidate]] = {}
        ordered = list(self._studies)
        for index, tokens in enumerate(ordered):
            study = self._studies[tokens]
            room = min(ROUND + (5 if first else 0), study.room(self.plan.trials))
            if room <= 0 or tokens in self.result.skipped:
                continue
            neighbours = [
                best.candidate
                for other in ordered[max(0, index - 1) : index + 2]
                if other != tokens and (best := self._studies[other].best)
            ]
            starts = self._starts.get(tokens, [])
            seeds = study.space.seeds(self._baselines[tokens], [*starts, *neighbours])
            if first:
                seeds = [*study.space.fixed(), *seeds]
            batch = study.propose(room, seeds)
            if batch:
                batches[tokens] = batch
        return batches

    def _compile(self, pairs: list[tuple[int, Candidate]]) -> None:
        for number, (tokens, candidate) in enumerate(self.runner.compile(self.plan.problem, pairs), 1):
            self.progress.step(tokens, f"compiled {number}/{len(pairs)}: {candidate}", advance=0)

    def _finals(self) -> None:
        wanted = {tokens: self._finalists(study) for tokens, study in self._studies.items()}
        if self.runner.machine.recording:
            # All that was recorded, so that the same recording gives the same table in any database.
            for tokens, batch in wanted.items():
                there = self.runner.recorded(self.plan.problem, tokens, Stage.FINAL) or ()
                batch += [c for c in there if c not in batch and self.plan.tries(c)]
        self._time_finals("finals", wanted)

    def _finalists(self, study: TokenStudy) -> list[Candidate]:
        """The best few, and each backend's best that comes near: a static choice needs its evidence too.

        vLLM's backends need only come near the best of them: a static choice is among those alone.
        """
        ranking = [m for m in study.ranking() if m.candidate.servable]
        chosen: dict[str, Candidate] = {}
        baseline = self._baselines[study.space.tokens]
        allowed = vllm_backends(self.plan.checkpoint)
        times = {m.candidate.digest: relative_time(m) or math.inf for m in ranking}
        of_all = min(times.values(), default=math.inf)
        of_vllm = min(
            (times[m.candidate.digest] for m in ranking if m.candidate.backend in allowed), default=math.inf
        )
        for m in ranking:
            best = of_vllm if m.candidate.backend in allowed else of_all
            near = times[m.candidate.digest] <= NEAR * best < math.inf
            new_backend = near and m.candidate.backend not in {c.backend for c in chosen.values()}
            if (len(chosen) < FINALISTS or new_backend) and m.candidate != baseline:
                chosen[m.candidate.digest] = m.candidate
        return list(chosen.values())

    def _ranges(self) -> None:
        """Time what lets a winner's range reach back to the count before it, until that finds no more.

        What is timed at a range's end may win there, and then needs the count before that. There are only so
        many counts and finalists, so it ends; and as it ends where nothing is missing, a resumed run adds
        nothing.
        """
        while True:
            before = len(self._done), len(self._baselines)
            ends = range_ends(points_of(self._final_evidence()), self.plan.margin)
            # A count may be on record for this run, but not be asked for this time.
            ends = {tokens: batch for tokens, batch in ends.items() if tokens in self._baselines}
            if ends:
                self._time_finals("range ends", ends)
            found = self._steps() if self.plan.refine else {}
            if found:
                self._time_finals("steps between counts", found)
            if (len(self._done), len(self._baselines)) == before:
                return

    def _steps(self) -> Wanted:
        """Counts just above the plan's that close a gap, with what this run still lacks there."""
        found: Wanted = {}
        for tokens, batch in self._step_counts().items():
            if tokens in self.result.skipped:
                continue
            if tokens not in self._baselines:
                try:
                    baseline = self.runner.baseline(self.plan.problem, self.plan.checkpoint, tokens)
                except NotFoundError:
                    continue  # a recording may not have it
                self._baselines[tokens] = baseline
            missing = [c for c in batch if not self._has_finals(tokens, c)]
            if missing:
                found[tokens] = missing
        return found

    def _step_counts(self) -> Wanted:
        plan = self.plan
        if self.runner.machine.recording:
            # All that was recorded, whatever the margin: as with the finals of the plan's own counts.
            above = {tokens + 1 for tokens in plan.tokens} - set(plan.tokens)
            there = {t: self.runner.recorded(plan.problem, t, Stage.FINAL) or () for t in sorted(above)}
            return {t: [c for c in batch if plan.tries(c)] for t, batch in there.items() if batch}
        # Between the plan's counts alone: a count that was added is no reason to add the next one.
        points = [p for p in points_of(self._final_evidence()) if p.tokens in plan.tokens]
        return steps(points, plan.margin)

    def _has_finals(self, tokens: int, candidate: Candidate) -> bool:
        return all(
            (tokens, candidate.digest, Stage.FINAL, process) in self._done for process in range(PROCESSES)
        )

    def _time_finals(self, name: str, wanted: dict[int, list[Candidate]]) -> None:
        self.progress.phase(name, PROCESSES * sum(len(batch) for batch in wanted.values()))
        pairs = [(tokens, c) for tokens, batch in wanted.items() for c in batch]
        self._compile(pairs)
        self.runner.start_processes(PROCESSES)
        for process in range(PROCESSES):
            for tokens, batch in wanted.items():
                for m in self._measure(tokens, batch, Stage.FINAL, process):
                    value = relative_time(m)
                    text = f"{1 / value:.3f}x" if value else m.status.value
                    self.progress.step(tokens, f"{m.candidate}", f"process {process + 1}: {text}")

    def _measure(
        self, tokens: int, candidates: list[Candidate], stage: Stage, process: int
    ) -> Iterable[Measurement]:
        """Measure what this run has not measured yet; store each before it is used."""
        fresh: list[Candidate] = []
        for candidate in candidates:
            there = self._done.get((tokens, candidate.digest, stage, process))
            if there is not None:
                yield there
            else:
                fresh.append(candidate)
        if not fresh or tokens in self.result.skipped:
            return
        task = Task(
            problem=self.plan.problem,
            checkpoint=self.plan.checkpoint,
            tokens=tokens,
            baseline=self._baselines[tokens],
            candidates=tuple(fresh),
            stage=stage,
            run=self.run,
            routing=self.plan.routing,
            process=process,
            # Finals draw inputs of their own: fresh data in every process.
            seed=self.plan.seed + (0 if stage is Stage.SCREEN else 101 + process),
        )
        try:
            for m in self.runner.measure(task):
                if self.store.append(m):
                    self.result.new += 1
                else:
                    self.result.known += 1
                self._remember(m)
                yield m
        except DatabaseError:
            # What cannot be stored is lost: stop here rather than measure on for nothing.
            raise
        except AutotuneError as error:
            self._skip(tokens, str(error))

    def _skip(self, tokens: int, reason: str) -> None:
        self.result.skipped[tokens] = reason
        self.progress.note(f"{counted(tokens, 'token')} left out: {reason}")

    def _remember(self, m: Measurement) -> None:
        self._done[m.tokens, m.candidate.digest, m.stage, m.process] = m

    def _final_evidence(self) -> list[Measurement]:
        return [m for m in self._done.values() if m.stage is Stage.FINAL]

    def _table(self) -> RoutingTable:
        """The table of all evidence on record, this run's and earlier ones', of the plan's backends.

        Raises:
            UsageError: if none of the backends that were asked for has a final measurement.
            NotFoundError: if there is none at all.
        """
        plan = self.plan
        evidence = list(
            self.store.measurements(
                plan.problem, environment=self.environment, checkpoint=plan.checkpoint, routing=plan.routing
            )
        )
        if plan.backends is not None:
            # What was excluded must not come back from the record of an earlier run.
            evidence = [m for m in evidence if plan.tries(m.candidate) or m.candidate == m.baseline]
            if not any(m.stage is Stage.FINAL and plan.tries(m.candidate) for m in evidence):
                raise UsageError(
                    f"There is nothing to choose from for {plan.problem}: no final measurements of "
                    f"{', '.join(sorted(plan.backends))}.",
                    "Name other backends, or leave --backends out for all.",
                )
        points = points_of(evidence)
        if not any(p.finals for p in points):
            raise NotFoundError(
                f"There is no final evidence for {plan.problem} in {self.environment}.", self._way_to_finals()
            )
        self.result.unproven = [p.tokens for p in points if not p.finals]
        return build_table(
            evidence,
            problem=plan.problem,
            environment=self.environment,
            checkpoint=plan.checkpoint,
            margin=plan.margin,
            routing=plan.routing,
        )

    def _way_to_finals(self) -> str:
        if self.runner.machine.recording:
            return (
                "The recording was cut short, or its sweep did not come to its end: fetch it again, or take "
                "another."
            )
        if self.result.skipped:
            return (
                f"Not measured: {_listed(self.result.skipped)} tokens, for the reasons above. Once these are "
                "gone, continue with the same command and --resume."
            )
        return "No candidate passed its final measurements: try more --trials, or other --backends."


MOST_LISTED = 24


def _listed(counts: Iterable[int]) -> str:
    every = list(map(str, counts))
    if len(every) <= MOST_LISTED:
        return ", ".join(every)
    few = MOST_LISTED // 2
    return f"{', '.join(every[:few])} and {len(every) - few} more"


def _describe(best: Measurement | None) -> str:
    if best is None:
        return ""
    value = relative_time(best)
    return f"{1 / value:.3f}x {best.candidate}" if value else ""
