"""`autotune lab`: baseline against treatment in live vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from autotune.lab.plan import Plan

lab_app = typer.Typer(no_args_is_help=True, help="Measure what the plugin is worth in live vLLM.")


def add_to(app: typer.Typer) -> None:
    """Add the command group."""
    from autotune.cli.lab_outputs import outputs
    from autotune.cli.lab_report import report

    lab_app.command("report")(report)
    lab_app.command("outputs")(outputs)
    app.add_typer(lab_app, name="lab")


@lab_app.callback()
def _group() -> None:
    """Measure what the plugin is worth in live vLLM."""


@lab_app.command("run")
def run(
    out: Annotated[Path, typer.Option("--out", help="Folder of the experiment. Run again with it to go on.")],
    scheme: Annotated[
        str, typer.Option("--scheme", help="Quantization of the model: fp8_tensor or fp8_block128.")
    ] = "fp8_tensor",
    layers: Annotated[int, typer.Option("--layers", min=1, max=48, help="Layers of the model.")] = 48,
    arms: Annotated[
        str,
        typer.Option(
            "--arms",
            help="What to compare, by commas: stock, stock-again, stock-triton, all, and one factor at a "
            "time: tiles, swap_ab, swap_ab_off, static, no-recompile, route, fused_decode, gate, "
            "fused_triton. What they are compared with is added.",
        ),
    ] = "stock,all",
    concurrency: Annotated[
        str, typer.Option("--concurrency", help="Requests in flight, a point for each.")
    ] = "1,8,32,128",
    prompts: Annotated[
        str, typer.Option("--prompts", help="Prompt tokens SHORTEST:LONGEST, drawn uniformly; or one number.")
    ] = "128:4096",
    output: Annotated[int, typer.Option("--output", min=2, help="New tokens of each request.")] = 128,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests", min=1, help="Requests a measurement. Default: 4 x concurrency, at least 12."
        ),
    ] = None,
    point: Annotated[
        list[str] | None,
        typer.Option(
            "--point",
            help="One more point, CONCURRENCY@PROMPTS or CONCURRENCY@PROMPTS+NEW, such as 1@128 or "
            "1@16384+16; may be repeated.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="How often each pair is measured.")] = 3,
    seed: Annotated[
        int, typer.Option("--seed", help="Of the prompts, 0 to 4294966; each round draws its own.")
    ] = 1,
    servers: Annotated[
        str | None,
        typer.Option(
            "--servers",
            help="together (all resident on one GPU, one driven at a time; default for two arms with warm "
            "caches) or one (one at a time, each with the whole GPU).",
        ),
    ] = None,
    cache: Annotated[
        str,
        typer.Option(
            "--cache",
            help="warm (compile caches kept, one of each per arm) or cold (emptied before every measurement, "
            "with a server started for each, and the same load run once more afterwards).",
        ),
    ] = "warm",
    gpu_memory: Annotated[
        float, typer.Option("--gpu-memory", help="Fraction of the GPU's memory for all resident servers.")
    ] = 0.9,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", help="NAME=VALUE for all arms, or ARM:NAME=VALUE for one; may be repeated."),
    ] = None,
    serve_arg: Annotated[
        list[str] | None,
        typer.Option("--serve-arg", help="One more word for every server's command line; may be repeated."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--table", help="Routing table file. Default: the starter table.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan", help="A plan as JSON (see --show); the options above but --table are then not read."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the plan as JSON and measure nothing.")] = False,
    port: Annotated[
        int, typer.Option("--port", min=1, max=65000, help="The first server's; the others take the next.")
    ] = 8123,
    start_at_once: Annotated[
        bool,
        typer.Option(
            "--start-at-once",
            help="Start servers that stay resident side by side; give them their KV cache with "
            "--serve-arg=--kv-cache-memory-bytes --serve-arg=30G, since they cannot measure it then.",
        ),
    ] = False,
    start_limit: Annotated[
        float, typer.Option("--start-limit", min=1, help="Seconds for a server to get ready.")
    ] = 1200.0,
    point_limit: Annotated[
        float, typer.Option("--point-limit", min=1, help="Seconds for one measurement.")
    ] = 1800.0,
    outputs: Annotated[
        bool,
        typer.Option(
            "--outputs",
            help="When all is measured, also compare greedy outputs, as `autotune lab outputs` does, of the "
            "servers that stay resident.",
        ),
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model-folder", help="Serve this folder instead of writing a model with random weights."
        ),
    ] = None,
) -> None:
    """Serve a Qwen3-30B-A3B with random weights in vLLM, arm by arm in turns, and drive it.

    Each arm is one `vllm serve` that differs only in the plugin, its settings, and its table. For each round
    and each point all arms are measured one after another with `vllm bench serve`, the order rotating. Every
    measurement is one file: a run may be killed at any moment, and the same command goes on where it ended.
    Needs a CUDA GPU, vLLM, and this package in vLLM's environment; a 48-layer server needs 29 GB and its KV
    cache. `autotune lab report FOLDER` then says what came out.

    Example, a quick look: autotune lab run --out quick --layers 12 --concurrency 1 --output 64

    Example, one factor at a time: autotune lab run --out factors --layers 12 --concurrency 1,128
    --arms tiles,swap_ab_off,static,no-recompile,route,fused_decode,gate,fused_triton

    Example, p95 of the first token with a cold cache: autotune lab run --out cold --cache cold
    --concurrency 8
    """
    import signal
    import sys

    from autotune.cli.lab_plan import read_plan, require_model, starter_table, whole_path
    from autotune.lab.outputs import Asked
    from autotune.lab.results import Folder
    from autotune.lab.running import Options, check_arms, run_plan
    from autotune.lab.tables import read_table

    if plan is not None:
        made = read_plan(plan)
        file = table or (starter_table(made.scheme) if made.table else None)
    else:
        file = table or starter_table(scheme)
        made = _plan(
            scheme=scheme, layers=layers, arms=arms, concurrency=concurrency, prompts=prompts, output=output,
            requests=requests, more=point or [], rounds=rounds, seed=seed, servers=servers, cache=cache,
            gpu_memory=gpu_memory, env=env or [], serve_args=serve_arg or [], table=read_table(file).digest,
        )  # fmt: skip
    read = read_table(file) if made.table and file else None
    check_arms(made, read, own_model=model is not None)
    if show:
        typer.echo(made.model_dump_json(indent=1))
        return
    require_model(model)
    # A plain kill would leave the servers to themselves: let every `finally` run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = whole_path(out)
    options = Options(
        port=port, at_once=start_at_once, start_limit_s=start_limit, point_limit_s=point_limit,
        table=file if made.table else None, model=whole_path(model) if model else None,
        outputs=Asked() if outputs else None,
    )  # fmt: skip
    run_plan(made, Folder(out), options, lambda text: typer.echo(text, err=True))
    typer.echo(f"done: autotune lab report {out}", err=True)


def _plan(**given: Any) -> Plan:
    from autotune.cli.lab_plan import make_plan

    return make_plan(**given)
