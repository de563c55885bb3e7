"""The one backend of a deployment: what the table says for the traffic that was announced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.client import RoutingClient
from autotune.vocabulary.candidate import VLLM_BACKENDS, BackendName
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import RoutingTable, table_label
from autotune.vocabulary.traffic import TrafficProfile

EXPLICIT_VARIABLES = ("VLLM_USE_DEEP_GEMM", "VLLM_MOE_USE_DEEP_GEMM", "VLLM_TEST_FORCE_FP8_MARLIN")
EXPLICIT_PREFIXES = ("VLLM_USE_FLASHINFER_MOE_", "VLLM_ROCM_USE_AITER")
"""Set by a user who has chosen a backend: the table then stays out of it."""


@dataclass(frozen=True)
class Chosen:
    """The backend to put first; None and why not."""

    backend: BackendName | None
    detail: str


def explicit_choice(env: Mapping[str, str] | None = None) -> str:
    """The environment variable by which a user chose a backend, or an empty string."""
    variables = os.environ if env is None else env
    if variables.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        return "VLLM_BATCH_INVARIANT"
    names = sorted(variables)
    return next((n for n in names if n in EXPLICIT_VARIABLES or n.startswith(EXPLICIT_PREFIXES)), "")


def choose_backend(client: RoutingClient, problem: Problem, checkpoint: Checkpoint | None) -> Chosen:
    """The backend for a layer under `AUTOTUNE_CONCURRENCY`.

    It moves only if its weighted time beats that of every backend that is the baseline at a token count
    of the profile, by the table's margin.
    """
    selection = client.select(problem, checkpoint)
    if selection.table is None:
        return Chosen(None, selection.detail)
    profile = TrafficProfile.concurrency(client.settings.concurrency)
    allowed = VLLM_BACKENDS if checkpoint == "compressed-tensors" else VLLM_BACKENDS - {"vllm_cutlass"}
    static = selection.table.static_choice(profile, allowed)
    if static is None:
        return Chosen(None, f"the table does not cover {profile.name}")
    baselines = baseline_backends(selection.table, profile)
    if static.backend in baselines:
        return Chosen(None, f"{static.backend}, the baseline, is the fastest at {profile.name}")
    best = static.total_us[static.backend]
    for baseline in sorted(baselines):
        total = static.total_us.get(baseline)
        if total is None:
            return Chosen(None, f"the baseline {baseline} was not measured over all of {profile.name}")
        if total < best * (1 + selection.table.margin):
            return Chosen(None, f"{static.backend} is within the margin of the baseline {baseline}")
    revision = selection.published.revision if selection.published else None
    gains = ", ".join(f"{static.total_us[b] / best:.2f}x {b}" for b in sorted(baselines))
    where = table_label(selection.table, revision)
    return Chosen(static.backend, f"{static.backend} for {problem} at {profile.name}: {gains} ({where})")


def baseline_backends(table: RoutingTable, profile: TrafficProfile) -> set[BackendName]:
    """Backends that vLLM would run unaided at the token counts of a profile."""
    found: set[BackendName] = set()
    for tokens in profile.weights:
        # The smallest measured count that is at least as large, as the static choice takes it.
        route = next((r for r in table.routes if r.last >= tokens), None)
        if route is not None:
            found.add(route.baseline.backend)
    return found
