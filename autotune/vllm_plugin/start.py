"""Starts the plugin in one process: reads the settings and the table, then installs the features."""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from autotune.client import RoutingClient
from autotune.client.snapshot import hand_over
from autotune.vllm_plugin.deep_gemm_warmup import DeepGemmWarmup
from autotune.vllm_plugin.deployment import Deployment
from autotune.vllm_plugin.environment import NoGpuError, installed, resolve_environment, tested
from autotune.vllm_plugin.features import Context, Feature
from autotune.vllm_plugin.gate import FusedGate
from autotune.vllm_plugin.log import first_time, info_once, logger, warn_once
from autotune.vllm_plugin.observer import LayerObserver
from autotune.vllm_plugin.ranks import Ranks
from autotune.vllm_plugin.recompiles import Recompiles
from autotune.vllm_plugin.router import Router
from autotune.vllm_plugin.run_folder import make_folder
from autotune.vllm_plugin.static_backend import Fp8Backend, UnquantizedBackend
from autotune.vllm_plugin.step_metrics import StepMetrics
from autotune.vllm_plugin.tiles import Tiles
from autotune.vllm_plugin.warmup import WarmUpKernels
from autotune.vllm_plugin.worker_counts import WorkerCounts
from autotune.vocabulary.decide import Query, Selection, select_table
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import UsageError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import PublishedTable
from autotune.vocabulary.text import printable

RAY_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
PREFIX = "AUTOTUNE_"


@dataclass
class Plugin:
    """The plugin as it runs in this process."""

    settings: Settings
    context: Context
    environment: Environment
    features: list[Feature] = field(default_factory=list)

    def unapply(self) -> None:
        """Leave vLLM as it was found."""
        global _running
        for feature in reversed(self.features):
            feature.unapply()
        if _running is self:
            _running = None


_running: Plugin | None = None


def running() -> Plugin | None:
    """The plugin of this process, if it is on."""
    return _running


def start(env: MutableMapping[str, str] | None = None) -> Plugin | None:
    """Read the source once, within `AUTOTUNE_TIMEOUT`, and install what the mode asks for.

    Called again in the same process it says so and does nothing. Returns None where nothing is installed;
    the log says why.

    Raises:
        Exception: whatever goes wrong unexpectedly; `register` turns it into a log line.
    """
    global _running
    if _running is not None:
        info_once("loaded twice in this process; the second time does nothing")
        return _running
    environ = os.environ if env is None else env
    # Before anything can end this here: workers elsewhere need the settings all the same.
    _copy_to_ray_workers(environ)
    try:
        settings = Settings.from_env(environ)
    except UsageError as error:
        warn_once(f"disabled, vLLM runs unchanged: {error}")
        return None
    if settings.mode == "off":
        info_once("off (AUTOTUNE_MODE=off)")
        return None
    try:
        environment = resolve_environment()
    except NoGpuError as error:
        info_once(f"nothing to apply: {error}")
        return None
    started = time.monotonic()
    client = RoutingClient(settings, environment)
    snapshot = client.snapshot
    took = time.monotonic() - started
    report(client, took)
    _running = Plugin(settings, Context(client, Deployment(), settings.mode == "observe"), environment)
    _running.features = make_features(_running.context)
    for feature in _running.features:
        feature.install()
    # Workers decide with this very answer, whatever the source says by then.
    failed = hand_over(snapshot, settings, environ)
    if failed:
        warn_once(f"worker processes read the source themselves: {failed}")
    if settings.metrics and settings.mode in ("route", "observe") and snapshot.tables:
        failed = make_folder(environ)
        if failed:
            warn_once(f"vLLM's metrics will not show what serves: {failed}")
    return _running


def make_features(context: Context) -> list[Feature]:
    """The features of a mode, in the order in which they are installed.

    A process without tables tells the other ranks so, and changes nothing.
    """
    decide = _deciding(context) if context.client.snapshot.tables else []
    context.ranks = ranks = Ranks(context, decide)
    return [*decide, ranks]


def _deciding(context: Context) -> list[Feature]:
    mode = context.client.settings.mode
    static = mode in ("static", "route", "observe")
    features: list[Feature] = [
        LayerObserver(context),
        Fp8Backend(context, move=static),
        UnquantizedBackend(context, move=static),
    ]
    if mode in ("tiles", "route", "observe"):
        features.append(Tiles(context))
    if mode in ("route", "observe"):
        context.router = router = Router(context)
        features.append(router)
        if context.client.settings.metrics:
            features += [WorkerCounts(context, router.ledger), StepMetrics(context)]
    if mode == "route":
        features.append(DeepGemmWarmup(context))
        if context.client.settings.gate:
            features.append(FusedGate(context))
    if mode in ("tiles", "route") and context.client.settings.unspecialize and fitting(context.client):
        # vLLM's kernel is every model's: where no table fits, it stays.
        features.append(Recompiles(context))
    if mode in ("tiles", "route") and context.client.settings.warmup_s > 0:
        features.append(WarmUpKernels(context))
    return features


def fitting(client: RoutingClient) -> list[PublishedTable]:
    """The tables that this machine and these libraries may use; none where the environment is not known."""
    chosen = [selection.published for _, selection in _selections(client) if selection.miss is None]
    return [published for published in chosen if published is not None]


def _selections(client: RoutingClient) -> list[tuple[Problem, Selection]]:
    """What there is for each layer that a table is for, in the tables' order; none without an environment.

    Each layer's tables are looked at by themselves: a source may hold thousands.
    """
    if client.environment is None:
        return []
    groups: dict[tuple[Problem, Checkpoint], list[PublishedTable]] = {}
    for published in client.snapshot.tables:
        groups.setdefault((published.problem, published.checkpoint), []).append(published)
    compatible = client.settings.match == "compatible"
    found = []
    for (problem, checkpoint), tables in groups.items():
        query = Query(problem, client.environment, checkpoint=checkpoint, compatible=compatible)
        found.append((problem, select_table(tables, query)))
    return found


def report(client: RoutingClient, took_s: float) -> None:
    """Log one line on what was found, and one warning with each reason for what was not."""
    snapshot, environment = client.snapshot, client.environment
    version = installed("vllm") or ""
    if not tested(version):
        warn_once(f"vLLM {version or 'of unknown version'} is not one that this release was tested with")
    for reason in snapshot.reasons:
        warn_once(reason)
    here = [t for t in snapshot.tables if environment and t.environment.gpu == environment.gpu]
    if snapshot.tables and not here:
        others = ", ".join(sorted({table.environment.gpu for table in snapshot.tables}))
        warn_once(f"no table is for {environment and environment.gpu}; there are tables for {others}")
        for problem in dict.fromkeys(table.problem for table in snapshot.tables):
            first_time(problem, client.select(problem).detail)
    usable = fitting(client)
    of_this_gpu = {table.problem for table in here}
    for problem, selection in _selections(client):
        if selection.miss and problem in of_this_gpu and first_time(problem, selection.detail):
            warn_once(f"{problem}: {selection.miss.value}: {selection.detail}")
    revisions = ", ".join(sorted({str(t.revision) for t in usable if t.revision is not None})) or "none"
    logger().info(
        "autotune: mode %s, source %s, %d of %d tables fit %s, revision %s, digest %s, %d routes, "
        "read in %.2f s",
        client.settings.mode, printable(snapshot.source or "none"), len(usable), len(snapshot.tables),
        environment,
        revisions, snapshot.digest[:12], sum(len(t.table.routes) for t in usable if t.table), took_s,
    )  # fmt: skip


def _copy_to_ray_workers(environ: MutableMapping[str, str]) -> None:
    listed = [part.strip() for part in environ.get(RAY_PREFIXES, "").split(",") if part.strip()]
    if PREFIX not in listed:
        environ[RAY_PREFIXES] = ",".join([*listed, PREFIX])
