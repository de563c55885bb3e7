"""`autotune lab outputs`: greedy outputs of the arms of an experiment against their references."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def outputs(
    folder: Annotated[
        Path, typer.Argument(help="The folder of an experiment; `autotune lab run --out` made it.")
    ],
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="How many prompts.")] = 16,
    shortest: Annotated[int, typer.Option("--shortest", min=1, help="Fewest words of a prompt.")] = 32,
    longest: Annotated[int, typer.Option("--longest", min=1, help="Most words of a prompt.")] = 1024,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="New tokens of each.")] = 64,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance", help="Largest difference of log probability, nats, from 0. Default: 0.1."
        ),
    ] = 0.1,
    table: Annotated[
        Path | None, typer.Option("--table", help="The plan's routing table. Default: the starter table.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65000, help="The first server's.")] = 8123,
    start_limit: Annotated[
        float, typer.Option("--start-limit", min=1, help="Seconds for a server to get ready.")
    ] = 1200.0,
    start_at_once: Annotated[
        bool,
        typer.Option(
            "--start-at-once",
            help="Start the servers side by side, each with its share of the plan's GPU memory; for plans "
            "that give them their KV cache, as `autotune lab run --start-at-once` needs it.",
        ),
    ] = False,
    model: Annotated[
        Path | None, typer.Option("--model-folder", help="As given to `autotune lab run`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask every arm for the same greedy completions and compare them with its reference's.

    Counts the tokens that differ. Before the first of them both servers have read the same text, so there the
    log probabilities of the chosen tokens must agree within the tolerance; after it they read different
    texts. Exit code 1 if the tolerance is passed, or if a pair has no token in common. The prompts are the
    same text for both throughout: of their tokens it says how far the log probabilities are apart, and after
    how many another one would be next. An arm such as stock-triton in the plan shows what a change between
    vLLM's own backends does. The comparison is also kept in FOLDER/outputs.json, and each arm's
    completions in FOLDER/completions as soon as they are there: run again, this asks only who is missing.

    Example: autotune lab outputs bench-results/lab-fp8_tensor
    """
    import json
    import signal
    import sys

    from autotune.cli.lab_plan import require_model, starter_table, whole_path
    from autotune.lab.outputs import Asked
    from autotune.lab.results import Folder
    from autotune.lab.running import Options, greedy_outputs

    asked = Asked(prompts, shortest, longest, tokens, tolerance)
    kept = Folder(whole_path(folder))
    plan = kept.plan()
    require_model(model)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    file = table or (starter_table(plan.scheme) if plan.table else None)
    options = Options(
        port=port,
        at_once=start_at_once,
        start_limit_s=start_limit,
        table=file,
        model=whole_path(model) if model else None,
    )
    compared = greedy_outputs(plan, kept, options, asked, lambda text: typer.echo(text, err=True))
    data = [difference.to_json_data() for difference in compared]
    for difference in compared:
        typer.echo(str(difference), err=as_json)
    if as_json:
        typer.echo(json.dumps(data, indent=2))
    if not all(difference.within for difference in compared):
        raise typer.Exit(1)
