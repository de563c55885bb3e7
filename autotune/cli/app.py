"""The `autotune` program: its commands, error handling and exit codes."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from autotune.vocabulary.errors import AutotuneError

app = typer.Typer(
    name="autotune",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Finds the fastest correct way to run a model's fused mixture-of-experts layer, keeps the evidence, "
    "and makes vLLM use it.",
)


def _register() -> None:
    """Add every command, in the order in which a user meets them."""
    from autotune.cli import database, jit, models, publishing, routing, serving, sweeping, vllm_tools

    for module in (sweeping, routing, publishing, serving, vllm_tools, jit, models, database):
        module.add_to(app)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the work failed, 2 bad usage, 130 interrupted."""
    _register()
    try:
        app()
    except AutotuneError as error:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"[bold red]error:[/] {_plain(error.message)}")
        if error.hint:
            console.print(f"[dim]next:[/] {_plain(error.hint)}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
