"""`autotune table plot`: a table as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.routing import Channel, CheckpointOption, Db, Ep, Gpu, Model, Shape, TableOption, Tp, Url

if TYPE_CHECKING:
    from autotune.vocabulary.candidate import Candidate
    from autotune.vocabulary.table import RoutingTable

COLORS = {
    "triton": "#4477aa",
    "vllm_cutlass": "#ee6677",
    "flashinfer_cutlass": "#228833",
    "flashinfer_cutlass untuned": "#bbbbbb",
    "deep_gemm": "#ccbb44",
    "fused_triton": "#aa3377",
    "fused_decode": "#66ccee",
}
"""Paul Tol's bright scheme, which people with any kind of colour vision tell apart."""


def add_to(app: typer.Typer) -> None:
    """Add the command to the group `table`."""
    from autotune.cli.routing import table_app

    table_app.command("plot")(plot)


def plot(
    gpu: Gpu,
    out: Annotated[Path, typer.Option("--out", help="The picture: .svg, .png or .pdf.")],
    model: Model = None,
    shape: Shape = None,
    tp: Tp = 1,
    ep: Ep = 1,
    checkpoint: CheckpointOption = None,
    table: TableOption = None,
    url: Url = None,
    db: Db = None,
    channel: Channel = None,
) -> None:
    """Draw a table: time over the floor by token count, a line per backend, the chosen routes marked.

    The floor is the longer of reading the weights of the experts that uniform routing touches and of the
    arithmetic, at rates that the GPU reaches; on a GPU without known rates times are drawn as they are.

    Example: autotune table plot --gpu h200 --model qwen-moe-fp8 --out layer.svg
    """
    from autotune.cli.routing import tell_reasons
    from autotune.cli.routing_sources import Sources, one_table, read_source, wanted

    want = wanted(gpu, model, shape, tp, ep, checkpoint)
    snapshot = read_source(want, Sources(table, url, db, channel))
    tell_reasons(snapshot)
    published = one_table(snapshot, want)
    assert published.table is not None
    draw(published.table, out)
    typer.echo(f"{out}: table {published.table.digest[:12]}", err=True)


def times_by_backend(table: RoutingTable) -> dict[str, list[tuple[int, float]]]:
    """(tokens, microseconds) of each backend's best candidate, baseline included, in token order."""
    times: dict[str, list[tuple[int, float]]] = {}
    for route in table.routes:
        here: dict[str, float] = {_line(route.baseline): route.baseline_timing.p50_us}
        for candidate, timing in (
            (route.winner, route.winner_timing),
            *((a.candidate, a.timing) for a in route.alternatives),
        ):
            line = _line(candidate)
            here[line] = min(timing.p50_us, here.get(line, timing.p50_us))
        for backend, time_us in here.items():
            times.setdefault(backend, []).append((route.tokens, time_us))
    return times


def _line(candidate: Candidate) -> str:
    return candidate.backend if candidate.servable else str(candidate)


def draw(table: RoutingTable, path: Path) -> None:
    """Write the picture: time over the floor by token count, a line per backend, the chosen route marked.

    Raises:
        MissingDependencyError: without matplotlib.
        UsageError: if the path's ending is none that matplotlib writes.
        AutotuneError: if the path cannot be written.
    """
    from autotune.cli.pictures import picture

    with picture(path, table.digest, figsize=(8, 4.5)) as (_, axes):
        _lines(axes, table)
        axes.set_xscale("log", base=2)
        counts = [route.tokens for route in table.routes]
        shown = [count for count in counts if count & (count - 1) == 0]
        axes.set_xticks(shown, [str(count) for count in shown], rotation=45)
        axes.minorticks_off()
        axes.set_xlabel("tokens entering the layer")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        axes.set_title(f"{table.problem}\n{table.environment}", fontsize="small", loc="left")


def _lines(axes: Any, table: RoutingTable) -> None:
    from autotune.choose.floor import CEILINGS, floor_us
    from autotune.vocabulary.table import Verdict

    ceilings = CEILINGS.get(table.environment.gpu)

    def scaled(tokens: int, time_us: float) -> float:
        return time_us / floor_us(table.problem, tokens, ceilings) if ceilings else time_us

    for backend, points in sorted(times_by_backend(table).items()):
        axes.plot(
            [tokens for tokens, _ in points],
            [scaled(*point) for point in points],
            marker=".",
            label=backend,
            color=COLORS[backend],
        )
    wins = [route for route in table.routes if route.verdict is Verdict.WIN]
    axes.plot(
        [route.tokens for route in wins],
        [scaled(route.tokens, route.winner_timing.p50_us) for route in wins],
        linestyle="none",
        marker="o",
        markersize=9,
        markerfacecolor="none",
        color="black",
        label="chosen over the baseline",
    )
    if ceilings:
        axes.axhline(1.0, color="gray", linestyle="--", label="floor (weights or arithmetic)")
        axes.set_ylabel("time over the floor")
        from matplotlib.ticker import FuncFormatter

        # A tuner that chose badly, or did not run, would squeeze all other lines on a linear scale.
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylim(bottom=0.9)
    else:
        axes.set_ylabel("microseconds per layer call")
        axes.set_yscale("log")
