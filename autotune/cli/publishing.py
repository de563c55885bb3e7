"""`autotune publish`, `revisions`, `diff` and `rollback`."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from autotune.cli.database import DatabaseOption, open_for_command, require_packages
from autotune.cli.publishing_lookup import find_problem, published_key
from autotune.vocabulary.environment import gpu_name
from autotune.vocabulary.errors import TableError, UsageError

if TYPE_CHECKING:
    from autotune.publish import Publication
    from autotune.vocabulary.table import RoutingTable

Gpu = Annotated[str | None, typer.Option("--gpu", help="GPU: h200, or a full name such as NVIDIA_H200.")]
Model = Annotated[
    str | None, typer.Option("--model", help="A model's name or config.json (`autotune models`).")
]
Shape = Annotated[str | None, typer.Option("--shape", help="The layer: E=128,N=768,K=2048,topk=8,scheme=...")]
TensorParallel = Annotated[int, typer.Option("--tp", help="Tensor-parallel size, with --model.")]
ExpertParallel = Annotated[int, typer.Option("--ep", help="Expert-parallel size, with --model.")]
CheckpointName = Annotated[
    str | None, typer.Option("--checkpoint", help="fp8, compressed-tensors or unquantized.")
]
Channel = Annotated[str, typer.Option("--channel", help="The pointer to move, such as stable or canary.")]
Author = Annotated[str | None, typer.Option("--author", help="Who does it. Default: your account's name.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, in one line; kept with the revision.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add_to(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (publish, revisions, diff, rollback):
        app.command()(command)


def publish(
    file: Annotated[
        Path | None, typer.Argument(help="A table, as `autotune table export` writes it.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help='Publish "none": nothing is to be applied.')] = False,
    reason: Reason = "",
    author: Author = None,
    channel: Channel = "stable",
    gpu: Gpu = None,
    model: Model = None,
    shape: Shape = None,
    tp: TensorParallel = 1,
    ep: ExpertParallel = 1,
    checkpoint: CheckpointName = None,
    db: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Make a numbered, immutable revision of a table and point a channel at it.

    [dim]autotune publish table.json --reason "swept on the new driver"[/]

    With --none, --gpu and --model or --shape say for what nothing is to be applied any more.
    """
    if none == (file is not None):
        raise UsageError("Name a table file, or --none, but not both.", "See `autotune publish --help`.")
    if file is not None and (gpu or model or shape or checkpoint):
        raise UsageError(
            "A table file says its own GPU, shape and checkpoint.",
            "Leave out --gpu, --model, --shape and --checkpoint.",
        )
    require_packages()
    from autotune.publish import check_texts
    from autotune.publish import publish as publish_table

    author = author or _account()
    check_texts(author, reason, channel)
    table = _read_table(file) if file is not None else None
    with open_for_command(db) as database:
        if table is not None:
            key: dict[str, Any] = {
                "problem": table.problem,
                "environment": table.environment,
                "checkpoint": table.checkpoint,
            }
        else:
            key = published_key(database, gpu, model, shape, tp, ep, checkpoint, channel)
        with database.write() as session:
            done = publish_table(session, table, **key, author=author, reason=reason, channel=channel)
        _report(done, as_json)


def revisions(
    gpu: Gpu = None,
    model: Model = None,
    shape: Shape = None,
    tp: TensorParallel = 1,
    ep: ExpertParallel = 1,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many, newest first.")] = 50,
    db: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """List what was published, newest first, and which channels point at it."""
    require_packages()
    from autotune.publish import revisions as list_revisions

    problem = find_problem(model, shape, tp, ep)[0] if model or shape else None
    name = gpu_name(gpu) if gpu else None
    with open_for_command(db, create=False) as database, database.read() as session:
        found = list_revisions(session, gpu=name, problem=problem, limit=limit)
    if as_json:
        typer.echo(json.dumps({"revisions": [r.model_dump(mode="json") for r in found]}, indent=2))
        return
    from autotune.cli.publishing_views import print_revisions

    print_revisions(found)


def diff(
    before: Annotated[str, typer.Argument(help="A revision's number, or a table file.")],
    after: Annotated[str, typer.Argument(help="A revision's number, or a table file.")],
    db: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show, range by range of token counts, what another revision runs instead."""
    require_packages()
    from autotune.publish import diff as compare

    old, new = _sides((before, after), db)
    rows = compare(old, new)
    if as_json:
        data = {"before": before, "after": after, "rows": [row.model_dump(mode="json") for row in rows]}
        typer.echo(json.dumps(data, indent=2))
        return
    from autotune.cli.publishing_views import print_diff

    print_diff(before, after, rows)


def rollback(
    to: Annotated[
        str | None, typer.Option("--to", help="A revision's number, or none. Default: the one before.")
    ] = None,
    reason: Reason = "",
    author: Author = None,
    channel: Channel = "stable",
    gpu: Gpu = None,
    model: Model = None,
    shape: Shape = None,
    tp: TensorParallel = 1,
    ep: ExpertParallel = 1,
    checkpoint: CheckpointName = None,
    db: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Point a channel back at the revision before, at a given one, or at "none"."""
    require_packages()
    from autotune.publish import check_texts
    from autotune.publish import rollback as roll_back

    author = author or _account()
    check_texts(author, reason, channel)
    target: int | Literal["none"] | None = None if to is None else "none" if to == "none" else _number(to)
    with open_for_command(db, create=False) as database:
        key = published_key(database, gpu, model, shape, tp, ep, checkpoint, channel, revision=target)
        with database.write() as session:
            done = roll_back(session, **key, to=target, author=author, reason=reason, channel=channel)
        _report(done, as_json)


def _report(done: Publication, as_json: bool) -> None:
    revision = done.revision
    if as_json:
        data = {
            "revision": revision.model_dump(mode="json"),
            "channel": done.channel,
            "changed": done.changed,
            "previous": done.previous,
        }
        typer.echo(json.dumps(data, indent=2))
        return
    what = "none" if revision.table_digest is None else f"table {revision.table_digest[:12]}"
    about = f"{revision.problem} on {revision.environment.gpu}"
    if not done.changed:
        typer.echo(f"{done.channel} of {about} points at revision {revision.number} ({what}) already.")
        return
    before = f" It was at revision {done.previous}." if done.previous is not None else ""
    typer.echo(f"{done.channel} of {about} points at revision {revision.number} ({what}).{before}")


def _sides(names: tuple[str, str], db: str | None) -> list[RoutingTable | None]:
    if not any(name.isdecimal() for name in names):
        return [_read_table(Path(name)) for name in names]
    from autotune.db.revisions import RevisionRepository

    with open_for_command(db, create=False) as database, database.read() as session:
        repository = RevisionRepository(session)
        return [
            repository.table(repository.get(_number(name))) if name.isdecimal() else _read_table(Path(name))
            for name in names
        ]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise UsageError(f"{text!r} is no revision number.", "List them with `autotune revisions`.")
    return int(text)


def _read_table(path: Path) -> RoutingTable:
    from autotune.vocabulary.table import RoutingTable

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Name a table file.") from error
    except ValueError as error:
        raise TableError(f"{path} is no JSON: {error}.", "Export it with `autotune table export`.") from error
    return RoutingTable.from_json_data(data)


def _account() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise UsageError("Your account has no name to publish under.", "Give one with --author.") from error
