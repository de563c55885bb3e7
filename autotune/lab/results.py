"""Results on disk: one file for each measurement, written whole or not at all."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from autotune.lab.machine import Place
from autotune.lab.plan import Arm, Plan, Point
from autotune.vocabulary.errors import AutotuneError, BrokenFileError, ConflictError, UsageError
from autotune.vocabulary.files import read_bytes, read_given, reason
from autotune.vocabulary.out_folder import out_folder

LEAST, MOST = 1e-4, 1e7
"""Milliseconds or tokens a second that can be: no clock tells less, and no request takes three hours. Of two
such figures `autotune.choose.statistics` also takes the ratio."""
_MAY_BE_LESS = re.compile("itl|tpot")
"""The client tells 0 between tokens that came together."""
_COMPARED = re.compile("_ms$|throughput$")


def no_figures(figures: Mapping[str, float]) -> list[str]:
    """Those of the figures that nothing can have measured, such as NaN or no throughput: `name is value`."""
    return [f"{name} is {value:g}" for name, value in figures.items() if not _can_be(name, value)]


def _can_be(name: str, value: float) -> bool:
    if not _COMPARED.search(name):  # seconds, and counts
        return math.isfinite(value) and value > 0
    return (0 if _MAY_BE_LESS.search(name) else LEAST) <= value <= MOST


def _checked(figures: dict[str, float]) -> dict[str, float]:
    if wrong := no_figures(figures):
        raise ValueError(", ".join(wrong))
    return figures


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Figures = Annotated[dict[str, Annotated[float, Field(strict=True)]], AfterValidator(_checked)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Start(_Frozen):
    """One start of a server.

    Args:
        alone: no other server of the experiment was resident; only then `ready_s` is a start-up time.
        cache: what its compile caches held: `empty` or `kept` ones of an earlier start.
        environment: the variables of vLLM, Triton and this project that it got.
        memory_mib: GPU memory that its processes hold when it is ready, by nvidia-smi; where that does not
            tell processes apart, what its start added to all in use; None where that is unknown, too.
        memory: GiB as vLLM logs them.
    """

    arm: str
    log: str
    place: Place
    ready_s: Number
    alone: bool
    cache: str
    command: tuple[str, ...]
    environment: dict[str, str]
    memory_mib: int | None
    memory: dict[str, Number]
    lines: tuple[str, ...]


class Result(_Frozen):
    """One measurement: one arm at one point in one round.

    Args:
        plan: digest of the plan that it belongs to.
        start: log of the server's start, which names its `Start`.
        figures: of `vllm bench serve`; tokens a second and milliseconds, each from `LEAST` to `MOST`,
            only those between tokens from 0; `duration` in seconds, and counts.
        compiles: kernels compiled while it was measured.
        compiles_since_ready: how many this server had compiled by the end of it.
        again: with cold caches, the figures of the same load a second time on the same server; else empty.
        compiles_again: kernels compiled then.
    """

    plan: str
    round: int
    point: str
    arm: str
    place: Place
    start: str
    figures: Figures
    compiles: tuple[str, ...]
    compiles_since_ready: int
    lines: tuple[str, ...]
    again: Figures = {}
    compiles_again: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """All arms of one round and point."""

    round: int
    point: Point
    results: dict[str, Result]


class Folder:
    """The folder of one experiment: `plan.json`, `results/`, `starts/`, `logs/`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def outputs(self) -> Path:
        """Where the comparison of greedy outputs is kept, once it was made."""
        return self.path / "outputs.json"

    @property
    def completions_folder(self) -> Path:
        """Where the arms' greedy completions are kept."""
        return self.path / "completions"

    def completions(self, arm: Arm) -> Path:
        """The file of one arm's greedy completions."""
        return self.completions_folder / f"{arm.name}.json"

    def open(self, plan: Plan) -> None:
        """Take the folder for a plan.

        Raises:
            ConflictError: if it holds another experiment.
            AutotuneError: if nothing can be written there.
        """
        for name in ("results", "starts", "logs", "cache", "site"):
            out_folder(self.path / name)
        if (self.path / "plan.json").exists() and self.plan().digest != plan.digest:
            raise ConflictError(
                f"{self.path} holds an experiment with another plan.",
                "Give the options that it was started with, or another --out.",
            )
        _write(self.path / "plan.json", plan.model_dump_json(indent=1))

    def plan(self) -> Plan:
        """The plan that the folder holds.

        Raises:
            UsageError: if there is none that can be read.
            BrokenFileError: if what is there is no plan.
        """
        file = self.path / "plan.json"
        new = "Name the folder of an experiment, or start one: `autotune lab run --out FOLDER`."
        try:
            there = file.exists()
        except OSError:  # such as a folder that may not be entered
            there = True
        if not there:
            raise UsageError(f"{self.path} holds no experiment.", new)
        return parse_plan(read_given(file, new), file, "Start the experiment in a new folder.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out, and tell in words which file of the work could not be read or written.

        Raises:
            ConflictError: if another run has the folder.
            AutotuneError: if nothing can be written there, or a file fails meanwhile.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("w")
        except OSError as error:
            raise AutotuneError(
                f"{self.path} cannot be written: {reason(error)}.", "Name a folder that you may write."
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConflictError(
                    f"Another run works in {self.path}.", "Wait for it, or give another --out."
                ) from error
            with told_files():
                yield

    def _file(self, round_: int, point: Point, arm: Arm) -> Path:
        return self.path / "results" / f"r{round_}-{point.name}-{arm.name}.json"

    def save(self, result: Result, point: Point, arm: Arm) -> None:
        """Store a measurement, in the place of an earlier one of the same round, point and arm.

        Raises:
            AutotuneError: if it cannot be written.
        """
        _write(self._file(result.round, point, arm), result.model_dump_json(indent=1))

    def result(self, plan: Plan, round_: int, point: Point, arm: Arm) -> Result | None:
        """A measurement of this plan; None if there is none, or none that can be read."""
        try:
            found = Result.model_validate_json(read_bytes(self._file(round_, point, arm)))
        except (OSError, ValidationError):
            return None
        where = (found.plan, found.round, found.point, found.arm)
        return found if where == (plan.digest, round_, point.name, arm.name) else None

    def unusable(self, plan: Plan) -> list[str]:
        """What stands in a result's place and counts as not measured.

        It cannot be read, holds figures that are none, or tells of another place.
        """
        return [
            str(file)
            for r, point, arm in _places(plan)
            if os.path.lexists(file := self._file(r, point, arm)) and self.result(plan, r, point, arm) is None
        ]

    def require_room(self, plan: Plan) -> None:
        """Make sure, before anything is measured, that every measurement can be stored.

        Raises:
            ConflictError: if a folder stands in a file's place.
        """
        files = [self.outputs, *(self._file(*place) for place in _places(plan))]
        for file in (*files, *map(_partial, files)):
            if file.is_dir() and not file.is_symlink():
                raise ConflictError(
                    f"{file} is a folder, where a file of the experiment goes.",
                    "Move it away, or give another --out.",
                )

    def results(self, plan: Plan, round_: int, point: Point) -> dict[str, Result]:
        """What there is of one pair, by arm."""
        found = {arm.name: self.result(plan, round_, point, arm) for arm in plan.arms}
        return {name: result for name, result in found.items() if result is not None}

    def pair(self, plan: Plan, round_: int, point: Point) -> Pair | None:
        """A whole pair: every arm, all at one place; else None."""
        results = self.results(plan, round_, point)
        places = [result.place for result in results.values()]
        if len(results) < len(plan.arms) or any(place != places[0] for place in places):
            return None
        return Pair(round_, point, results)

    def pairs(self, plan: Plan) -> list[Pair]:
        """All whole pairs, by round and point."""
        found = [self.pair(plan, round_, point) for round_ in range(plan.rounds) for point in plan.points]
        return [pair for pair in found if pair is not None]

    def metrics_of(self, log: str) -> Path:
        """Where the plugin's samples of the server with that log are kept."""
        return (self.path / "starts" / log).with_suffix(".metrics")

    def new_log(self, arm: str) -> Path:
        """A log file's name that no start has had, whatever was removed of those before."""
        logs, starts = self.path / "logs", self.path / "starts"
        names = (f"{arm}-{number}" for number in itertools.count(1))
        return next(
            log
            for name in names
            if not os.path.lexists(log := logs / f"{name}.log")
            and not os.path.lexists(starts / f"{name}.json")
        )

    def save_start(self, start: Start) -> None:
        """Store a start under its log's name.

        Raises:
            AutotuneError: if it cannot be written.
        """
        _write((self.path / "starts" / start.log).with_suffix(".json"), start.model_dump_json(indent=1))

    def starts(self) -> list[Start]:
        """Every start that got ready, by arm and number.

        Raises:
            BrokenFileError: if one of them is none.
        """
        return [_start(file) for file in sorted((self.path / "starts").glob("*.json"))]


def _places(plan: Plan) -> Iterator[tuple[int, Point, Arm]]:
    return ((r, point, arm) for r in range(plan.rounds) for point in plan.points for arm in plan.arms)


@contextmanager
def told_files() -> Iterator[None]:
    """The boundary at which a file that cannot be read or written becomes an error that names it.

    Raises:
        AutotuneError: for it.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise  # of no file: standard output, which the program tells of itself
        raise AutotuneError(
            f"{error.filename2 or error.filename} cannot be read or written: {reason(error)}.",
            "Move away what is in its place, or give a folder that you may read and write.",
        ) from error


def parse_plan(content: bytes, file: Path, hint: str) -> Plan:
    """The plan that a file holds.

    Raises:
        BrokenFileError: if it is none.
    """
    try:
        return Plan.model_validate_json(content)
    except ValidationError as error:
        raise BrokenFileError(f"{file} is no plan: {first_fault(error)}.", hint) from error


def first_fault(error: ValidationError) -> str:
    """The first thing that does not fit, and where."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def _start(file: Path) -> Start:
    try:
        return Start.model_validate_json(read_bytes(file))
    except (OSError, ValidationError) as error:
        what = first_fault(error) if isinstance(error, ValidationError) else reason(error)
        raise BrokenFileError(
            f"{file} is no record of a start: {what}.",
            "Restore it from a copy, or remove it: its start-up time is then left out.",
        ) from error


def write_json(file: Path, data: object) -> None:
    """Write a JSON file whole or not at all.

    Raises:
        AutotuneError: if it cannot be written.
    """
    _write(file, json.dumps(data, indent=1))


def _write(file: Path, text: str) -> None:
    partial = _partial(file)
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(text + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except OSError as error:
        raise AutotuneError(
            f"{file} cannot be written: {reason(error)}.",
            "Make room for it, and run the same command again: what is finished stays.",
        ) from error


def _partial(file: Path) -> Path:
    return file.with_name(f".{file.name}.part")
