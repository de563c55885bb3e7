"""From the options of `autotune lab run` to a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from autotune.lab.arms import named_arms
from autotune.lab.hosting import VLLM_SERVE
from autotune.lab.model import MODEL_NAMES
from autotune.lab.plan import Arm, Plan, Point
from autotune.lab.results import first_fault, parse_plan
from autotune.vocabulary.errors import UnknownNameError, UsageError
from autotune.vocabulary.files import read_given, require_file
from autotune.vocabulary.problem import Scheme


def starter_table(scheme: str) -> Path:
    """The starter table of the H200 for a scheme.

    Raises:
        UnknownNameError: if there is none.
    """
    name = MODEL_NAMES[_scheme(scheme)]
    return Path(str(resources.files("autotune") / "data" / "tables" / f"nvidia_h200-{name}.json"))


def _scheme(text: str) -> Scheme:
    if text not in {str(known) for known in MODEL_NAMES}:
        raise UnknownNameError("scheme", str(text), map(str, MODEL_NAMES))
    return Scheme(text)


def read_plan(file: Path) -> Plan:
    """A plan from a JSON file.

    Raises:
        UsageError: if it cannot be read.
        BrokenFileError: if it is no plan.
    """
    content = read_given(file, "Name a plan; `autotune lab run --out X --show` prints one.")
    return parse_plan(content, file, "`autotune lab run --out X --show` prints one.")


def require_model(folder: Path | None) -> None:
    """Make sure that `--model-folder`, if given, names a model.

    Raises:
        UsageError: if it does not.
    """
    if folder is not None:
        require_file(folder / "config.json", "Name a folder with a model, or leave --model-folder out.")


def whole_path(folder: Path) -> Path:
    """The folder by its whole path.

    A loop of links stays one, for whoever opens it to tell of, where `Path.resolve` raises RuntimeError.

    Raises:
        UsageError: if its name is no UTF-8, in which the service's database and a start's record are named.
    """
    path = os.path.realpath(folder)
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"The path {path!r} is no UTF-8.", "Name a folder whose path is.") from error
    return Path(path)


def make_plan(
    *,
    scheme: str,
    layers: int,
    arms: str,
    concurrency: str,
    prompts: str,
    output: int,
    requests: int | None,
    more: Sequence[str],
    rounds: int,
    seed: int,
    servers: str | None,
    cache: str,
    gpu_memory: float,
    env: Sequence[str],
    serve_args: Sequence[str],
    table: str,
) -> Plan:
    """The plan that the options of the command describe.

    Raises:
        UsageError: for an option that does not fit, naming it.
    """
    from autotune.cli.problems import parse_numbers

    chosen = named_arms([name.strip() for name in arms.split(",")], _scheme(scheme))
    common, chosen = _with_environment(chosen, env)
    counts = parse_numbers("--concurrency", concurrency, most=4096)
    shortest, longest = _range(prompts)
    kinds = {"together": "together", "one": "one at a time", "one at a time": "one at a time"}
    if servers is None:
        servers = "together" if len(chosen) == 2 and cache == "warm" else "one"
    if servers not in kinds:
        raise UnknownNameError("--servers", servers, ("together", "one"))
    asked = [(count, shortest, longest, output) for count in counts]
    asked += [_point(text, output) for text in more]
    points = [
        {
            "concurrency": count,
            "shortest": first,
            "longest": last,
            "output": new,
            "requests": requests or max(12, 4 * count),
        }
        for count, first, last, new in dict.fromkeys(asked)
    ]
    try:
        return Plan(
            scheme=Scheme(scheme),
            layers=layers,
            arms=chosen,
            points=tuple(Point.model_validate(point) for point in points),
            rounds=rounds,
            seed=seed,
            servers=kinds[servers],
            cache=cache,
            gpu_memory=gpu_memory,
            env=common,
            server=(*VLLM_SERVE, *serve_args) if serve_args else (),
            table=table if any(arm.table for arm in chosen) else "",
        )
    except ValidationError as error:
        raise UsageError(f"This is no plan: {first_fault(error)}.", "See --help.") from error


def _point(text: str, output: int) -> tuple[int, int, int, int]:
    load, _, new = text.partition("+")
    count, at, prompts = load.partition("@")
    try:
        if not at:
            raise ValueError(text)
        return int(count), *_range(prompts), int(new) if new else output
    except (ValueError, UsageError) as error:
        raise UsageError(
            f"--point takes CONCURRENCY@PROMPTS or CONCURRENCY@PROMPTS+NEW, not {text!r}.",
            "Such as 1@128, 8@64:512, or 1@16384+16.",
        ) from error


def _range(text: str) -> tuple[int, int]:
    shortest, _, longest = text.partition(":")
    try:
        return int(shortest), int(longest or shortest)
    except ValueError as error:
        raise UsageError(
            f"--prompts takes SHORTEST:LONGEST or one number, not {text!r}.", "Such as 128:4096."
        ) from error


def _with_environment(arms: tuple[Arm, ...], given: Sequence[str]) -> tuple[dict[str, str], tuple[Arm, ...]]:
    common: dict[str, str] = {}
    of_arm: dict[str, dict[str, str]] = {arm.name: {} for arm in arms}
    for text in given:
        name, equals, value = text.partition("=")
        arm, colon, variable = name.rpartition(":")
        if not equals or not variable:
            raise UsageError(f"--env takes NAME=VALUE or ARM:NAME=VALUE, not {text!r}.", "See --help.")
        if colon and arm not in of_arm:
            raise UnknownNameError("arm", arm, of_arm)
        (of_arm[arm] if colon else common)[variable] = value
    return common, tuple(arm.model_copy(update={"env": {**arm.env, **of_arm[arm.name]}}) for arm in arms)
