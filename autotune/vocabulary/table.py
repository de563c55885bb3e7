"""Routes and routing tables: the decision, its range, and how a look-up answers."""

from __future__ import annotations

import bisect
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from autotune.vocabulary.candidate import BackendName, Candidate
from autotune.vocabulary.canonical import content_digest, is_intact, significant
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.measurement import ROUTING_PATTERN, Checkpoint, Microseconds
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.text import Text, printable
from autotune.vocabulary.traffic import TrafficProfile

TABLE_SCHEMA = 1
"""Raised when the meaning of a table's fields changes; a reader refuses a schema it does not know."""


_OF_A_LATER_RELEASE = frozenset({"extra_forbidden", "union_tag_invalid", "enum", "literal_error"})
"""pydantic's errors for a field or a name (a backend, a scheme) that this release does not have. Values that
break a rule, such as 0 experts, would break it in any release."""


class Verdict(StrEnum):
    WIN = "win"
    NO_BENEFIT = "no_benefit"


class Miss(StrEnum):
    """Why the answer is `fallback`."""

    UNKNOWN_PROBLEM = "unknown_problem"
    UNKNOWN_GPU = "unknown_gpu"
    BELOW_RANGE = "below_range"
    ABOVE_RANGE = "above_range"
    UNMEASURED = "unmeasured"
    STALE = "stale"
    """A table for this GPU exists, but for other library versions."""
    NONE_PUBLISHED = "none_published"
    """The channel points at "none": somebody published that nothing is to be applied."""
    BROKEN_TABLE = "broken_table"
    UNREACHABLE = "unreachable"
    DISABLED = "disabled"


class Kept(StrEnum):
    """Why a serving process runs vLLM's choice where its table has a winner, or has no table to ask."""

    DECLINED = "declined"
    """The winner cannot run on the weights as vLLM prepared them."""
    REMOVED = "removed"
    """The winner failed its probe, or a call."""
    NOT_TRIED = "not_tried"
    """No call of that size has come before, so the winner has not been probed."""
    NOT_ROUTED = "not_routed"
    """The layer's calls cannot be routed, as the log says."""


def _said(fault: ErrorDetails) -> str:
    return f"{'.'.join(map(str, fault['loc'])) or 'the table'}: {fault['msg']}"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


MAX_TOKENS = 1 << 20
"""A route's largest token count: vLLM schedules far fewer in a step, and readers keep a value for each."""
TokenCount = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Ratio = Annotated[float, Field(ge=1e-12, le=1e12)]
"""Of two times, within the limits of both."""


class Timing(_Frozen):
    """Steady state, microseconds per layer call, over all replays of the final measurements."""

    p50_us: Microseconds
    p95_us: Microseconds


class Speedup(_Frozen):
    """Baseline time over candidate time: median, and the one-sided 95% lower bound."""

    median: Ratio
    low: Ratio


class Alternative(_Frozen):
    """A backend's best candidate at this token count, whether or not it wins; or one that no server runs."""

    candidate: Candidate
    first: TokenCount = Field(description="it holds for the token counts first..last of its route")
    timing: Timing
    speedup: Speedup
    final: bool = Field(description="re-timed in several processes; otherwise screened once")
    evidence: tuple[Text, ...] = Field(min_length=1, description="measurement digests")


class Route(_Frozen):
    """The decision for the token counts `first..last`, measured at `tokens` (== `last`)."""

    first: TokenCount
    last: TokenCount
    tokens: TokenCount
    verdict: Verdict
    winner: Candidate
    baseline: Candidate
    speedup: Speedup | None = Field(description="of the winner; null if the baseline is kept")
    winner_timing: Timing
    baseline_timing: Timing
    evidence: tuple[Text, ...] = Field(min_length=1, description="measurement digests behind the winner")
    alternatives: tuple[Alternative, ...] = Field(default=(), max_length=64)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.first <= self.last == self.tokens:
            raise ValueError(f"range {self.first}..{self.last} does not end at {self.tokens}")
        if any(a.first > self.last for a in self.alternatives):
            raise ValueError(f"an alternative begins after the range's end {self.last}")
        if self.verdict is Verdict.WIN and (self.speedup is None or self.winner == self.baseline):
            raise ValueError("a win needs a speed-up over a baseline that is another candidate")
        if self.verdict is Verdict.NO_BENEFIT and (self.speedup is not None or self.winner != self.baseline):
            raise ValueError("no_benefit keeps the baseline and states no speed-up")
        return self


class Recording(_Frozen):
    """When and where the evidence was made."""

    first: AwareDatetime
    last: AwareDatetime
    driver: Text
    runs: tuple[Text, ...]
    measurements: int = Field(ge=0, le=1 << 40)

    @model_validator(mode="after")
    def _of_this_century(self) -> Self:
        for moment in (self.first, self.last):
            if not 2000 < moment.year < 2100:
                raise ValueError(f"the recording lies in the year {moment.year}")
        return self


class RoutingTable(_Frozen):
    """All routes of one problem in one environment. Immutable; `digest` names its content."""

    schema_version: Literal[1] = 1
    problem: Problem
    environment: Environment
    checkpoint: Checkpoint
    margin: float = Field(gt=0, lt=1)
    routing: str = Field(default="uniform", pattern=ROUTING_PATTERN)
    recording: Recording
    routes: tuple[Route, ...] = Field(min_length=1, max_length=4096)

    @model_validator(mode="after")
    def _sorted_without_overlap(self) -> Self:
        for previous, following in zip(self.routes, self.routes[1:], strict=False):
            if following.first <= previous.last:
                raise ValueError(
                    f"routes ending at {previous.last} and {following.last} overlap or are unsorted"
                )
        return self

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return content_digest(self.content())

    def content(self) -> dict[str, Any]:
        """Plain JSON data, without the digest."""
        return self.model_dump(mode="json")

    def to_json_data(self) -> dict[str, Any]:
        """Plain JSON data with its digest, as files and the service carry it."""
        return {**self.content(), "digest": self.digest}

    @classmethod
    def from_json_data(cls, data: object) -> RoutingTable:
        """Read and check what `to_json_data` made.

        Raises:
            TableError: if it is no table, of another schema, or its digest does not match its content.
        """
        if not isinstance(data, dict):
            raise TableError(
                "A routing table must be a JSON object.", "Export it again with `autotune table export`."
            )
        fields = dict(data)
        stated = fields.pop("digest", None)
        version = fields.get("schema_version")
        if version != TABLE_SCHEMA:
            raise TableError(
                f"This routing table has schema {printable(repr(version), 40)}; "
                f"this release reads {TABLE_SCHEMA}.",
                "Upgrade moe-autotune, or export the table again with this release.",
            )
        try:
            table = cls.model_validate(fields)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            unknown = [fault for fault in faults if fault["type"] in _OF_A_LATER_RELEASE]
            if unknown and is_intact(fields, stated):
                raise TableError(
                    printable(f"The routing table is of a later release, at {_said(unknown[0])}."),
                    "Upgrade moe-autotune, or export the table again with this release.",
                ) from error
            raise TableError(
                printable(f"The routing table is malformed at {_said(faults[0])}."),
                "Export it again with `autotune table export`.",
            ) from error
        try:
            digest = table.digest
        except (ValueError, OverflowError) as error:
            raise TableError(
                printable(f"The routing table holds what no file can: {error}."),
                "Export it again with `autotune table export`.",
            ) from error
        if stated != digest:
            raise TableError(
                f"The routing table's digest {printable(str(stated), 12)} does not match "
                f"its content ({digest[:12]}).",
                "The file was changed or cut; fetch or export it again.",
            )
        return table

    @cached_property
    def _lasts(self) -> list[int]:
        return [route.last for route in self.routes]

    def lookup(self, tokens: int) -> Route | Miss:
        """The route for a token count, or why there is none. Takes microseconds.

        Raises:
            ValueError: if tokens is not positive.
        """
        if tokens < 1:
            raise ValueError(f"tokens must be at least 1, not {tokens}")
        index = bisect.bisect_left(self._lasts, tokens)
        if index == len(self.routes):
            return Miss.ABOVE_RANGE
        route = self.routes[index]
        if tokens >= route.first:
            return route
        return Miss.BELOW_RANGE if index == 0 else Miss.UNMEASURED

    def static_choice(
        self, profile: TrafficProfile, allowed: frozenset[BackendName] | None = None
    ) -> StaticChoice | None:
        """The one backend that minimizes the sum of weight(M) x time(M) over the profile.

        time(M) is the backend's best time at the smallest measured count that is at least M (vLLM pads
        decode steps up) and at most 2M; a backend that was not measured at one of them is left out, and so
        is FlashInfer in a table that names no FlashInfer version, since any could answer.
        None if a token count of the profile has no such measured count, or no allowed backend covers it.
        """
        totals: dict[BackendName, float] = {}
        seen: list[dict[BackendName, float]] = []
        for tokens in profile.weights:
            index = bisect.bisect_left(self._lasts, tokens)
            if index == len(self.routes) or self.routes[index].tokens > 2 * tokens:
                return None
            route = self.routes[index]
            times: dict[BackendName, float] = {route.baseline.backend: route.baseline_timing.p50_us}
            candidates = [
                (a.candidate.backend, a.timing.p50_us)
                for a in route.alternatives
                if a.candidate.servable
                and (a.candidate.backend != "flashinfer_cutlass" or self.environment.flashinfer)
            ]
            candidates.append((route.winner.backend, route.winner_timing.p50_us))
            for backend, time_us in candidates:
                times[backend] = min(time_us, times.get(backend, time_us))
            seen.append(times)
        for backend in set.intersection(*(set(times) for times in seen)):
            if allowed is None or backend in allowed:
                totals[backend] = significant(
                    sum(
                        weight * times[backend]
                        for weight, times in zip(profile.weights.values(), seen, strict=True)
                    )
                )
        if not totals:
            return None
        best = min(totals, key=lambda backend: (totals[backend], backend))
        return StaticChoice(profile=profile.name, backend=best, total_us=dict(sorted(totals.items())))


class StaticChoice(_Frozen):
    """The best single backend of a deployment, with every backend's weighted time (microseconds)."""

    profile: str
    backend: BackendName
    total_us: dict[BackendName, float]


def table_label(table: RoutingTable, revision: int | None) -> str:
    """A table as logs name it. One without a revision is a file's, which no channel points at."""
    which = "unpublished table" if revision is None else f"table revision {revision}"
    return f"{which} (digest {table.digest[:12]})"


class PublishedTable(_Frozen):
    """A table as a source hands it out: `table` is null where the channel points at "none"."""

    problem: Problem
    environment: Environment
    checkpoint: Checkpoint
    revision: int | None = Field(
        default=None, ge=1, lt=1 << 63, description="null for a file that was never published"
    )
    channel: str | None = None
    table: RoutingTable | None
    broken: str = Field(default="", description="why the table is null although one was published")


class Decision(_Frozen):
    """The answer to one look-up, the same in the client, over HTTP and on the command line."""

    answer: Literal["route", "fallback"]
    reason: Miss | None = None
    detail: str = ""
    """One sentence for a person: what was found or why not, and what to do."""
    problem: Problem
    tokens: int
    environment: Environment | None = Field(default=None, description="of the table that answered")
    source: str = Field(default="", description="where the table came from: a path, a URL, `starter`")
    inferred: bool = Field(
        default=False, description="a stale table, applied because compatible was asked for"
    )
    revision: int | None = None
    channel: str | None = None
    table_digest: str | None = None
    route: Route | None = None
    static: StaticChoice | None = Field(default=None, description="only if a traffic profile was asked for")

    @property
    def candidate(self) -> Candidate | None:
        """What to run; None means: whatever vLLM would run unaided."""
        return self.route.winner if self.route and self.route.verdict is Verdict.WIN else None
