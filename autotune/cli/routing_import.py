"""What `autotune table import` does with a file."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from autotune.cli.publishing_lookup import undo_command
from autotune.cli.routing_sources import CHANNEL_HINT
from autotune.client.addresses import channel_fault
from autotune.client.lint import read_vllm_config, vllm_config_doubts, vllm_config_faults
from autotune.client.snapshot import joined
from autotune.client.sources import read_file
from autotune.vocabulary.errors import TableError, UsageError
from autotune.vocabulary.files import read_text
from autotune.vocabulary.files import reason as unread
from autotune.vocabulary.problem import PartialProblem
from autotune.vocabulary.settings import Settings


def user_name() -> str:
    """Who imports; `unknown` where the user has no name, as in many containers."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def publish_file(file: Path, db: str | None, channel: str | None, author: str, reason: str) -> None:
    """Publish every table of a file, or none if one of them is broken.

    Raises:
        TableError: if the file or a table in it is broken.
        UsageError: for a bad author, reason or channel.
        DatabaseError: if the database refuses.
    """
    from autotune.db.engine import open_database
    from autotune.publish import publish

    tables, broken = read_file(file)
    if broken:
        raise TableError(f"{file}: {joined(broken)}.", "Nothing was published; export the file again.")
    settings = Settings.from_env()
    if fault := channel_fault(channel or settings.channel):
        raise UsageError(f"{fault}.", CHANNEL_HINT)
    with open_database(db or settings.db) as database:
        with database.write() as session:
            done = [
                publish(
                    session, t.table, problem=t.problem, environment=t.environment, checkpoint=t.checkpoint,
                    author=author, reason=reason, channel=channel or settings.channel,
                )
                for t in tables
            ]  # fmt: skip
        undo = [undo_command(database, publication, db) for publication in done if publication.changed]
    for publication in done:
        what = "is now" if publication.changed else "already was"
        number, problem = publication.revision.number, publication.revision.problem
        typer.echo(f"revision {number} of {problem} {what} what {publication.channel} points at")
    for command in undo:
        typer.echo(f"undo with: {command}", err=True)


def show_vllm_config(file: Path) -> None:
    """Check a vLLM tuned-config file and print the problem and the tiles that it names.

    Raises:
        UsageError: if its name is not one that vLLM looks for.
        TableError: if its content would fail in vLLM.
    """
    partial = PartialProblem.parse_file_name(file.name)
    try:
        data = read_vllm_config(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise TableError(
            f"{file} cannot be read: {unread(error)}.", "vLLM would fail on it; remove or mend it."
        ) from error
    faults = vllm_config_faults(data)
    if faults:
        raise TableError(f"{file}: {joined(faults)}.", "vLLM would fail on it; remove or mend it.")
    for doubt in vllm_config_doubts(data):
        typer.echo(f"warning: {doubt}", err=True)
    block = f", block_shape={list(partial.block_shape)}" if partial.block_shape else ""
    typer.echo(f"E={partial.E}, N={partial.N}, {partial.device_name}, dtype={partial.dtype or 'bf16'}{block}")
    for count, config in data.items():
        typer.echo(f"{count:>8} {json.dumps(config)}")
    typer.echo(
        "Nothing is stored: the file tells neither K nor top-k. Sweep with `autotune sweep`.", err=True
    )
