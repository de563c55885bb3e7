"""`autotune vllm doctor`: what the plugin would do on this machine, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from autotune.vllm_plugin.doctor import Report

vllm_app = typer.Typer(no_args_is_help=True, help="Look at vLLM as the plugin sees it.")


def add_to(app: typer.Typer) -> None:
    """Add `vllm`."""
    app.add_typer(vllm_app, name="vllm")


@vllm_app.callback()
def _group() -> None:
    """Look at vLLM as the plugin sees it."""


@vllm_app.command("doctor")
def doctor(
    model: Annotated[
        str | None, typer.Option("--model", help="Also say what this model would get (name or config.json).")
    ] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel size, with --model.")] = 1,
    ep: Annotated[int, typer.Option("--ep", min=1, help="Expert-parallel size, with --model.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what the plugin would apply in this environment, and why not.

    Applies nothing. Works without vLLM and without a GPU. The modes `route` and `tiles` + `static` are
    the same in this release.
    """
    from autotune.vllm_plugin.doctor import examine
    from autotune.vllm_plugin.environment import installed
    from autotune.vocabulary.settings import Settings

    settings = Settings.from_env()
    layer = None
    if model is not None:
        from autotune.vocabulary.catalogue import resolve_problem

        layer = resolve_problem(model, tp=tp, ep=ep)
    if installed("vllm"):
        typer.echo("importing vLLM ...", err=True)
    report = examine(settings, layer)
    if as_json:
        typer.echo(json.dumps(report.to_json_data(), indent=2))
    else:
        _print(report)


def _print(report: Report) -> None:
    tested = "" if report.vllm_tested else ", not one that the tests cover"
    lines = [
        report.summary,
        "",
        f"vLLM         {report.vllm + tested if report.vllm else 'not installed'}",
        f"environment  {report.environment or report.no_environment}",
        f"mode         {report.mode}{' (tiles and static choice)' if report.mode == 'route' else ''}",
        f"source       {report.source or 'none'}, digest {report.digest[:12]}",
    ]
    for feature in report.features:
        reason = f": {feature['reason']}" if feature["reason"] else ""
        lines.append(f"feature      {feature['title']}: {feature['state']}{reason}")
    for table in report.tables:
        detail = f": {table['detail']}" if table["detail"] else ""
        lines.append(f"table        {table['problem']} ({table['checkpoint']}): {table['status']}{detail}")
    if report.model:
        lines += [f"model        {key}: {value}" for key, value in report.model.items() if value is not None]
    lines += [f"variable     {name}={value}" for name, value in report.variables.items()]
    lines += [f"warning      {warning}" for warning in report.warnings]
    typer.echo("\n".join(lines))
