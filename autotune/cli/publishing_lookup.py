"""Which published thing the options `--gpu`, `--model` or `--shape`, `--checkpoint`, `--vllm` and
`--environment` mean."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from autotune.vocabulary.environment import gpu_name
from autotune.vocabulary.errors import ConflictError, NotFoundError, UsageError

if TYPE_CHECKING:
    from autotune.db.engine import Database, ReadSession
    from autotune.db.revisions import Key
    from autotune.publish import Publication
    from autotune.vocabulary.measurement import Checkpoint
    from autotune.vocabulary.problem import Problem


@dataclass(frozen=True)
class Asked:
    """What the options say.

    Args:
        environment: how the environment's digest begins, in lower-case hexadecimal.
    """

    gpu: str
    problem: Problem
    checkpoint: Checkpoint | None
    vllm: str | None
    environment: str | None

    def fits(self, key: Key) -> bool:
        """Whether a key is one that the options allow."""
        from autotune.db.keys import environment_digest

        return (
            (key.problem, key.environment.gpu) == (self.problem, self.gpu)
            and self.checkpoint in (None, key.checkpoint)
            and self.vllm in (None, key.environment.vllm)
            and (self.environment is None or environment_digest(key.environment).startswith(self.environment))
        )

    def __str__(self) -> str:
        further = {"checkpoint": self.checkpoint, "vllm": self.vllm, "environment": self.environment}
        named = "".join(f", {name} {value}" for name, value in further.items() if value)
        return f"{self.problem} on {self.gpu}{named}"


def asked_for(
    gpu: str | None, model: str | None, shape: str | None, tp: int, ep: int, checkpoint: str | None,
    vllm: str | None, environment: str | None,
) -> Asked:  # fmt: skip
    """Read the options.

    Raises:
        UsageError: for one that is missing or does not parse.
    """
    if not gpu:
        raise UsageError("--gpu is missing.", "Say for which GPU, such as --gpu h200.")
    problem, of_model = find_problem(model, shape, tp, ep)
    wanted = _checkpoint(checkpoint) or of_model
    return Asked(gpu_name(gpu), problem, wanted, version(vllm), digest_prefix(environment))


def published_key(
    database: Database,
    asked: Asked,
    channel: str,
    revision: int | Literal["none", "unpublished"] | None = None,
) -> Key:
    """The problem, environment and checkpoint that the options name.

    Args:
        revision: a number: that of the revision; None or `unpublished`: what the channel points at now;
            `none`: that, or else any environment in which the problem was published, or else measured,
            since a channel that points nowhere yet can be told that nothing is to be applied.

    Raises:
        NotFoundError: if nothing fits.
        UsageError: if several do, with what tells them apart.
        ConflictError: if the revision is of something else.
    """
    from autotune.db.revisions import RevisionRepository

    with database.read() as session:
        repository = RevisionRepository(session)
        if isinstance(revision, int):
            one = repository.get(revision)
            if not asked.fits(one):
                raise ConflictError(
                    f"Revision {one.number} is for {one.problem} on {one.environment}, checkpoint "
                    f"{one.checkpoint}, not for {asked}.",
                    "List the fitting ones with `autotune revisions`.",
                )
            return one
        found = _fitting(asked, repository.current(asked.gpu, channel))
        if not found and revision == "none":
            found = _fitting(asked, repository.newest(gpu=asked.gpu, problem=asked.problem))
        if not found and revision == "none":
            found = _fitting(asked, _measured(session, asked))
    if not found:
        raise NotFoundError(
            f"Nothing is published for {asked} in channel {channel!r}.",
            "See what is with `autotune revisions`.",
        )
    if len(found) > 1:
        raise UsageError(
            f"Several tables fit: {'; '.join(described(key) for key in found)}.",
            "Narrow it with --environment and how one of these digests begins, --vllm or --checkpoint. "
            "`autotune revisions` shows which one a channel points at.",
        )
    return found[0]


def described(key: Key) -> str:
    """A key's checkpoint and environment, with what `--environment` takes."""
    from autotune.db.keys import environment_digest

    return f"{key.checkpoint}, {key.environment}, environment {environment_digest(key.environment)[:8]}"


def undo_command(database: Database, done: Publication, db: str | None) -> str:
    """The command line that takes a publication back, as it can be copied.

    Args:
        db: the database as the command at hand was given it; None for the usual one.
    """
    from autotune.db.keys import environment_digest
    from autotune.db.revisions import RevisionRepository
    from autotune.db.urls import parse_url

    made = done.revision
    words = ["autotune", "rollback", "--gpu", made.environment.gpu, "--shape", str(made.problem)]
    with database.read() as session:
        alike = RevisionRepository(session).current(made.environment.gpu, done.channel)
    alike = [key for key in alike if key.problem == made.problem and key.number != made.number]
    if any(key.checkpoint != made.checkpoint for key in alike):
        words += ["--checkpoint", made.checkpoint]
    if any(key.environment != made.environment for key in alike):
        words += ["--environment", environment_digest(made.environment)[:8]]
    if done.channel != "stable":
        words += ["--channel", done.channel]
    if db is not None:
        # The command ends up in logs: a password must not.
        words += ["--db", database.name if parse_url(db).password else db]
    return shlex.join([*words, "--reason", "why"])


def _measured(session: ReadSession, asked: Asked) -> Iterable[Key]:
    """The keys under which a sweep would publish what was measured: a table names what its routes need."""
    from autotune.choose.routes import build_table
    from autotune.db.measurements import MeasurementRepository
    from autotune.db.revisions import Key

    repository = MeasurementRepository(session)
    for environment, checkpoint in repository.environments(asked.gpu, asked.problem):
        evidence = repository.find(asked.problem, environment=environment, checkpoint=checkpoint)
        named = environment
        # Without final measurements there is no table to go by.
        with contextlib.suppress(NotFoundError):
            named = build_table(
                evidence, problem=asked.problem, environment=environment, checkpoint=checkpoint
            ).environment
        yield Key(problem=asked.problem, environment=named, checkpoint=checkpoint)


def _fitting(asked: Asked, keys: Iterable[Key]) -> list[Key]:
    distinct = {tuple(key.columns().values()): key for key in keys if asked.fits(key)}
    return list(distinct.values())


def find_problem(model: str | None, shape: str | None, tp: int, ep: int) -> tuple[Problem, Checkpoint | None]:
    """The layer that --model or --shape names, and the checkpoint format that a model has.

    Raises:
        UsageError: if not exactly one of both is given, or one does not parse.
    """
    from autotune.vocabulary.problem import Problem

    if (model is None) == (shape is None):
        raise UsageError("Name the layer by --model or by --shape, one of them.", "See `autotune models`.")
    refuse_split(model, tp, ep)
    if shape is not None:
        return Problem.parse(shape), None
    from autotune.vocabulary.catalogue import resolve_problem

    return resolve_problem(str(model), tp=tp, ep=ep)


def refuse_split(model: str | None, tp: int, ep: int) -> None:
    """Refuse --tp and --ep where no model is named that they could split.

    Raises:
        UsageError: if one is given without --model.
    """
    if model is None and (tp, ep) != (1, 1):
        raise UsageError(
            "--tp and --ep go with --model.",
            "Name the model, or leave them out: a shape and a table state the partition themselves.",
        )


def version(text: str | None) -> str | None:
    """A library's version as environments state it, without a local part such as `+cu130`.

    Raises:
        UsageError: if it is empty.
    """
    if text is None:
        return None
    bare = text.strip().split("+")[0]
    if not bare or not bare.isprintable():
        raise UsageError(f"{text!r} is no version of vLLM.", "Write it like --vllm 0.25.1.")
    return bare


def digest_prefix(text: str | None) -> str | None:
    """How an environment's digest begins.

    Raises:
        UsageError: if it is no hexadecimal of 4 to 64 digits.
    """
    if text is not None and not re.fullmatch(r"[0-9a-fA-F]{4,64}", text):
        raise UsageError(
            f"{text[:80]!r} is no beginning of an environment's digest.",
            "Copy at least 4 of its digits from `autotune revisions`.",
        )
    return text.lower() if text is not None else None


def _checkpoint(text: str | None) -> Checkpoint | None:
    from typing import get_args

    from autotune.vocabulary.errors import UnknownNameError
    from autotune.vocabulary.measurement import Checkpoint

    if text is not None and text not in get_args(Checkpoint):
        raise UnknownNameError("checkpoint", text, get_args(Checkpoint))
    return text  # type: ignore[return-value]
