"""`autotune lab report`: what an experiment says so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from autotune.lab.report import ArmFacts, Comparison, Report


def report(
    folder: Annotated[Path, typer.Argument(help="The folder that `autotune lab run --out` filled.")],
    margin: Annotated[
        float, typer.Option("--margin", min=0, max=1, help="How far from 1 a ratio must be to count.")
    ] = 0.01,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Also draw each metric by concurrency: .svg, .png or .pdf.")
    ] = None,
    cold: Annotated[
        Path | None,
        typer.Option("--cold", help="A --cache cold experiment, to set its first token p95 beside FOLDER's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare each arm with its reference: ratio, interval and verdict by point and metric.

    A ratio is treatment over reference, the median over the rounds; `low` and `high` are its one-sided 95%
    bounds from a bootstrap over rounds. A figure is better or worse only if the whole interval lies beyond
    the margin. Only whole pairs count: every arm measured, on one machine in one boot. Also for experiments
    that are not finished.

    Example: autotune lab report bench-results/lab-fp8_tensor --plot serving.svg
    """
    import json
    from dataclasses import asdict

    from autotune.lab.cold import cold_over_again, cold_over_warm
    from autotune.lab.report import make_report
    from autotune.lab.results import Folder

    found = make_report(Folder(folder), margin)
    for file in found.unusable:
        typer.echo(
            f"warning: {file} is no result of this plan at that place, and counts as missing", err=True
        )
    if plot is not None:
        from autotune.cli.lab_plot import draw

        draw(found, plot)
        typer.echo(f"{plot}: plan {found.plan.digest[:12]}", err=True)
    if cold is not None:
        beside, title = cold_over_warm(Folder(folder), Folder(cold)), "cold caches"
    else:
        beside, title = cold_over_again(Folder(folder)), "cold caches, and the same load again on each server"
    if as_json:
        data = found.to_json_data() | {"cold_over_warm": [asdict(row) for row in beside]}
        typer.echo(json.dumps(data, indent=2))
        return
    _print(found)
    if beside:
        typer.echo(f"\n{title}")
    for row in beside:
        typer.echo(f"  {row}")


def _print(found: Report) -> None:
    plan = found.plan
    typer.echo(
        f"{plan.scheme}, {plan.layers} layers, {plan.cache} caches, servers {plan.servers}: "
        f"{found.pairs} of {found.wanted} pairs measured (plan {plan.digest[:12]})"
    )
    for place in found.places:
        typer.echo(f"measured on: {place}")
    for arm in plan.arms:
        if arm.against is None:
            continue
        for point in plan.points:
            rows = [c for c in found.comparisons if (c.arm, c.point) == (arm.name, point.name)]
            typer.echo(f"\n{arm.name} against {arm.against}, {point}")
            typer.echo(
                f"  {'':<24} {arm.against[:12]:>12} {arm.name[:12]:>12} {'ratio':>7} {'low':>7} {'high':>7}"
                "  verdict"
            )
            if all(row.ratio is None for row in rows):
                typer.echo("  not measured")
                continue
            for row in rows:
                typer.echo(_line(row))
    typer.echo("\nservers")
    for facts in found.arms:
        for text in _facts(facts, bool(found.pairs)):
            typer.echo(f"  {text}")
    typer.echo("\nin words")
    for sentence in found.conclusions():
        typer.echo(f"  {sentence}")


def _line(row: Comparison) -> str:
    if row.ratio is None or row.reference is None or row.treatment is None:
        return f"  {row.label:<24} {'not measured':>12}"
    return (
        f"  {row.label:<24} {row.reference:>12.2f} {row.treatment:>12.2f} {row.ratio:>7.3f} {row.low:>7.3f} "
        f"{row.high:>7.3f}  {row.outcome.value}"
    )


def _facts(facts: ArmFacts, measured: bool) -> list[str]:
    lines = [f"{facts.arm}: {facts.note}" if facts.note else facts.arm]
    for cache, seconds in sorted(facts.ready_s.items()):
        listed = ", ".join(f"{value:.0f}" for value in seconds)
        lines.append(f"  start-up alone, {cache} caches: {listed} s")
    if facts.starts_beside_others:
        lines.append(f"  {facts.starts_beside_others} starts beside other servers: no start-up time")
    if facts.memory_mib is not None:
        lines.append(f"  GPU memory when ready: {facts.memory_mib:.0f} MiB")
    if facts.memory:
        lines.append("  " + ", ".join(f"{name} {value:g}" for name, value in facts.memory.items()))
    compiled = ", ".join(f"{name} {count}" for name, count in sorted(facts.compiles.items()))
    if measured:
        lines.append(f"  compiled while measured: {compiled or 'nothing'}")
    if facts.steps:
        lines.append("  steps by what served them, warm-ups included:")
    lines += [f"  {count:>8}  {name}" for name, count in facts.steps.items()]
    return lines
