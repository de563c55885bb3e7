"""`autotune models`: the models known by name, or what one model comes to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from autotune.cli.lines import labelled
from autotune.cli.publishing_lookup import refuse_split
from autotune.cli.shipped import Shipped, shipped
from autotune.vocabulary.catalogue import MODELS, resolve_model
from autotune.vocabulary.errors import UsageError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.model import Model

_RANKS = (2, 4, 8, 16)
"""Tensor-parallel sizes for which a recording is looked for beside a model's whole layer."""
EP_HELP = (
    "Expert-parallel size: divides the experts over ranks; each expert stays whole, "
    "so --tp no longer divides N."
)


def add_to(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command("models")(models)


def models(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A name, a Hugging Face id of the list, or a path to a config.json.", show_default=False
        ),
    ] = None,
    tp: Annotated[
        int, typer.Option("--tp", min=1, help="Tensor-parallel size: divides the intermediate size.")
    ] = 1,
    ep: Annotated[int, typer.Option("--ep", min=1, help=EP_HELP)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the known models with their dimensions, scheme and source, or show one model.

    `recorded` names the GPUs for which this installation holds, for this layer as it is split, recorded
    evidence, which `autotune sweep` replays, and a starter table, which answers look-ups; `tp8` where that
    is one rank's of eight (`--tp 8`).

    A path to any Hugging Face config.json shows the problem that it comes to, or why it is refused.
    """
    refuse_split(model, tp, ep)
    shown = MODELS if model is None else (resolve_model(model),)
    # A listing shows layers as published; sizes that one model can be split into need not fit another.
    entries = [_entry(m, tp=tp, ep=ep) if model is not None else _entry(m) for m in shown]
    recorded = shipped()
    there = [[*recorded.get((entry["problem"], entry["checkpoint"]), [])] for entry in entries]
    if (tp, ep) == (1, 1):
        for m, found in zip(shown, there, strict=True):
            found += _of_one_rank(m, recorded)
    for entry, found in zip(entries, there, strict=True):
        entry["recorded"] = [r.to_json_data() for r in found]
    if as_json:
        typer.echo(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    if model is not None:
        entries[0]["recorded"] = there[0]
        for key, value in entries[0].items():
            if value:
                text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
                typer.echo(labelled(key, text))
        return
    _print_table(shown, there)


def _entry(model: Model, *, tp: int = 1, ep: int = 1) -> dict[str, Any]:
    return {
        "name": model.name,
        "title": model.title,
        "problem": str(model.problem(tp=tp, ep=ep)),
        "scheme": model.scheme.value,
        "checkpoint": model.checkpoint,
        "experts": model.experts,
        "intermediate": model.intermediate,
        "hidden": model.hidden,
        "topk": model.topk,
        "activation": model.act,
        "source": model.source,
        "notes": model.notes,
        "aliases": model.aliases,
    }


def _of_one_rank(model: Model, recorded: Mapping[tuple[str, Checkpoint], list[Shipped]]) -> list[Shipped]:
    """What there is of this model's layer as ranks share it, each with the size to ask for."""
    found: list[Shipped] = []
    for tp in _RANKS:
        try:
            problem = model.problem(tp=tp)
        except UsageError:  # not a size that it can be split into
            continue
        there = recorded.get((str(problem), model.checkpoint), [])
        found += [replace(each, tp=tp) for each in there]
    return found


def _print_table(shown: tuple[Model, ...], recorded: list[list[Shipped]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    for heading in ("model", "E", "N", "K", "top-k", "activation", "scheme"):
        justify: Literal["left", "right"] = "right" if heading in ("E", "N", "K", "top-k") else "left"
        table.add_column(heading, justify=justify, overflow="fold")
    table.add_column("recorded", overflow="fold")
    for m, found in zip(shown, recorded, strict=True):
        sizes = (str(size) for size in (m.experts, m.intermediate, m.hidden, m.topk))
        table.add_row(m.name, *sizes, m.act, m.scheme.value, ", ".join(map(str, found)))
    console = Console(highlight=False)
    console.print(table)
    for m in shown:
        typer.echo(labelled(f"{m.name}:", f"{m.title}. Source: {m.source}. {m.notes}".rstrip(), indent=22))
