"""`autotune publish`, `revisions`, `diff` and `rollback`."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from autotune.cli.database import DatabaseOption, open_for_command, require_packages
from autotune.cli.publishing_files import number, read_sides, read_table
from autotune.cli.publishing_lookup import (
    asked_for,
    described,
    digest_prefix,
    find_problem,
    published_key,
    refuse_split,
    undo_command,
    version,
)
from autotune.vocabulary.environment import gpu_name
from autotune.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from autotune.publish import Publication, Withdrawal

Gpu = Annotated[str | None, typer.Option("--gpu", help="GPU: h200, or a full name such as NVIDIA_H200.")]
Model = Annotated[
    str | None, typer.Option("--model", help="A model's name or config.json (`autotune models`).")
]
Shape = Annotated[str | None, typer.Option("--shape", help="The layer: E=128,N=768,K=2048,topk=8,scheme=...")]
TensorParallel = Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel size, with --model.")]
ExpertParallel = Annotated[int, typer.Option("--ep", min=1, help="Expert-parallel size, with --model.")]
CheckpointName = Annotated[
    str | None, typer.Option("--checkpoint", help="fp8, compressed-tensors or unquantized.")
]
Vllm = Annotated[str | None, typer.Option("--vllm", help="The environment's vLLM version, such as 0.25.1.")]
EnvironmentDigest = Annotated[
    str | None,
    typer.Option("--environment", help="How the environment's digest begins, as `revisions` shows it."),
]
Channel = Annotated[str, typer.Option("--channel", help="The pointer to move, such as stable or canary.")]
Author = Annotated[str | None, typer.Option("--author", help="Who does it. Default: your account's name.")]
Reason = Annotated[
    str, typer.Option("--reason", help="Why, in one line; kept with the revision.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_KEY = {"problem", "environment", "checkpoint"}


def add_to(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (publish, revisions, diff, rollback):
        app.command()(command)


def publish(
    reason: Reason,
    file: Annotated[
        Path | None, typer.Argument(help="A table, as `autotune table export` writes it.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help='Publish "none": nothing is to be applied.')] = False,
    author: Author = None,
    channel: Channel = "stable",
    gpu: Gpu = None,
    model: Model = None,
    shape: Shape = None,
    tp: TensorParallel = 1,
    ep: ExpertParallel = 1,
    checkpoint: CheckpointName = None,
    vllm: Vllm = None,
    environment: EnvironmentDigest = None,
    db: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Make a numbered, immutable revision of a table and point a channel at it.

    A revision is never changed. A channel (stable, canary, or any name you
    choose) is a pointer, one for each layer, GPU and set of versions; vLLM
    applies what the channel that it reads (stable by default) points at. So
    try a table out in a channel of its own, then publish it to stable;
    `autotune rollback` points back, also to before the first revision.

    [dim]autotune publish table.json --channel canary --reason "swept on the new driver"[/]

    With --none, --gpu and --model or --shape say for what nothing is to be
    applied any more, and --vllm or --environment in which of several
    environments.

    [dim]autotune publish --none --gpu h200 --model qwen-moe-fp8 --vllm 0.26.0 --reason "wrong answers"[/]
    """
    if none == (file is not None):
        raise UsageError("Name a table file, or --none, but not both.", "See `autotune publish --help`.")
    if file is not None and (gpu or model or shape or checkpoint or vllm or environment):
        raise UsageError(
            "A table file says its own GPU, shape, checkpoint and versions.",
            "Leave out --gpu, --model, --shape, --checkpoint, --vllm and --environment.",
        )
    require_packages()
    from autotune.publish import check_texts
    from autotune.publish import publish as publish_table

    author = author or _account()
    check_texts(author, reason, channel)
    refuse_split(model, tp, ep)
    table = read_table(file) if file is not None else None
    asked = None
    if table is None:
        asked = asked_for(gpu, model, shape, tp, ep, checkpoint, vllm, environment)
    with open_for_command(db) as database:
        of = table if asked is None else published_key(database, asked, channel, "none")
        assert of is not None
        with database.write() as session:
            done = publish_table(
                session, table, problem=of.problem, environment=of.environment, checkpoint=of.checkpoint,
                author=author, reason=reason, channel=channel,
            )  # fmt: skip
        _report(done, as_json)
        if done.changed and not as_json:
            typer.echo(f"undo with: {undo_command(database, done, db)}", err=True)


def revisions(
    gpu: Gpu = None,
    model: Model = None,
    shape: Shape = None,
    tp: TensorParallel = 1,
    ep: ExpertParallel = 1,
    vllm: Vllm = None,
    environment: EnvironmentDigest = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="At most this many, newest first.")
    ] = 50,
    wide: Annotated[
        bool, typer.Option("--wide", help="Whole reasons and times, however wide that gets.")
    ] = False,
    db: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """List what was published, newest first, and which channels point at it.

    Revisions of one layer and environment stand together. Reasons are cut
    to the width of the terminal, or of COLUMNS; --wide and --json have the
    whole of them.
    """
    require_packages()
    from autotune.db.revisions import RevisionRepository
    from autotune.publish import revisions as list_revisions

    refuse_split(model, tp, ep)
    problem = find_problem(model, shape, tp, ep)[0] if model or shape else None
    name = gpu_name(gpu) if gpu else None
    with open_for_command(db, create=False) as database, database.read() as session:
        found = list_revisions(
            session, gpu=name, problem=problem, vllm=version(vllm), environment=digest_prefix(environment),
            limit=limit,
        )  # fmt: skip
        total = len(found) or RevisionRepository(session).count()
    if as_json:
        typer.echo(json.dumps({"revisions": [r.model_dump(mode="json") for r in found]}, indent=2))
        return
    from autotune.cli.publishing_views import print_revisions

    print_revisions(found, total, wide=wide)


def diff(
    before: Annotated[str, typer.Argument(help="A revision's number, a table file, or none.")],
    after: Annotated[str, typer.Argument(help="A revision's number, a table file, or none.")],
    only_changed: Annotated[
        bool, typer.Option("--changed", help="Only the ranges that run something else.")
    ] = False,
    db: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show, range by range of token counts, what another revision runs
    instead.

    Both must be for one layer and GPU; their versions and checkpoint
    formats may differ. Equal ones are said to be so in one line.
    """
    require_packages()
    from autotune.publish import check_comparable
    from autotune.publish import diff as compare

    old, new = read_sides(before, after, db)
    check_comparable(old.key, new.key)
    rows = compare(old.table, new.table)
    if as_json:
        data = {
            "before": before,
            "after": after,
            "before_of": old.key.model_dump(mode="json", include=_KEY) if old.key else None,
            "after_of": new.key.model_dump(mode="json", include=_KEY) if new.key else None,
            "rows": [row.model_dump(mode="json") for row in rows if row.changed or not only_changed],
        }
        typer.echo(json.dumps(data, indent=2))
        return
    from autotune.cli.publishing_views import print_diff

    print_diff((before, old.key), (after, new.key), rows, only_changed=only_changed)


def rollback(
    reason: Reason,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="A revision's number, none (nothing is applied), or unpublished (as before the first "
            "revision). Default: the one before; before the first there was none.",
        ),
    ] = None,
    author: Author = None,
    channel: Channel = "stable",
    gpu: Gpu = None,
    model: Model = None,
    shape: Shape = None,
    tp: TensorParallel = 1,
    ep: ExpertParallel = 1,
    checkpoint: CheckpointName = None,
    vllm: Vllm = None,
    environment: EnvironmentDigest = None,
    db: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Point a channel back at the revision before, at a given one, at "none",
    or nowhere.

    Each layer, GPU and set of versions has channels of its own (stable,
    canary, or any name you choose), which point at one revision each; vLLM
    applies what its channel points at. Rolling back moves that pointer, and
    the move is kept with its author and reason; no revision is changed.
    Where the layer is published for several versions, --vllm or
    --environment says which one is meant.

    Before its first revision a channel pointed nowhere. Rolled back to there,
    what answered then answers again, such as the starter tables; with
    "none" nothing is applied.

    [dim]autotune rollback --gpu h200 --model qwen-moe-fp8 --reason "slower in production"[/]
    """
    require_packages()
    from autotune.publish import check_texts
    from autotune.publish import rollback as roll_back

    author = author or _account()
    check_texts(author, reason, channel)
    target: int | Literal["none", "unpublished"] | None
    target = to if to in (None, "none", "unpublished") else number(to)  # type: ignore[assignment]
    asked = asked_for(gpu, model, shape, tp, ep, checkpoint, vllm, environment)
    with open_for_command(db, create=False) as database:
        of = published_key(database, asked, channel, target)
        with database.write() as session:
            done = roll_back(
                session, problem=of.problem, environment=of.environment, checkpoint=of.checkpoint,
                to=target, author=author, reason=reason, channel=channel,
            )  # fmt: skip
        _report(done, as_json)


def _report(done: Publication | Withdrawal, as_json: bool) -> None:
    from autotune.publish import Withdrawal

    if isinstance(done, Withdrawal):
        left = done.previous
        if as_json:
            gone = {"revision": None, "channel": done.channel, "changed": True, "previous": left.number}
            typer.echo(json.dumps(gone, indent=2))
            return
        typer.echo(
            f"{done.channel} of {left.problem} on {left.environment.gpu} points at no revision any more, as "
            f"before revision {left.number}. Back to it: add --to {left.number} to this command."
        )
        return
    revision = done.revision
    if as_json:
        data = {
            "revision": revision.model_dump(mode="json"),
            "channel": done.channel,
            "changed": done.changed,
            "previous": done.previous,
            "mended": done.mended,
        }
        typer.echo(json.dumps(data, indent=2))
        return
    what = "none" if revision.table_digest is None else f"table {revision.table_digest[:12]}"
    about = f"{revision.problem} on {revision.environment.gpu}"
    if not done.changed:
        mended = " What was stored of it was damaged; it is whole again." if done.mended else ""
        typer.echo(
            f"{done.channel} of {about} points at revision {revision.number} ({what}) already.{mended}"
        )
        return
    before = f" It was at revision {done.previous}." if done.previous is not None else ""
    if revision.table_digest is None:  # whoever stops something wants to see what
        about += f" ({described(revision)})"
    typer.echo(f"{done.channel} of {about} points at revision {revision.number} ({what}).{before}")


def _account() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise UsageError("Your account has no name to publish under.", "Give one with --author.") from error
