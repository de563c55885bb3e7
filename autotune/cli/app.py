"""The `autotune` program: its commands, error handling and exit codes."""

from __future__ import annotations

import errno
import inspect
import io
import os
import re
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from autotune import __version__
from autotune.vocabulary.errors import AutotuneError

app = typer.Typer(
    name="autotune",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Finds the fastest correct way to run a model's fused mixture-of-experts layer, keeps the evidence, "
    "and makes vLLM use it. Exit codes: 0 done, 1 the work failed, 2 bad usage, 130 interrupted.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"moe-autotune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _register() -> None:
    """Add every command, in the order in which a user meets them."""
    from autotune.cli import (
        database,
        jit,
        lab,
        models,
        plotting,
        publishing,
        routing,
        serving,
        sweeping,
        vllm_tools,
    )

    for module in (sweeping, routing, plotting, publishing, serving, vllm_tools, lab, jit, models, database):
        module.add_to(app)
    flow(app)


def flow(group: typer.Typer) -> None:
    """Let the terminal's width alone decide where a help text's lines end, not those of its docstring."""
    for command in group.registered_commands:
        text = command.help or inspect.getdoc(command.callback)
        command.help = text and re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            flow(inner.typer_instance)


def run() -> None:
    """Run one command and turn its errors into text and an exit code.

    Raises:
        KeyboardInterrupt: for the caller to turn into exit code 130.
    """
    if os.environ.get("COLUMNS", "").strip() in ("0", "00"):
        del os.environ["COLUMNS"]  # rich would print nothing at all; other programs take it as unset
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal's encoding lacks must not end the command.
            stream.reconfigure(errors="backslashreplace")
    _register()
    try:
        try:
            app(standalone_mode=True)
        finally:
            # What is still in the buffer must fail here, not while Python exits, which tells nobody in words.
            if sys.stdout is not None:  # None where the shell closed it
                sys.stdout.flush()
    except AutotuneError as error:
        _tell(error.message, error.hint)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        _leave_stdout()
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _leave_stdout()
        _tell(f"The output cannot be written: {error.strerror}.", "Make room, or send it elsewhere.")
        sys.exit(1)


def _tell(message: str, hint: str) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(message)}")
    if hint:
        console.print(f"[dim]next:[/] {escape(hint)}")


def _leave_stdout() -> None:
    # Python flushes stdout once more at exit, and would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
