"""Which published thing the options `--gpu`, `--model` or `--shape` and `--checkpoint` mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from autotune.vocabulary.environment import gpu_name
from autotune.vocabulary.errors import ConflictError, NotFoundError, UsageError

if TYPE_CHECKING:
    from autotune.db.engine import Database
    from autotune.db.revisions import Revision
    from autotune.vocabulary.measurement import Checkpoint
    from autotune.vocabulary.problem import Problem


def published_key(
    database: Database, gpu: str | None, model: str | None, shape: str | None, tp: int, ep: int,
    checkpoint: str | None, channel: str, revision: int | Literal["none"] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The problem, environment and checkpoint that the options name among what was published."""
    from autotune.db.revisions import RevisionRepository

    if not gpu:
        raise UsageError("--gpu is missing.", "Say for which GPU, such as --gpu h200.")
    problem, of_model = find_problem(model, shape, tp, ep)
    name = gpu_name(gpu)
    wanted = _checkpoint(checkpoint) or of_model
    with database.read() as session:
        repository = RevisionRepository(session)
        if isinstance(revision, int):
            found = [repository.get(revision)]
        else:
            found = [r for r in repository.current(name, channel) if r.problem == problem]
    found = [r for r in found if wanted is None or r.checkpoint == wanted]
    if not found:
        raise NotFoundError(
            f"Nothing is published for {problem} on {name} in channel {channel!r}.",
            "See what is with `autotune revisions`.",
        )
    if len(found) > 1:
        raise _ambiguous(found)
    (one,) = found
    if one.problem != problem or one.environment.gpu != name:
        raise ConflictError(
            f"Revision {one.number} is for {one.problem} on {one.environment.gpu}, "
            f"not for {problem} on {name}.",
            "List the fitting ones with `autotune revisions`.",
        )
    return {"problem": one.problem, "environment": one.environment, "checkpoint": one.checkpoint}


def _ambiguous(found: list[Revision]) -> UsageError:
    listing = "; ".join(f"revision {r.number}: {r.checkpoint}, {r.environment}" for r in found)
    return UsageError(
        f"Several tables fit: {listing}.",
        "Narrow it with --checkpoint, or roll back by number with --to N.",
    )


def find_problem(model: str | None, shape: str | None, tp: int, ep: int) -> tuple[Problem, Checkpoint | None]:
    from autotune.vocabulary.problem import Problem

    if (model is None) == (shape is None):
        raise UsageError("Name the layer by --model or by --shape, one of them.", "See `autotune models`.")
    if shape is not None:
        return Problem.parse(shape), None
    from autotune.vocabulary.catalogue import resolve_problem

    return resolve_problem(str(model), tp=tp, ep=ep)


def _checkpoint(text: str | None) -> Checkpoint | None:
    from typing import get_args

    from autotune.vocabulary.errors import UnknownNameError
    from autotune.vocabulary.measurement import Checkpoint

    if text is not None and text not in get_args(Checkpoint):
        raise UnknownNameError("checkpoint", text, get_args(Checkpoint))
    return text  # type: ignore[return-value]
