"""`autotune route`, and `autotune table show|export|import|lint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from autotune.client import Snapshot
    from autotune.vocabulary.table import RoutingTable

Gpu = Annotated[str, typer.Option("--gpu", help="GPU, such as h200, or vLLM's device name.")]
Model = Annotated[str | None, typer.Option("--model", help="A model's name, or a path to its config.json.")]
Shape = Annotated[str | None, typer.Option("--shape", help="E=..,N=..,K=..,topk=..,scheme=..")]
Tp = Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel size, with --model.")]
Ep = Annotated[int, typer.Option("--ep", min=1, help="Expert-parallel size, with --model.")]
CheckpointOption = Annotated[
    str | None, typer.Option("--checkpoint", help="fp8, compressed-tensors or unquantized.")
]
TableOption = Annotated[
    Path | None,
    typer.Option("--table", help="Read this file or folder. Without --table, --url and --db: see above."),
]
Url = Annotated[str | None, typer.Option("--url", help="Ask this service, instead of --table or --db.")]
Db = Annotated[
    str | None,
    typer.Option("--db", help="Read this database (SQLAlchemy URL), instead of --table or --url."),
]
TargetDb = Annotated[
    str | None, typer.Option("--db", help="SQLAlchemy URL. Default: AUTOTUNE_DB, or sqlite:///autotune.db.")
]
Channel = Annotated[
    str | None,
    typer.Option(
        "--channel", help="Read this channel of a service or database. Default: AUTOTUNE_CHANNEL, or stable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

table_app = typer.Typer(no_args_is_help=True, help="Show, export, import and check routing tables.")


def add_to(app: typer.Typer) -> None:
    """Add `route` and `table`."""
    app.command("route")(route)
    app.add_typer(table_app, name="table")


def route(
    gpu: Gpu,
    tokens: Annotated[int, typer.Option("--tokens", help="Rows entering the layer, at least 1.")],
    model: Model = None,
    shape: Shape = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, max=1_000_000, help="Also name the best single backend."),
    ] = None,
    tp: Tp = 1,
    ep: Ep = 1,
    checkpoint: CheckpointOption = None,
    table: TableOption = None,
    url: Url = None,
    db: Db = None,
    channel: Channel = None,
    as_json: AsJson = False,
) -> None:
    """Say what to run for a token count, and why.

    Source: one of --table, --url, --db; else AUTOTUNE_TABLE, AUTOTUNE_URL, AUTOTUNE_DB in this order; else
    autotune.db in this folder, if it has a published table for this; else the starter tables.
    """
    from autotune.cli.routing_sources import Sources, read_source, select, wanted
    from autotune.vocabulary.decide import Query, decide_selected
    from autotune.vocabulary.errors import UsageError
    from autotune.vocabulary.traffic import TrafficProfile

    if tokens < 1:
        raise UsageError(f"--tokens must be at least 1, not {tokens}.", "Give the rows entering the layer.")
    want = wanted(gpu, model, shape, tp, ep, checkpoint)
    snapshot = read_source(want, Sources(table, url, db, channel))
    tell_reasons(snapshot)
    assert want.problem is not None
    profile = TrafficProfile.concurrency(concurrency) if concurrency else None
    query = Query(want.problem, gpu=want.gpu, checkpoint=want.checkpoint, profile=profile)
    decision = decide_selected(select(snapshot, want), query, tokens, snapshot.source)
    if profile and decision.table_digest and decision.static is None:
        typer.echo(f"warning: the table does not cover {profile.name}: no static choice", err=True)
    if as_json:
        typer.echo(json.dumps(decision.model_dump(mode="json"), indent=2))
        return
    from autotune.cli.routing_views import print_decision

    print_decision(decision)


Tuners = Annotated[
    bool,
    typer.Option(
        "--tuners",
        help="Also what backends' own tuners chose at each count, what that cost, and how it does.",
    ),
]


@table_app.command("show")
def show(
    gpu: Gpu, model: Model = None, shape: Shape = None, tp: Tp = 1, ep: Ep = 1,
    checkpoint: CheckpointOption = None, table: TableOption = None, url: Url = None, db: Db = None,
    channel: Channel = None, tuners: Tuners = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print a routing table: for each range of token counts what runs, how fast, and against what.

    Source: one of --table, --url, --db; else AUTOTUNE_TABLE, AUTOTUNE_URL, AUTOTUNE_DB in this order; else
    autotune.db in this folder, if it has a published table for this; else the starter tables.
    """
    from autotune.cli.routing_sources import Sources, one_table, read_source, wanted
    from autotune.cli.routing_views import print_table
    from autotune.vocabulary.wire import encode_published

    want = wanted(gpu, model, shape, tp, ep, checkpoint)
    snapshot = read_source(want, Sources(table, url, db, channel))
    tell_reasons(snapshot)
    published = one_table(snapshot, want)
    if as_json:
        from autotune.choose.floor import floor_data
        from autotune.cli.tuning_view import tuners_of

        data = {**encode_published(published), "source": snapshot.source}
        assert published.table is not None
        data["floor"] = floor_data(published.table)
        if tuned := tuners_of(published.table, snapshot.source, db):
            data["tuners"] = tuned
        typer.echo(json.dumps(data, indent=2))
        return
    print_table(published, snapshot.source)
    if tuners:
        from autotune.cli.tuning_view import print_tuners, tuners_of

        assert published.table is not None
        print_tuners(tuners_of(published.table, snapshot.source, db), published.table)


@table_app.command("export")
def export(
    gpu: Gpu,
    output_format: Annotated[str, typer.Option("--format", help="json, or vllm for tile files.")] = "json",
    out: Annotated[
        Path | None, typer.Option("--out", help="File (json; default: print) or folder (vllm).")
    ] = None,
    model: Model = None, shape: Shape = None, tp: Tp = 1, ep: Ep = 1, checkpoint: CheckpointOption = None,
    table: TableOption = None, url: Url = None, db: Db = None, channel: Channel = None,
) -> None:  # fmt: skip
    """Write a table as JSON, or tables as files for vLLM's VLLM_TUNED_CONFIG_FOLDER.

    Without --model or --shape, `--format vllm` writes all of the GPU's tables; where the source is
    autotune.db in this folder, the starter tables of the layers on which it says nothing among them.

    Source: one of --table, --url, --db; else AUTOTUNE_TABLE, AUTOTUNE_URL, AUTOTUNE_DB in this order; else
    autotune.db in this folder, if it has a published table for this; else the starter tables.
    """
    from autotune.cli.routing_sources import Sources, no_tables, one_table, read_source, wanted
    from autotune.vocabulary.errors import UnknownNameError

    if output_format not in ("json", "vllm"):
        raise UnknownNameError("format", output_format, ("json", "vllm"))
    want = wanted(gpu, model, shape, tp, ep, checkpoint, required=output_format == "json")
    snapshot = read_source(want, Sources(table, url, db, channel))
    tell_reasons(snapshot)
    if output_format == "json":
        text = json.dumps(one_table(snapshot, want).table.to_json_data(), indent=2) + "\n"
        if out is None:
            typer.echo(text, nl=False)
        else:
            _write(out, text)
        return
    if want.problem is not None:
        tables = [one_table(snapshot, want).table]
    else:
        of_gpu = [
            t for t in snapshot.tables
            if t.environment.gpu == want.gpu and want.checkpoint in (None, t.checkpoint)
        ]  # fmt: skip
        tables = [t.table for t in of_gpu if t.table]
        if out is not None and not tables:
            raise no_tables(snapshot, want, of_gpu)
        for left in (t for t in of_gpu if not t.table):
            typer.echo(
                f"{left.problem} is left out: its channel says that nothing is to be applied", err=True
            )
    _export_vllm(tables, out)


@table_app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="A table's JSON, or a vLLM tuned-config file.")],
    db: TargetDb = None,
    channel: Annotated[
        str | None,
        typer.Option("--channel", help="The channel to point at it. Default: AUTOTUNE_CHANNEL, or stable."),
    ] = None,
    author: Annotated[str | None, typer.Option("--author", help="Default: the user's name.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Default: names the file.")] = None,
) -> None:
    """Publish a table file as a new revision; a vLLM config file is checked and shown only.

    A vLLM file tells neither K nor top-k nor how it was measured, so nothing can be routed by it.
    """
    from autotune.cli.routing_import import publish_file, show_vllm_config, user_name
    from autotune.client.lint import is_file
    from autotune.vocabulary.errors import UsageError
    from autotune.vocabulary.files import require_file

    hint = "Name a table's JSON or a vLLM config file."
    if not is_file(file):
        raise UsageError(f"There is no regular file {file}.", hint)
    require_file(file, hint)
    if file.name.startswith("E="):
        show_vllm_config(file)
        return
    publish_file(file, db, channel, author or user_name(), reason or f"imported from {file.name}")


@table_app.command("lint")
def lint(
    files: Annotated[list[Path], typer.Argument(help="Tables' JSON, or vLLM tuned-config files.")],
) -> None:
    """Check table files: digest, schema, ranges, sanity. Exit code 1 if there are findings in any."""
    from autotune.client.lint import lint_file

    failed = False
    for file in files:
        found = lint_file(file)
        for finding in found:
            typer.echo(f"{file}: {finding}")
        if not found:
            typer.echo(f"{file}: no findings", err=True)
        failed |= bool(found)
    if failed:
        raise typer.Exit(1)


def _export_vllm(tables: list[RoutingTable], out: Path | None) -> None:
    from autotune.client.vllm_files import export_vllm
    from autotune.vocabulary.errors import UsageError

    if out is None:
        raise UsageError("--out is missing.", "Name the folder for VLLM_TUNED_CONFIG_FOLDER.")
    for file in export_vllm(tables):
        _write(out / file.name, file.text)
        for sentence in file.lost:
            typer.echo(f"not in the file: {sentence}", err=True)


def _write(path: Path, text: str) -> None:
    from autotune.client.cache import write_atomically
    from autotune.vocabulary.errors import AutotuneError

    problem = write_atomically(path, text, private=False)
    if problem:
        raise AutotuneError(f"{problem}.", "Choose another place with --out.")
    typer.echo(f"wrote {path}", err=True)


def tell_reasons(snapshot: Snapshot) -> None:
    """Say, beside the answer, what was wrong with the sources asked."""
    for sentence in snapshot.reasons:
        typer.echo(f"warning: {sentence}", err=True)
