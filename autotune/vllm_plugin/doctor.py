"""What the plugin would do on this machine, and why not: the findings behind `autotune vllm doctor`."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

from autotune.client import RoutingClient
from autotune.client.addresses import MASK, shown
from autotune.client.snapshot import DATA_VARIABLE
from autotune.vllm_plugin.base_choice import choose_base
from autotune.vllm_plugin.deployment import Deployment, Layer
from autotune.vllm_plugin.environment import (
    NEWEST,
    OLDEST,
    NoGpuError,
    installed,
    resolve_environment,
    tested,
)
from autotune.vllm_plugin.features import Context, Feature
from autotune.vllm_plugin.own_experts import takes_up_first
from autotune.vllm_plugin.route_reach import outlook
from autotune.vllm_plugin.start import make_features
from autotune.vllm_plugin.static_choice import choose_backend, explicit_choice
from autotune.vllm_plugin.telemetry_sender import make_sender
from autotune.vllm_plugin.tile_choice import covered
from autotune.vocabulary.decide import Query, select_table
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import UsageError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.settings import Settings, unknown_variables
from autotune.vocabulary.table import Kept, Miss, PublishedTable, RoutingTable

READ_VARIABLES = (
    "VLLM_PLUGINS", "VLLM_TUNED_CONFIG_FOLDER", "VLLM_BATCH_INVARIANT", "VLLM_USE_DEEP_GEMM",
    "VLLM_MOE_USE_DEEP_GEMM", "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY",
)  # fmt: skip


@dataclass
class Report:
    """Findings, plain data; `summary` is one sentence for a person."""

    summary: str = ""
    mode: str = ""
    vllm: str | None = None
    vllm_tested: bool = False
    environment: Environment | None = None
    no_environment: str = ""
    source: str = ""
    source_note: str = ""
    digest: str = ""
    warnings: list[str] = field(default_factory=list)
    features: list[dict[str, str]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    model: dict[str, Any] | None = None
    variables: dict[str, str] = field(default_factory=dict)

    def to_json_data(self) -> dict[str, Any]:
        """Plain JSON data."""
        data = asdict(self)
        data["environment"] = self.environment.model_dump(mode="json") if self.environment else None
        return data


@dataclass(frozen=True)
class Serving:
    """How vLLM is started with a model, as far as that decides on its layers.

    Args:
        moe_backend: vLLM's option; `auto` leaves the choice.
        dp: data-parallel size.
    """

    moe_backend: str = "auto"
    lora: bool = False
    dp: int = 1

    def layer(self, problem: Problem) -> Layer:
        """The layer with what vLLM's configuration would say of it."""
        parallel = SimpleNamespace(use_all2all_kernels=False, dp_size=self.dp, enable_eplb=False)
        config = SimpleNamespace(
            in_dtype="torch.bfloat16", intermediate_size_per_partition=problem.N, hidden_dim=problem.K,
            experts_per_token=problem.topk, is_lora_enabled=self.lora, has_bias=False,
            activation=SimpleNamespace(value=problem.act),
            swiglu_limit=None, moe_parallel_config=parallel, num_local_experts=problem.E,
            ep_size=problem.ep, num_experts=problem.E * problem.ep,
        )  # fmt: skip
        return Layer(config, problem.scheme, scheme_known=True)

    @property
    def chosen(self) -> str:
        """Why the backend is the user's choice; empty if it is not."""
        return "" if self.moe_backend == "auto" else f"moe_backend is {self.moe_backend}, as set"


def examine(
    settings: Settings,
    model: tuple[Problem, Checkpoint | None] | None = None,
    serving: Serving | None = None,
) -> Report:
    """Look at this machine as the plugin would, applying nothing beyond this call.

    Works without vLLM and without a GPU; importing vLLM takes some seconds.
    """
    report = Report(mode=settings.mode, vllm=installed("vllm"), variables=_variables())
    report.vllm_tested = report.vllm is not None and tested(report.vllm)
    if report.vllm is None:
        report.no_environment = "vLLM is not installed in this Python"
    else:
        with contextlib.redirect_stdout(sys.stderr):  # vLLM logs to standard output
            report.environment, report.no_environment = _environment()
    client = RoutingClient(settings, report.environment)
    report.source, report.digest = client.snapshot.source, client.snapshot.digest
    report.source_note = _source_note(settings)
    report.warnings += client.snapshot.reasons
    if report.vllm and not report.vllm_tested:
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        report.warnings.append(f"vLLM {report.vllm} is outside {oldest} to {newest}, which the tests cover")
    chosen = os.environ.get("VLLM_PLUGINS")
    if chosen is not None and "autotune" not in chosen.split(","):
        report.warnings.append(f"VLLM_PLUGINS={chosen} leaves this plugin out: add autotune to it")
    report.warnings += [*unknown_variables(os.environ), *_no_telemetry(settings)]
    report.tables = [_table(client, published) for published in client.snapshot.tables]
    with contextlib.redirect_stdout(sys.stderr):
        report.features = _features(client, report)
    if model is not None:
        here = report.environment is not None
        report.model = _model(client, report.features if here else None, serving or Serving(), *model)
    report.summary = _summary(report, settings)
    return report


def unsettled(error: UsageError) -> Report:
    """The report where a setting does not fit: the plugin would stay off, and say the same in its log."""
    report = Report(vllm=installed("vllm"), variables=_variables(), warnings=[str(error)])
    report.vllm_tested = report.vllm is not None and tested(report.vllm)
    report.summary = f"Nothing would be applied: {error}"
    return report


def _no_telemetry(settings: Settings) -> list[str]:
    """Why nothing would be sent although the settings ask for it."""
    if not settings.telemetry:
        return []
    if settings.mode not in ("route", "observe") or not settings.metrics:
        why = f"the mode is {settings.mode}" if settings.metrics else "AUTOTUNE_METRICS is 0"
        return [f"no telemetry would be sent: nothing is counted, as {why}"]
    sender, reason = make_sender(settings, "this GPU")
    del sender  # only its thread would send, and that is not started
    return [f"no telemetry would be sent: {reason}"] if reason else []


def _source_note(settings: Settings) -> str:
    if settings.table is not None:
        read = "AUTOTUNE_TABLE names it"
    elif settings.url is not None:
        read = "AUTOTUNE_URL names it"
    else:
        read = "the tables of this package, as neither AUTOTUNE_TABLE nor AUTOTUNE_URL is set"
    return f"{read}; the plugin reads no database, so not autotune.db either"


def _environment() -> tuple[Environment | None, str]:
    try:
        return resolve_environment(), ""
    except NoGpuError as error:
        return None, str(error)
    except (Exception, SystemExit) as error:
        # As below: a missing libcuda.so.1, say, is an OSError.
        return None, f"vLLM cannot be imported: {error or type(error).__name__}"


def _table(client: RoutingClient, published: PublishedTable) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "problem": str(published.problem),
        "checkpoint": published.checkpoint,
        "measured_on": str(published.environment),
        "revision": published.revision,
        "digest": published.table.digest if published.table else None,
    }
    if client.environment is None:
        return {**entry, "status": "not matched", "detail": "there is no environment to match it with"}
    query = Query(
        published.problem, client.environment, checkpoint=published.checkpoint,
        compatible=client.settings.match == "compatible",
    )  # fmt: skip
    selection = select_table([published], query)
    if selection.miss is not None:
        other = selection.miss is Miss.UNKNOWN_GPU
        return {**entry, "status": "other GPU" if other else selection.miss.value, "detail": selection.detail}
    return {**entry, "status": "inferred" if selection.inferred else "match", "detail": ""}


def _features(client: RoutingClient, report: Report) -> list[dict[str, str]]:
    if client.settings.mode == "off":
        return []
    context = Context(client, Deployment(), client.settings.mode == "observe")
    features = make_features(context)
    return [_feature(feature, report) for feature in features]


def _feature(feature: Feature, report: Report) -> dict[str, str]:
    entry = {"name": feature.name, "title": feature.title}
    if report.vllm is None:
        return {**entry, "state": "disabled", "reason": report.no_environment}
    try:
        importlib.import_module(feature.module)
        feature.install()
        state, reason = feature.state, feature.reason
        feature.unapply()
    except (Exception, SystemExit) as error:
        # vLLM's modules ask their binaries while they are imported, and raise whatever these do.
        return {**entry, "state": "disabled", "reason": f"{feature.module} cannot be imported: {error}"}
    if state == "applied" and report.environment is None:
        return {**entry, "state": "disabled", "reason": f"{report.no_environment}; it fits this vLLM"}
    if state == "applied" and all(t["status"] not in ("match", "inferred") for t in report.tables):
        return {
            **entry,
            "state": "disabled",
            "reason": "no table matches this environment; it fits this vLLM",
        }
    return {**entry, "state": state, "reason": reason}


def _model(
    client: RoutingClient,
    features: list[dict[str, str]] | None,
    serving: Serving,
    problem: Problem,
    checkpoint: Checkpoint | None,
) -> dict[str, Any]:
    """What the mode makes of the model's table.

    Args:
        features: as they stand here; None where the table can only be told of another machine, on which all
            of the mode's features are then taken to apply.
    """
    mode = client.settings.mode
    selection = client.select(problem, checkpoint)
    entry: dict[str, Any] = {"problem": str(problem), "checkpoint": checkpoint}
    if selection.table is None:
        return {**entry, "answer": "fallback", "reason": selection.miss, "detail": selection.detail}
    refused = serving.layer(problem).refusal()
    if refused:
        return {**entry, "answer": "fallback", "reason": Kept.NOT_ROUTED, "detail": refused}
    variable = explicit_choice()
    explicit = serving.chosen or (f"{variable} is set" if variable else "")
    chooses = mode in ("static", "route", "observe")
    if chooses:
        static = choose_backend(client, problem, checkpoint)
        detail = f"{explicit}: vLLM's own order stays" if explicit else static.detail
        backend = None if explicit else static.backend
    else:
        backend, detail = None, f"not in mode {mode}"
    refused = _not_routed(mode, features) or serving.chosen
    routing = None if refused else _routing(client, selection.table, checkpoint)
    return {
        **entry,
        "answer": "route",
        "measured_on": str(selection.table.environment),
        "table_digest": selection.table.digest,
        "tiles": covered(selection.table, backend == "triton" and routing is None)
        if mode in ("tiles", "route", "observe")
        else "",
        "chooses": chooses,
        "static": backend,
        "static_detail": detail,
        "routing": routing,
        "routing_detail": refused,
    }


def _not_routed(mode: str, features: list[dict[str, str]] | None) -> str:
    """Why calls are not routed, as far as this process tells; empty if they would be."""
    if mode not in ("route", "observe"):
        return f"not in mode {mode}"
    router = next((feature for feature in features or () if feature["name"] == "router"), None)
    if router is None:
        return ""
    return "" if router["state"] == "applied" else router["reason"]


def _routing(client: RoutingClient, table: RoutingTable, checkpoint: Checkpoint | None) -> dict[str, Any]:
    base = choose_base(client, table.problem, checkpoint)
    prepared = base.backend or table.routes[0].baseline.backend
    found = outlook(table, prepared, takes_up_first)
    return {
        "base": prepared,
        "base_detail": base.detail,
        "served": [str(entry) for entry in found.entries],
        "declined": [str(left) for left in found.declined],
    }


def _variables() -> dict[str, str]:
    names = sorted(k for k in os.environ if k.startswith("AUTOTUNE_") or k in READ_VARIABLES)
    return {name: _without_secrets(name, os.environ[name]) for name in names}


def _without_secrets(name: str, value: str) -> str:
    if name == DATA_VARIABLE:
        return f"{len(value)} bytes"
    return MASK if "TOKEN" in name and value else shown(value)


def _summary(report: Report, settings: Settings) -> str:
    if settings.mode == "off":
        return "Nothing is applied: AUTOTUNE_MODE=off."
    if report.environment is None:
        return f"Nothing would be applied here: {report.no_environment}."
    applied = [feature["title"] for feature in report.features if feature["state"] == "applied"]
    matching = sum(t["status"] in ("match", "inferred") for t in report.tables)
    if not applied or not matching:
        return "Nothing would be applied: no table matches this environment."
    verb = "would only be logged" if settings.mode == "observe" else "would be applied"
    return f"{matching} of {len(report.tables)} tables {verb}: {'; '.join(applied)}."
