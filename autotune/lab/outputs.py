"""Greedy outputs of one arm against another's: tokens that differ, and how far the logits are apart."""

from __future__ import annotations

import http.client
import json
import math
import random
import statistics
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.lab.hosting import Host
from autotune.lab.machine import Place
from autotune.lab.plan import Arm, Plan
from autotune.lab.results import Folder, write_json
from autotune.vocabulary.errors import AutotuneError, UsageError
from autotune.vocabulary.files import read_bytes
from autotune.vocabulary.out_folder import out_folder

VOCABULARY = 151936
TOLERANCE = 0.1
"""Largest difference of a chosen token's log probability, nats. FP8 backends sum in other orders, and each
of 48 layers quantizes what the one before it gave; what a change of backend does was not measured."""


@dataclass(frozen=True)
class Asked:
    """What `compare_outputs` asks every arm.

    Args:
        prompts: how many.
        shortest, longest: their words, one token each.
        tokens: new tokens of each.
        tolerance: largest difference of a chosen token's log probability, nats.

    Raises:
        UsageError: for a count below 1, a range without words, or a tolerance that nothing or all would pass.
    """

    prompts: int = 16
    shortest: int = 32
    longest: int = 1024
    tokens: int = 64
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        if min(self.prompts, self.shortest, self.tokens) < 1:
            raise UsageError("Prompts, their words and new tokens are at least one each.", "See --help.")
        if self.shortest > self.longest:
            raise UsageError(f"--shortest {self.shortest} is above --longest {self.longest}.", "See --help.")
        if not 0 <= self.tolerance < math.inf:
            raise UsageError(
                f"--tolerance {self.tolerance:g} is no number of nats from 0 on.", "Such as 0.1, the default."
            )

    def of_servers(self) -> dict[str, int]:
        """What decides on the answers: all but the tolerance."""
        return {name: value for name, value in asdict(self).items() if name != "tolerance"}


@dataclass(frozen=True)
class Greedy:
    """One completion.

    Args:
        tokens: what was generated.
        logprobs: the log probability of each, nats.
        read: of each token of the prompt but the first, its log probability after those before it, nats.
        likeliest: at the same places, the most probable token, by its number.
    """

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    read: tuple[float, ...] = ()
    likeliest: tuple[str, ...] = ()


class Completions(BaseModel):
    """What one arm answered.

    Args:
        plan: digest of the plan that it is an arm of.
        model: the folder that was served.
        asked: what decides on the answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: str
    arm: str
    model: str
    asked: dict[str, int]
    place: Place
    completions: tuple[Greedy, ...]


@dataclass(frozen=True)
class Difference:
    """Two lists of completions of the same prompts.

    Args:
        prompts, tokens: how many were compared.
        differing_prompts: prompts whose completions differ.
        differing_tokens: positions at which the tokens differ; after the first one of a prompt the two
            servers read different texts, so the others say little.
        first: the earliest position at which a prompt's tokens differ; None if none does.
        alike: tokens before the first differing one of their prompt.
        largest: largest difference of log probability among these.
        tolerance: what `largest` may be.
        read: places of the prompts, which both servers read alike.
        read_median, read_p99, read_largest: of the differences between the prompts' log probabilities there,
            nats.
        read_other: places after which another token is the most probable one.
    """

    arm: str
    against: str
    prompts: int
    tokens: int
    differing_prompts: int
    differing_tokens: int
    first: int | None
    alike: int
    largest: float
    tolerance: float
    read: int
    read_median: float
    read_p99: float
    read_largest: float
    read_other: int

    @property
    def within(self) -> bool:
        """Whether there was something to compare, and it is within the tolerance."""
        return self.alike > 0 and self.largest <= self.tolerance

    def to_json_data(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {**asdict(self), "within": self.within}

    def __str__(self) -> str:
        where = f", first at position {self.first}" if self.first is not None else ""
        verdict = "within" if self.largest <= self.tolerance else "beyond"
        told = f"largest difference of log probability before that {self.largest:.4g} nats, {verdict} the "
        told += f"tolerance of {self.tolerance:g}"
        if not self.alike:
            told = "no token was generated by both, so nothing of them can be compared"
        return (
            f"{self.arm} against {self.against}: {self.differing_tokens} of {self.tokens} tokens differ, in "
            f"{self.differing_prompts} of {self.prompts} prompts{where}; {told}"
            f". The prompts' {self.read} tokens, which both read: differences of {self.read_median:.4g} nats "
            f"(median), {self.read_p99:.4g} (99 of 100 are below) and {self.read_largest:.4g} (largest); "
            f"after {self.read_other} another token is the likeliest"
        )


def make_prompts(count: int, shortest: int, longest: int, seed: int) -> list[str]:
    """Prompts of words that the model's tokenizer reads as one token each."""
    generator = random.Random(seed)
    return [
        " ".join(
            f"w{generator.randrange(2, VOCABULARY)}" for _ in range(generator.randint(shortest, longest))
        )
        for _ in range(count)
    ]


def request_of(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """What a server's `/v1/completions` is asked."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "logprobs": 1,
        "prompt_logprobs": 1,
        "ignore_eos": True,
    }


def complete(address: str, model: str, prompt: str, tokens: int, limit_s: float) -> Greedy:
    """One greedy completion with log probabilities, its own and the prompt's.

    Raises:
        AutotuneError: if the server refuses or answers something else, such as fewer tokens.
    """
    body = json.dumps(request_of(model, prompt, tokens)).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=limit_s) as answer:
            choice = json.load(answer)["choices"][0]
            found = choice["logprobs"]
            read, likeliest = _read(choice["prompt_logprobs"])
            greedy = Greedy(
                tuple(found["tokens"]), tuple(map(float, found["token_logprobs"])), read, likeliest
            )
            # NaN is no larger than anything: it would pass every tolerance.
            if not all(map(math.isfinite, (*greedy.logprobs, *greedy.read))):
                raise ValueError("log probabilities that are not finite")
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        raise AutotuneError(f"{address} gave no completion: {error}.", "Read the server's log.") from error
    if not greedy.read:
        raise AutotuneError(f"{address} told nothing of the prompt's tokens.", "Read the server's log.")
    if len(greedy.tokens) != tokens or len(greedy.logprobs) != tokens:
        raise AutotuneError(
            f"{len(greedy.tokens)} of {tokens} tokens came back from {address}.", "Read the server's log."
        )
    return greedy


def _read(places: Sequence[dict[str, dict[str, Any]] | None]) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """vLLM's `prompt_logprobs`: at each place but the first the prompt's own token and the likeliest, which
    may be one.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: for anything else.
    """
    told = [place for place in places[1:] if place is not None]
    own = [max(place.values(), key=lambda one: int(one["rank"])) for place in told]
    likeliest = [min(place, key=lambda token: int(place[token]["rank"])) for place in told]
    return tuple(float(one["logprob"]) for one in own), tuple(likeliest)


def compare(
    arm: str, against: str, found: Sequence[Greedy], reference: Sequence[Greedy], tolerance: float
) -> Difference:
    """Compare completions prompt by prompt."""
    firsts, differing, alike, largest = [], 0, 0, 0.0
    for mine, theirs in zip(found, reference, strict=True):
        same = [a == b for a, b in zip(mine.tokens, theirs.tokens, strict=True)]
        differing += same.count(False)
        first = same.index(False) if False in same else len(same)
        if first < len(same):
            firsts.append(first)
        alike += first
        apart = [abs(a - b) for a, b in zip(mine.logprobs[:first], theirs.logprobs[:first], strict=True)]
        largest = max([largest, *apart])
    readings = [
        (abs(a - b), x != y)
        for mine, theirs in zip(found, reference, strict=True)
        for a, b, x, y in zip(mine.read, theirs.read, mine.likeliest, theirs.likeliest, strict=True)
    ]
    distances = sorted(distance for distance, _ in readings) or [0.0]
    return Difference(
        arm=arm,
        against=against,
        prompts=len(found),
        tokens=sum(len(greedy.tokens) for greedy in found),
        differing_prompts=len(firsts),
        differing_tokens=differing,
        first=min(firsts, default=None),
        alike=alike,
        largest=largest,
        tolerance=tolerance,
        read=len(readings),
        read_median=statistics.median(distances),
        read_p99=distances[int(0.99 * (len(distances) - 1))],
        read_largest=distances[-1],
        read_other=sum(other for _, other in readings),
    )


def collect(
    host: Host, arms: Sequence[Arm], prompts: Sequence[str], tokens: int, tell: Callable[[str], None]
) -> Iterator[tuple[Arm, list[Greedy]]]:
    """Completions of every arm, one server after the other, one request at a time."""
    for arm in arms:
        hosted = host.ready(arm)
        completions = []
        for prompt in prompts:
            hosted.server.check()
            completions.append(complete(hosted.server.address, str(host.model), prompt, tokens, 600.0))
        tell(f"{arm.name}: {len(completions)} completions")
        host.stop(arm)
        yield arm, completions


def kept_completions(host: Host, plan: Plan, folder: Folder, asked: Asked) -> dict[str, list[Greedy]]:
    """Completions that an earlier comparison has left, by arm: all, of wherever, or those of this machine."""
    found: dict[str, Completions] = {}
    for arm in plan.arms:
        try:
            read = Completions.model_validate_json(read_bytes(folder.completions(arm)))
        except (OSError, ValidationError):
            continue
        same = (plan.digest, arm.name, str(host.model), asked.of_servers())
        if (read.plan, read.arm, read.model, read.asked) == same:
            found[arm.name] = read
    places = [read.place for read in found.values()]
    whole = len(found) == len(plan.arms) and all(place == places[0] for place in places)
    return {n: list(read.completions) for n, read in found.items() if whole or read.place == host.place}


def compare_outputs(
    host: Host,
    plan: Plan,
    folder: Folder,
    asked: Asked,
    tell: Callable[[str], None],
    *,
    at_once: bool = False,
) -> list[Difference]:
    """Ask all arms, compare each with its reference, and keep what came out in the folder's `outputs.json`.

    Args:
        at_once: start the servers side by side; they are asked one after another all the same.

    Each arm's completions are kept in `completions/` as soon as they are there, and not asked for again.

    Raises:
        AutotuneError: if a server fails; the completions of the arms before it stay.
    """
    prompts = make_prompts(asked.prompts, asked.shortest, asked.longest, plan.seed)
    found = kept_completions(host, plan, folder, asked)
    if found:
        tell(f"{', '.join(found)}: the completions are there ({folder.completions_folder})")
    missing = [arm for arm in plan.arms if arm.name not in found]
    if at_once:
        host.ready_at_once(missing)
    for arm, completions in collect(host, missing, prompts, asked.tokens, tell):
        found[arm.name] = completions
        kept = Completions(
            plan=plan.digest, arm=arm.name, model=str(host.model), asked=asked.of_servers(),
            place=host.place, completions=tuple(completions),
        )  # fmt: skip
        out_folder(folder.completions_folder)
        write_json(folder.completions(arm), kept.model_dump(mode="json"))
    compared = [
        compare(arm.name, arm.against, found[arm.name], found[arm.against], asked.tolerance)
        for arm in plan.arms
        if arm.against is not None
    ]
    write_json(folder.outputs, [difference.to_json_data() for difference in compared])
    return compared
