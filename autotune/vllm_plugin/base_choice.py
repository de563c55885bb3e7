"""Which backend vLLM prepares the weights for, where calls are routed: it bounds what the router can add."""

from __future__ import annotations

import bisect

from autotune.client import RoutingClient
from autotune.vllm_plugin.own_experts import takes_up_first
from autotune.vllm_plugin.route_reach import TakesUpFirst, unreachable, wins_elsewhere
from autotune.vllm_plugin.static_choice import Chosen, baseline_backends
from autotune.vocabulary.candidate import BackendName
from autotune.vocabulary.measurement import Checkpoint, vllm_backends
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import Route, RoutingTable, Verdict
from autotune.vocabulary.traffic import TrafficProfile


def choose_base(client: RoutingClient, problem: Problem, checkpoint: Checkpoint | None) -> Chosen:
    """vLLM's own choice, unless its weights keep a winner of the table out.

    Then the backend under which the routed layer takes the least time over `AUTOTUNE_CONCURRENCY`'s
    traffic, if that beats vLLM's own choice by the table's margin.
    """
    selection = client.select(problem, checkpoint)
    table = selection.table
    if table is None:
        return Chosen(None, selection.detail)
    profile = TrafficProfile.concurrency(client.settings.concurrency)
    baselines = baseline_backends(table, profile)
    if len(baselines) != 1:
        return Chosen(None, f"vLLM's own choice at {profile.name} is not one backend")
    (own,) = baselines
    kept_out = kept_out_of(table, own, takes_up_first)
    if not kept_out:
        return Chosen(None, f"every winner of the table runs on the weights of {own}")
    totals = {own: total_us(table, profile, own, own, takes_up_first)}
    for base in sorted(vllm_backends(table.checkpoint) - {own}):
        totals[base] = total_us(table, profile, base, own, takes_up_first)
    known = {base: total for base, total in totals.items() if total is not None}
    if own not in known:
        return Chosen(None, f"the table does not cover {profile.name}")
    best = min(known, key=lambda base: (known[base], base))
    if known[own] < known[best] * (1 + table.margin):
        return Chosen(None, f"{own} with its routes is the fastest at {profile.name}, or within the margin")
    gain = f"{known[own] / known[best]:.2f}x {own} at {profile.name}, which keeps out {', '.join(kept_out)}"
    return Chosen(best, f"{best} for {problem}, with its routes: {gain} (digest {table.digest[:12]})")


def kept_out_of(
    table: RoutingTable, base: BackendName, takes_up_first: TakesUpFirst
) -> tuple[BackendName, ...]:
    """Backends that win somewhere in the table but cannot run on the weights prepared for `base`."""
    winners = {r.winner.backend for r in table.routes if wins_elsewhere(r, base)}
    return tuple(sorted(b for b in winners if unreachable(table.problem, base, b, takes_up_first)))


def total_us(
    table: RoutingTable,
    profile: TrafficProfile,
    base: BackendName,
    own: BackendName,
    takes_up_first: TakesUpFirst,
) -> float | None:
    """Weighted time of the routed layer, microseconds, with the weights prepared for `base`.

    The time at a token count is that of the smallest measured count that is at least as large and at most
    twice as large, as in the static choice. None if one is missing, or `base` was not measured there.

    Args:
        own: what vLLM would choose unaided.
    """
    lasts = [route.last for route in table.routes]
    total = 0.0
    for tokens, weight in profile.weights.items():
        index = bisect.bisect_left(lasts, tokens)
        if index == len(lasts) or table.routes[index].tokens > 2 * tokens:
            return None
        time_us = _routed_us(table, table.routes[index], base, own, takes_up_first)
        if time_us is None:
            return None
        total += weight * time_us
    return total


def _routed_us(
    table: RoutingTable, route: Route, base: BackendName, own: BackendName, takes_up_first: TakesUpFirst
) -> float | None:
    measured = [a.timing.p50_us for a in route.alternatives if a.candidate.backend == base]
    for candidate, timing in ((route.baseline, route.baseline_timing), (route.winner, route.winner_timing)):
        if candidate.backend == base:
            measured.append(timing.p50_us)
    if base != own and not measured:
        return None  # not known to run this layer at all
    winner = route.winner.backend
    if route.verdict is Verdict.WIN and not unreachable(table.problem, base, winner, takes_up_first):
        return route.winner_timing.p50_us
    return route.baseline_timing.p50_us if base == own else min(measured)
