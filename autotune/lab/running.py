"""Measures what an experiment still lacks: arms in turns, one result file each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from autotune.lab import deep_gemm, logs
from autotune.lab.children import stop_leftovers
from autotune.lab.client import BenchClient, bench_arguments, client
from autotune.lab.hosting import Host, Hosted
from autotune.lab.machine import Place, this_place
from autotune.lab.model import MODEL_NAMES, write_model
from autotune.lab.outputs import Asked, Difference, compare_outputs
from autotune.lab.plan import Arm, Plan, Point
from autotune.lab.results import Folder, Result, told_files
from autotune.lab.tables import read_table, restricted
from autotune.vocabulary.catalogue import resolve_problem
from autotune.vocabulary.errors import MissingDependencyError, UsageError
from autotune.vocabulary.table import RoutingTable
from autotune.vocabulary.text import counted

Task = tuple[int, Point, Arm]
_SPLITS = re.compile(r"--[a-z-]*parallel|-(tp|dp|ep)\b")
"""Words of vLLM's command line that spread a layer over GPUs."""


@dataclass(frozen=True)
class Options:
    """What a run needs beside its plan; none of it changes what is measured.

    Args:
        port: the first server's; the others and the service take the next ones.
        at_once: servers that stay resident together also start together.
        start_limit_s: seconds for a server to get ready.
        point_limit_s: seconds for one measurement.
        table: file of the routing table.
        model: folder of a model that is served as it is; None writes the one of the plan.
        outputs: when all is measured, compare greedy outputs, too, while the servers are there.
    """

    port: int = 8123
    at_once: bool = False
    start_limit_s: float = 1200.0
    point_limit_s: float = 1800.0
    table: Path | None = None
    model: Path | None = None
    outputs: Asked | None = None


def run_plan(plan: Plan, folder: Folder, options: Options, tell: Callable[[str], None]) -> int:
    """Measure all that is missing, and return how many measurements were made.

    A pair that is not whole is completed where it was begun; on another machine, after a reboot, or with
    other versions all of it is measured again.

    Raises:
        ConflictError: for a folder or port that is taken.
        MissingDependencyError: without vLLM, whose client drives the servers.
        AutotuneError: if a server or a measurement fails. What is finished stays.
    """
    _check(plan, options)
    if find_spec("vllm") is None:
        raise MissingDependencyError(
            "vLLM is not installed here.", "Run this with the Python of vLLM's environment."
        )
    with folder.locked():
        folder.open(plan)
        folder.require_room(plan)
        place = _ready_place(folder, tell)
        for file in folder.unusable(plan):
            tell(f"{file} is no result of this plan at that place: it is measured again")
        tasks = missing(plan, folder, place)
        total = len(plan.arms) * len(plan.points) * plan.rounds
        tell(f"{total - len(tasks)} of {total} measurements are there; {place}")
        asked = None if folder.outputs.exists() else options.outputs
        if not tasks and asked is None:
            return 0
        with _host(plan, folder, options, place, tell) as host:
            if tasks:
                with client(folder.path / "logs" / "client.log") as bench:
                    _Run(plan, folder, options, host, bench, place, tell, total).measure(tasks)
            if asked is not None:
                for difference in compare_outputs(host, plan, folder, asked, tell):
                    tell(str(difference))
    return len(tasks)


def greedy_outputs(
    plan: Plan, folder: Folder, options: Options, asked: Asked, tell: Callable[[str], None]
) -> list[Difference]:
    """Greedy outputs of every arm against its reference's, one request at a time.

    Servers run one at a time, each with all of the plan's GPU memory, or with `options.at_once` all of them,
    each with its share.

    Raises:
        ConflictError: for a folder or port that is taken.
        AutotuneError: if a server fails.
    """
    _check(plan, options)
    with told_files():
        _model(plan, folder, options)
    # Alone on the GPU each server gets what the resident ones share.
    servers = "together" if options.at_once else "one at a time"
    asking = plan.model_copy(update={"servers": servers, "cache": "warm"})
    with folder.locked():
        folder.require_room(plan)
        place = _ready_place(folder, tell)
        with _host(asking, folder, options, place, tell) as host:
            # They differ in what memory they get from those that are measured.
            host.keep_starts = False
            return compare_outputs(host, asking, folder, asked, tell, at_once=options.at_once)


def check_arms(plan: Plan, table: RoutingTable | None, *, own_model: bool = False) -> None:
    """Refuse, before any server starts, an arm that has nothing to show with this table.

    Args:
        own_model: a model of the user's is served, whose layer is not known here.

    Raises:
        UsageError: naming the arm, or that the table is not the plan's or of another layer.
    """
    for arm in plan.arms:
        if arm.table is not None and table is None:
            raise UsageError(f"Arm {arm.name} needs a routing table.", "Give one with --table.")
    if table is None:
        return
    if plan.table != table.digest:
        raise UsageError(
            f"The table of {table.problem} with digest {table.digest[:12]} is not the plan's, "
            f"{plan.table[:12] or 'which uses none'}.",
            "Give the one that the plan was made with: --table FILE.",
        )
    if not own_model:
        _require_layer(plan, table)
    for arm in plan.arms:
        if arm.table is not None and arm.table != "published":
            restricted(table, arm.table)


def _require_layer(plan: Plan, table: RoutingTable) -> None:
    """A table of another layer answers nothing: the arms would show stock vLLM, and the report no benefit.

    Raises:
        UsageError: if the table is not of the layer of the model that is written for the plan.
    """
    name = MODEL_NAMES.get(plan.scheme)
    if name is None:
        return  # no model is written for it, which is another error
    served, checkpoint = resolve_problem(name)
    found = table.problem
    same = found == served
    if any(_SPLITS.match(word) for word in _words(plan)):  # each GPU then has a part of the layer
        whole = ("global_experts", "K", "topk", "scheme", "act")
        same = all(getattr(found, field) == getattr(served, field) for field in whole)
    if not same or table.checkpoint != checkpoint:
        raise UsageError(
            f"The table is of {found} ({table.checkpoint}), and the model that is served has {served} "
            f"({checkpoint}): vLLM would take nothing from it.",
            f"Give a table of {name} with --table, or the model that it is for with --model-folder.",
        )


def _words(plan: Plan) -> list[str]:
    return [*plan.server, *(word for arm in plan.arms for word in arm.serve_args)]


def _check(plan: Plan, options: Options) -> None:
    if options.outputs is not None and (plan.servers != "together" or plan.cache == "cold"):
        raise UsageError(
            "--outputs asks the servers that stay resident, and here they do not.",
            "Run `autotune lab outputs` on the folder afterwards.",
        )
    last = options.port + len(plan.arms)  # the service's
    if last > 65535:
        raise UsageError(
            f"{len(plan.arms)} servers from port {options.port} on need one above 65535.",
            "Give a lower --port.",
        )
    table = None if options.table is None else read_table(options.table)
    check_arms(plan, table, own_model=options.model is not None)
    if plan.scheme not in MODEL_NAMES:
        raise UsageError(f"There is no model for {plan.scheme}.", f"Known: {', '.join(MODEL_NAMES)}.")


def _ready_place(folder: Folder, tell: Callable[[str], None]) -> Place:
    left = stop_leftovers(folder.path / "running.json")
    if left:
        tell(f"stopped {counted(left, 'server')} that an earlier run left behind")
    return this_place()


def _host(plan: Plan, folder: Folder, options: Options, place: Place, tell: Callable[[str], None]) -> Host:
    model = _model(plan, folder, options)
    return Host(plan, folder, place, model, options.table, options.port, options.start_limit_s, tell)


def _model(plan: Plan, folder: Folder, options: Options) -> Path:
    """The model's folder, written if none was given."""
    model = options.model or folder.path / f"model-{plan.scheme}-{plan.layers}"
    if options.model is None:
        write_model(model, plan.scheme, plan.layers)
    return model


def missing(plan: Plan, folder: Folder, place: Place) -> list[Task]:
    """What is to be measured, in order: by round, then by point with the arms in turns.

    Servers that start one at a time serve all points of a round before the next arm starts.
    """
    tasks = []
    for round_ in range(plan.rounds):
        here: list[Task] = []
        for number, point in enumerate(plan.points):
            if folder.pair(plan, round_, point) is not None:
                continue
            found = folder.results(plan, round_, point)
            usable = {name for name, result in found.items() if result.place == place}
            turn = round_ + (number if plan.servers == "together" or plan.cache == "cold" else 0)
            here += [(round_, point, arm) for arm in plan.order(turn) if arm.name not in usable]
        if plan.servers == "one at a time" and plan.cache == "warm":
            order = {arm.name: place_ for place_, arm in enumerate(plan.order(round_))}
            here.sort(key=lambda task: order[task[2].name])
        tasks += here
    return tasks


def round_seed(plan: Plan, round_: int) -> int:
    """The seed of a round's prompts, below 2**32: arms of one pair get the same, rounds get their own."""
    return plan.seed * 1000 + round_


class _Run:
    def __init__(
        self,
        plan: Plan,
        folder: Folder,
        options: Options,
        host: Host,
        bench: BenchClient,
        place: Place,
        tell: Callable[[str], None],
        total: int,
    ) -> None:
        self.plan, self.folder, self.options, self.host, self.bench = plan, folder, options, host, bench
        self.place, self.tell, self.total = place, tell, total

    def measure(self, tasks: list[Task]) -> None:
        begun = time.monotonic()
        if self.plan.servers == "one at a time":
            # Its import would compete with the first server's start, which is measured.
            self.bench.wait_ready(lambda: None, self.options.start_limit_s)
        elif self.plan.cache == "warm":
            self._ready_all(self.plan.arms)
        for number, (round_, point, arm) in enumerate(tasks, 1):
            if self.plan.servers == "one at a time":
                for other in self._others(arm):
                    self.host.stop(other)
            elif arm.name not in self.host.running:  # cold, and the first of its pair
                self._ready_all([task[2] for task in tasks if task[:2] == (round_, point)])
            hosted = self.host.ready(arm)
            self._rehearse(hosted, point, arm)
            result = self._one(hosted, round_, point, arm)
            self.folder.save(result, point, arm)
            if self.plan.cache == "cold":
                self.host.stop(arm)
            left_s = (time.monotonic() - begun) / number * (len(tasks) - number)
            done = self.total - len(tasks) + number
            figures = result.figures
            self.tell(
                f"[{done}/{self.total}] round {round_ + 1}, {point}, {arm.name}: "
                f"{figures['output_throughput']:.1f} tokens/s, first token p50 "
                f"{figures['p50_ttft_ms']:.1f} ms, {len(result.compiles)} compiled; {_duration(left_s)} left"
            )

    def _ready_all(self, arms: Sequence[Arm]) -> None:
        if self.options.at_once:
            self.host.ready_at_once(arms)
            return
        for arm in arms:
            self.host.ready(arm)

    def _others(self, arm: Arm) -> Iterator[Arm]:
        return (other for other in self.plan.arms if other != arm)

    def _rehearse(self, hosted: Hosted, point: Point, arm: Arm) -> None:
        """Run a point unmeasured where it has not run with the arm's caches, unless cold is what is asked."""
        done = self.host.rehearsed(arm, point.name)
        if self.plan.cache == "cold" or done.exists():
            return
        self.tell(f"rehearsing {point} on {arm.name}: it has not run with these caches")
        self._drive(hosted, 0, point)
        done.touch()

    def _drive(self, hosted: Hosted, round_: int, point: Point) -> dict[str, float]:
        seed = round_seed(self.plan, round_)
        ahead = 0 if self.plan.cache == "cold" else None
        arguments = bench_arguments(point, self.host.model, hosted.server.port, seed, ahead)
        return self.bench.measure(arguments, point, self.host.check, self.options.point_limit_s)

    def _one(self, hosted: Hosted, round_: int, point: Point, arm: Arm) -> Result:
        figures, compiles, text = self._driven(hosted, round_, point)
        since_ready = logs.compiles(logs.text_from(hosted.server.log, hosted.ready_at))
        built = deep_gemm.kernels(hosted.deep_gemm_cache)
        cold = self.plan.cache == "cold"
        again, compiles_again, _ = self._driven(hosted, round_, point) if cold else ({}, (), "")
        return Result(
            plan=self.plan.digest,
            round=round_,
            point=point.name,
            arm=arm.name,
            place=self.place,
            start=hosted.start.log,
            figures=figures,
            compiles=compiles,
            compiles_since_ready=len(since_ready) + len(built - hosted.deep_gemm_kernels),
            lines=logs.kept_lines(text),
            again=again,
            compiles_again=compiles_again,
        )

    def _driven(
        self, hosted: Hosted, round_: int, point: Point
    ) -> tuple[dict[str, float], tuple[str, ...], str]:
        """Figures of one load, the kernels compiled meanwhile, and what the server's log said."""
        before = hosted.server.log.stat().st_size
        built_before = deep_gemm.kernels(hosted.deep_gemm_cache)
        figures = self._drive(hosted, round_, point)
        text = logs.text_from(hosted.server.log, before)
        built = deep_gemm.kernels(hosted.deep_gemm_cache)
        return figures, (*logs.compiles(text), *deep_gemm.compiled(built_before, built)), text


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
