"""`autotune table plot`: a table as a picture."""

from __future__ import annotations

from collections.abc import Callable
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
    """Draw a table: time by token count and over the floor, a line per backend, what each route runs marked.

    The floor is the longer of reading the weights of the experts that uniform routing touches and of the
    arithmetic, at rates that the GPU reaches; for a GPU without known rates it is left out.

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
    """Write the picture: time by token count, a line per backend, the floor, and what each route runs.

    Below it the same over the floor, where lines that lie close together can be told apart.

    Raises:
        MissingDependencyError: without matplotlib.
        UsageError: if the path's ending is none that matplotlib writes.
        AutotuneError: if the path cannot be written.
    """
    from autotune.choose.floor import CEILINGS, floor_us
    from autotune.cli.pictures import picture

    counts = [route.tokens for route in table.routes]
    ceilings = CEILINGS.get(table.environment.gpu)
    floors = {count: floor_us(table.problem, count, ceilings) for count in counts} if ceilings else {}
    rows = 2 if floors else 1
    layout = {"nrows": rows, "sharex": True, "squeeze": False, "figsize": (8, 1 + 3.5 * rows)}
    with picture(path, table.digest, **layout) as (_, panels):
        upper = panels[0][0]
        _lines(upper, table, lambda tokens, time_us: time_us)
        upper.set_ylabel("microseconds a layer call")
        upper.set_yscale("log")
        if floors:
            upper.plot(counts, list(floors.values()), color="gray", linestyle="--", label=FLOOR)
            _over_the_floor(panels[1][0], table, floors)
        lowest = panels[-1][0]
        lowest.set_xscale("log", base=2)
        shown = [count for count in counts if count & (count - 1) == 0]
        lowest.set_xticks(shown, [str(count) for count in shown], rotation=45)
        lowest.minorticks_off()
        lowest.set_xlabel("tokens entering the layer")
        for (axes,) in panels:
            axes.grid(alpha=0.3)
        upper.legend(fontsize="small")
        upper.set_title(f"{table.problem}\n{table.environment}", fontsize="small", loc="left")


FLOOR = "floor (weights or arithmetic)"


def _over_the_floor(axes: Any, table: RoutingTable, floors: dict[int, float]) -> None:
    from matplotlib.ticker import FuncFormatter

    _lines(axes, table, lambda tokens, time_us: time_us / floors[tokens])
    axes.axhline(1.0, color="gray", linestyle="--")
    axes.set_ylabel("time over the floor")
    # A tuner that chose badly, or did not run, would squeeze all other lines on a linear scale.
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(bottom=0.9)


def _lines(axes: Any, table: RoutingTable, scaled: Callable[[int, float], float]) -> None:
    from autotune.vocabulary.table import Verdict

    for backend, points in sorted(times_by_backend(table).items()):
        axes.plot(
            [tokens for tokens, _ in points],
            [scaled(*point) for point in points],
            marker=".",
            label=backend,
            color=COLORS[backend],
        )
    wins = [(r.tokens, r.winner_timing.p50_us) for r in table.routes if r.verdict is Verdict.WIN]
    kept = [(r.tokens, r.baseline_timing.p50_us) for r in table.routes if r.verdict is not Verdict.WIN]
    for marker, label, points in (("o", "chosen", wins), ("s", "baseline kept", kept)):
        if points:
            axes.plot(
                [tokens for tokens, _ in points],
                [scaled(*point) for point in points],
                linestyle="none",
                marker=marker,
                markersize=9,
                markerfacecolor="none",
                color="black",
                label=label,
            )
