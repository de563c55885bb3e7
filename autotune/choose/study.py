"""One Optuna study per token count: proposes in batches, learns, and is rebuilt from the database."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from autotune.choose.space import Space
from autotune.kernels.specs import fits
from autotune.vocabulary.candidate import Candidate
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.measurement import Measurement, Status

optuna.logging.set_verbosity(optuna.logging.ERROR)
STARTUP_TRIALS = 12
MAX_DRAWS = 12
"""Draws per proposal before random ones: TPE may insist on a corner that is used up or infeasible."""
RANDOM_DRAWS = 100
"""Random draws per proposal before giving up on finding one that is new and feasible."""


class TokenStudy:
    """The search at one token count.

    Args:
        recorded: when replaying, the only candidates that may be proposed.
    """

    def __init__(
        self, space: Space, environment: Environment, seed: int, recorded: Sequence[Candidate] | None = None
    ) -> None:
        self.space = space
        self.environment = environment
        self.results: dict[str, Measurement] = {}
        """Screened so far, by candidate digest."""
        self.exhausted = False
        self._proposed: set[str] = set()
        self._recorded = None if recorded is None else {c.digest: c for c in recorded}
        self._sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=True
        )
        self._random = optuna.samplers.RandomSampler(seed=seed)
        self._study = optuna.create_study(sampler=self._sampler, direction="minimize")
        self._pending: dict[str, optuna.Trial] = {}

    def room(self, trials: int) -> int:
        """How many more may be proposed within `trials` in all."""
        most = trials if self._recorded is None else min(trials, len(self._recorded))
        return max(0, most - len(self.results))

    def propose(self, count: int, seeds: Sequence[Candidate] = ()) -> list[Candidate]:
        """Up to `count` candidates that were not proposed before; seeds first.

        What cannot fit the GPU is pruned before anything is compiled: a tile that holds far too much may
        keep the compiler busy for minutes.
        """
        batch: list[Candidate] = []
        for candidate in seeds:
            feasible = self._recorded is not None or self._fits(candidate)
            if len(batch) < count and feasible and self._admit(candidate):
                batch.append(candidate)
        while len(batch) < count and not self.exhausted:
            drawn = self._draw()
            if drawn is None:
                self.exhausted = True
            else:
                batch.append(drawn)
        return batch

    def _fits(self, candidate: Candidate) -> bool:
        return fits(candidate, self.space.problem, self.environment).ok

    def _admit(self, candidate: Candidate) -> bool:
        known = self._recorded is not None and candidate.digest not in self._recorded
        if candidate.digest in self._proposed or known:
            return False
        self._proposed.add(candidate.digest)
        return True

    def _draw(self) -> Candidate | None:
        for attempt in range(MAX_DRAWS + RANDOM_DRAWS):
            self._study.sampler = self._sampler if attempt < MAX_DRAWS else self._random
            if self._recorded is not None:
                left = [digest for digest in self._recorded if digest not in self._proposed]
                if not left:
                    return None
                trial = self._study.ask({"candidate": CategoricalDistribution(tuple(self._recorded))})
                candidate = self._recorded[trial.params["candidate"]]
                if candidate.digest in self._proposed:
                    # Every recorded candidate has its turn; Optuna decides the order.
                    candidate = self._recorded[left[0]]
                    self._study.tell(trial, state=TrialState.FAIL)
                else:
                    self._pending[candidate.digest] = trial
                self._proposed.add(candidate.digest)
                return candidate
            if not self.space.tunable:
                return None
            trial = self._study.ask()
            candidate = self.space.suggest(trial)
            if candidate.digest in self.results:
                self._finish(trial, self.results[candidate.digest])
                continue
            if not self._fits(candidate) or not self._admit(candidate):
                self._study.tell(trial, state=TrialState.FAIL)
                continue
            self._pending[candidate.digest] = trial
            return candidate
        return None

    def tell(self, measurement: Measurement) -> None:
        """Learn from a screening measurement, proposed here or found in the database."""
        digest = measurement.candidate.digest
        self.results[digest] = measurement
        self._proposed.add(digest)
        trial = self._pending.pop(digest, None)
        if trial is not None:
            self._finish(trial, measurement)
            return
        placed = self.space.parameters(measurement.candidate) if self._recorded is None else None
        if placed is not None:
            params, distributions = placed
            value = relative_time(measurement)
            self._study.add_trial(
                create_trial(
                    state=TrialState.COMPLETE if value is not None else TrialState.FAIL,
                    value=value,
                    params=params,
                    distributions=distributions,
                )
            )

    def _finish(self, trial: optuna.Trial, measurement: Measurement) -> None:
        value = relative_time(measurement)
        if value is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, value)

    def ranking(self) -> list[Measurement]:
        """Correct ones, fastest first."""
        timed = [(value, m) for m in self.results.values() if (value := relative_time(m)) is not None]
        return [m for _, m in sorted(timed, key=lambda pair: (pair[0], pair[1].candidate.digest))]

    @property
    def best(self) -> Measurement | None:
        ranking = self.ranking()
        return ranking[0] if ranking else None


def relative_time(measurement: Measurement) -> float | None:
    """Candidate time over baseline time, median of the blocks; None without times."""
    if measurement.status is not Status.OK or measurement.times is None:
        return None
    times = measurement.times
    return statistics.median(c / b for c, b in zip(times.candidate_us, times.baseline_us, strict=True))
