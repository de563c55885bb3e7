"""What `autotune table import` does with a file."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from autotune.client.lint import lint_vllm_config
from autotune.client.sources import read_file
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.problem import PartialProblem
from autotune.vocabulary.settings import Settings


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
        raise TableError(f"{file}: {'; '.join(broken)}.", "Nothing was published; export the file again.")
    settings = Settings.from_env()
    with open_database(db or settings.db) as database, database.write() as session:
        done = [
            publish(
                session, t.table, problem=t.problem, environment=t.environment, checkpoint=t.checkpoint,
                author=author, reason=reason, channel=channel or settings.channel,
            )
            for t in tables
        ]  # fmt: skip
    for publication in done:
        what = "is now" if publication.changed else "already was"
        number, problem = publication.revision.number, publication.revision.problem
        typer.echo(f"revision {number} of {problem} {what} what {publication.channel} points at")


def show_vllm_config(file: Path) -> None:
    """Check a vLLM tuned-config file and print the problem and the tiles that it names.

    Raises:
        UsageError: if its name is not one that vLLM looks for.
        TableError: if its content would fail in vLLM.
    """
    partial = PartialProblem.parse_file_name(file.name)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TableError(
            f"{file} cannot be read: {error}.", "vLLM would fail on it; remove or mend it."
        ) from error
    findings = lint_vllm_config(file.name, data)
    for finding in findings:
        typer.echo(f"warning: {finding}", err=True)
    block = f", block_shape={list(partial.block_shape)}" if partial.block_shape else ""
    typer.echo(f"E={partial.E}, N={partial.N}, {partial.device_name}, dtype={partial.dtype or 'bf16'}{block}")
    for count, config in data.items() if isinstance(data, dict) else ():
        typer.echo(f"{count:>8} {json.dumps(config)}")
    typer.echo(
        "Nothing is stored: the file tells neither K nor top-k. Sweep with `autotune sweep`.", err=True
    )
