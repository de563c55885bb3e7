"""The picture of `autotune lab report`: each metric by concurrency, a line per arm."""

from __future__ import annotations

import statistics as stats
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.lab.report import Report

SHOWN = ("output_throughput", "p50_ttft_ms", "p95_ttft_ms", "p50_itl_ms", "p50_tpot_ms", "p50_e2el_ms")
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Paul Tol's bright scheme, which people with any kind of colour vision tell apart."""


def series(report: Report, metric: str) -> dict[str, list[tuple[int, float]]]:
    """(concurrency, median over the rounds) of each arm, in the order of concurrency."""
    found: dict[str, dict[int, set[float]]] = {}
    for row in report.comparisons:
        if row.metric != metric or row.reference is None or row.treatment is None:
            continue
        for arm, value in ((row.against, row.reference), (row.arm, row.treatment)):
            found.setdefault(arm, {}).setdefault(row.concurrency, set()).add(value)
    return {
        arm: [(concurrency, stats.median(values)) for concurrency, values in sorted(points.items())]
        for arm, points in found.items()
    }


def draw(report: Report, path: Path) -> None:
    """Write the picture.

    Raises:
        MissingDependencyError: without matplotlib.
        UsageError: if the path's ending is none that matplotlib writes.
        AutotuneError: if the path cannot be written.
    """
    from autotune.cli.pictures import picture
    from autotune.lab.report import METRICS

    labels = {metric.name: metric.label for metric in METRICS}
    with picture(path, report.plan.digest, nrows=2, ncols=3, figsize=(11, 6), sharex=True) as (figure, grid):
        for axes, metric in zip(grid.flat, SHOWN, strict=True):
            lines = series(report, metric)
            for arm, color in zip(report.plan.arms, COLORS * len(report.plan.arms), strict=False):
                points = lines.get(arm.name, [])
                axes.plot(
                    *zip(*points, strict=True) if points else ([], []),
                    marker=".",
                    label=arm.name,
                    color=color,
                )
            counts = sorted({point.concurrency for point in report.plan.points})
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.set_title(labels[metric], fontsize="small", loc="left")
            axes.grid(alpha=0.3)
        for axes in grid[-1]:
            axes.set_xlabel("requests in flight")
        grid.flat[0].legend(fontsize="small")
        figure.suptitle(
            f"{report.plan.scheme}, {report.plan.layers} layers, {report.plan.cache} caches, "
            f"{report.pairs} of {report.wanted} pairs",
            fontsize="small",
        )
