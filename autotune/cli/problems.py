"""Reading what commands share: models and shapes, numbers, durations, backends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, get_args

from autotune.vocabulary.candidate import BACKENDS, BackendName
from autotune.vocabulary.errors import UnknownNameError, UsageError
from autotune.vocabulary.measurement import Checkpoint

if TYPE_CHECKING:
    from autotune.vocabulary.problem import Problem


def resolve(
    model: str, shape: str, tp: int = 1, ep: int = 1, checkpoint: str = ""
) -> tuple[Problem, Checkpoint]:
    """The problem and checkpoint format that --model or --shape names.

    Raises:
        UsageError: if not exactly one of both is given, or one does not parse.
    """
    from autotune.vocabulary.catalogue import resolve_problem
    from autotune.vocabulary.problem import Problem

    if bool(model) == bool(shape):
        raise UsageError(
            "Give either --model or --shape.",
            "For example --model qwen-moe-fp8; `autotune models` lists them.",
        )
    if checkpoint and checkpoint not in get_args(Checkpoint):
        raise UnknownNameError("checkpoint format", checkpoint, get_args(Checkpoint))
    if shape:
        if (tp, ep) != (1, 1):
            raise UsageError(
                "--tp and --ep go with --model.", "A shape states the partition itself: N per rank, ep=."
            )
        problem = Problem.parse(shape)
        kind: Checkpoint = "fp8" if problem.scheme.is_fp8 else "unquantized"
        if problem.scheme.value == "fp8_channel":
            kind = "compressed-tensors"
    else:
        problem, kind = resolve_problem(model, tp=tp, ep=ep)
    return problem, (checkpoint or kind)  # type: ignore[return-value]


def parse_numbers(option: str, text: str, most: int = 1 << 20) -> list[int]:
    """Comma-separated positive integers, sorted, without repeats.

    Raises:
        UsageError: naming the option and the item that does not fit.
    """
    values = set()
    for item in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", item, re.ASCII) or not 1 <= int(item) <= most:
            raise UsageError(
                f"{option}: {item.strip()!r} is not an integer from 1 to {most}.", "Write them like 1,8,64."
            )
        values.add(int(item))
    return sorted(values)


def parse_routing(text: str) -> str:
    """How tokens spread over experts: `uniform`, or `zipf:S` with an exponent.

    Raises:
        UsageError: for anything else.
    """
    from autotune.vocabulary.measurement import ROUTING_PATTERN

    if not re.fullmatch(ROUTING_PATTERN, text.strip()):
        raise UsageError(f"Unknown routing {text!r}.", "Use uniform, or zipf:S such as zipf:1.2.")
    return text.strip()


def parse_duration(text: str) -> float | None:
    """Seconds of `90s`, `5m`, `1h` or a bare number; None for `none`.

    Raises:
        UsageError: for anything else.
    """
    if text.strip().casefold() == "none":
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smh]?)\s*", text, re.ASCII)
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--budget: {text!r} is not a duration.", "Write 90s, 5m, 1h or none.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def parse_backends(text: str) -> frozenset[BackendName] | None:
    """Comma-separated backend names; None for an empty text.

    Raises:
        UnknownNameError: for a name that is no backend.
    """
    if not text:
        return None
    names: set[BackendName] = set()
    for item in text.split(","):
        name = item.strip()
        if name not in BACKENDS:
            raise UnknownNameError("backend", name, BACKENDS)
        names.add(name)
    return frozenset(names)
