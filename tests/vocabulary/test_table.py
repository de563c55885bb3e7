"""Routing tables: ranges, look-ups, digests, and what a changed file gets."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.vocabulary.candidate import DeepGemmCandidate, FlashinferCutlassCandidate
from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.table import Miss, Route, RoutingTable, Speedup, Timing, Verdict, table_label
from autotune.vocabulary.traffic import TrafficProfile
from tests.factories import BASELINE, H100, H200, make_table, triton

GAPPED = make_table(tokens=(4, 8, 64, 128), firsts={64: 64})
"""Routes 4..4, 5..8, a gap, 64..64, 65..128."""


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (1, Miss.BELOW_RANGE),
        (3, Miss.BELOW_RANGE),
        (4, 4),
        (5, 8),
        (8, 8),
        (9, Miss.UNMEASURED),
        (63, Miss.UNMEASURED),
        (64, 64),
        (65, 128),
        (128, 128),
        (129, Miss.ABOVE_RANGE),
        (1 << 40, Miss.ABOVE_RANGE),
    ],
)
def test_a_look_up_answers_inside_a_range_only(tokens: int, expected: int | Miss) -> None:
    found = GAPPED.lookup(tokens)
    assert (found if isinstance(found, Miss) else found.tokens) == expected


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_look_up_needs_a_token(tokens: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        GAPPED.lookup(tokens)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=12, unique=True).map(sorted),
    st.data(),
)
def test_look_ups_agree_with_a_walk_over_the_routes(counts: list[int], data: st.DataObject) -> None:
    alone = data.draw(st.sets(st.sampled_from(counts)))
    table = make_table(tokens=counts, firsts={count: count for count in alone})
    for tokens in range(1, max(counts) + 3):
        walked = [route for route in table.routes if route.first <= tokens <= route.last]
        found = table.lookup(tokens)
        if walked:
            assert [found] == walked
        else:
            assert isinstance(found, Miss)
            assert (found is Miss.BELOW_RANGE) == (tokens < table.routes[0].first)
            assert (found is Miss.ABOVE_RANGE) == (tokens > counts[-1])


def test_overlapping_or_unsorted_routes_are_refused() -> None:
    routes = GAPPED.routes
    for wrong in ((routes[1], routes[0]), (routes[0], routes[0])):
        with pytest.raises(ValidationError, match="overlap or are unsorted"):
            RoutingTable.model_validate({**GAPPED.model_dump(), "routes": wrong})
    with pytest.raises(ValidationError):
        RoutingTable.model_validate({**GAPPED.model_dump(), "routes": ()})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"first": 65}, "does not end"),
        ({"last": 63}, "does not end"),
        ({"tokens": 65}, "does not end"),
        ({"speedup": None}, "a win needs"),
        ({"winner": BASELINE}, "a win needs"),
        ({"verdict": "no_benefit"}, "no_benefit keeps"),
        ({"verdict": "no_benefit", "speedup": None}, "no_benefit keeps"),
        ({"evidence": ()}, "evidence"),
    ],
)
def test_a_route_contradicting_itself_is_refused(fields: dict[str, object], message: str) -> None:
    valid = Route(
        first=33,
        last=64,
        tokens=64,
        verdict=Verdict.WIN,
        winner=triton(16, swap_ab=True),
        baseline=BASELINE,
        speedup=Speedup(median=1.2, low=1.1),
        winner_timing=Timing(p50_us=10, p95_us=11),
        baseline_timing=Timing(p50_us=12, p95_us=13),
        evidence=("a" * 64,),
    )
    with pytest.raises(ValidationError, match=message):
        Route.model_validate({**valid.model_dump(), **fields})


def test_files_and_the_service_carry_the_digest() -> None:
    data = json.loads(json.dumps(GAPPED.to_json_data()))
    back = RoutingTable.from_json_data(data)
    assert back == GAPPED
    assert back.digest == GAPPED.digest == data["digest"]


def test_equal_tables_have_equal_digests_and_others_do_not() -> None:
    assert make_table().digest == make_table().digest
    others = [
        make_table(tokens=(1, 2)),
        make_table(environment=H100),
        make_table(wins={}),
        make_table(runs=("x",)),
    ]
    assert len({table.digest for table in (make_table(), *others)}) == len(others) + 1


def _first_route(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["routes"][0].update({key: value})


TAMPERED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a faster winner": lambda d: d["routes"][0]["winner_timing"].update(p50_us=0.1),
    "another tile": lambda d: d["routes"][0]["winner"]["tile"].update(block_m=128),
    "another GPU": lambda d: d["environment"].update(gpu="NVIDIA_H100_80GB_HBM3"),
    "a lower margin": lambda d: d.update(margin=0.001),
    "a route less": lambda d: d["routes"].pop(),
    "no digest": lambda d: d.pop("digest"),
    "another digest": lambda d: d.update(digest="0" * 64),
    "a digest that is no text": lambda d: d.update(digest=None),
    "a wider range": lambda d: d["routes"][0].update(first=1),
    "a field more": lambda d: d.update(comment="x"),
    "a field less": lambda d: d.pop("recording"),
    "a later schema": lambda d: d.update(schema_version=2),
    "no schema": lambda d: d.pop("schema_version"),
    "text for a number": _first_route("last", "many"),
    "an unknown backend": _first_route("winner", {"backend": "magic"}),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_changed_table_is_refused_whole(how: str) -> None:
    data = copy.deepcopy(make_table(tokens=(4, 8)).to_json_data())
    TAMPERED[how](data)
    with pytest.raises(TableError) as caught:
        RoutingTable.from_json_data(data)
    assert caught.value.hint
    assert caught.value.http_status == 422


@pytest.mark.parametrize("data", [None, [], "table", 3, {}])
def test_other_json_is_no_table(data: object) -> None:
    with pytest.raises(TableError):
        RoutingTable.from_json_data(data)


def test_a_table_without_a_revision_is_not_called_one_of_none() -> None:
    table = make_table()
    assert table_label(table, 7) == f"table revision 7 (digest {table.digest[:12]})"
    assert table_label(table, None) == f"unpublished table (digest {table.digest[:12]})"


def test_a_later_schema_names_the_way_out() -> None:
    with pytest.raises(TableError, match="Upgrade moe-autotune"):
        RoutingTable.from_json_data({**make_table().to_json_data(), "schema_version": 99})


def test_a_field_of_a_later_release_is_told_from_damage() -> None:
    """Its digest fits: nobody changed it, this release only does not know all of it."""
    content = make_table().content()
    content["routes"][0]["winner"]["twist"] = 3
    with pytest.raises(TableError, match=r"later release, at routes\.0\.winner.*twist") as caught:
        RoutingTable.from_json_data({**content, "digest": content_digest(content)})
    assert "Upgrade moe-autotune" in caught.value.hint
    with pytest.raises(TableError, match="malformed at") as caught:
        RoutingTable.from_json_data({**content, "digest": make_table().digest})
    assert "Export it again" in caught.value.hint


def signed(change: Callable[[Any], object]) -> dict[str, Any]:
    """A table that was changed before its digest was made."""
    content = make_table().content()
    change(content)
    return {**content, "digest": content_digest(content)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t["problem"].update(E=0), "malformed at problem.E: Input should be greater than 0."),
        (lambda t: t.update(routes=[]), "malformed at routes: Tuple should have at least 1 item"),
        (
            lambda t: t["routes"][0].update(first=9),
            "malformed at routes.0: Value error, range 9..1 does not end",
        ),
        (lambda t: t["recording"].update(last="1970-01-01T00:00:00Z"), "the recording lies in the year 1970"),
        (
            lambda t: t["environment"].update(gpu="a\x1b[31m"),
            "malformed at environment.gpu: Value error, unp",
        ),
        (lambda t: t.pop("problem"), "malformed at problem: Field required."),
    ],
)
def test_a_fault_with_a_fitting_digest_is_not_called_a_later_release(
    change: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(TableError, match=re.escape(said)) as caught:
        RoutingTable.from_json_data(signed(change))
    assert "later release" not in str(caught.value)
    assert "Export it again" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda t: t.update(twist=1), "twist"),
        (lambda t: t["routes"][0]["winner"].update(backend="fused_quantum"), "routes.0.winner"),
        (lambda t: t["problem"].update(scheme="fp2"), "problem.scheme"),
        (lambda t: t.update(checkpoint="fp2"), "checkpoint"),
        # What a later release adds may come with values that this one does not take.
        (lambda t: (t.update(margin=2), t.update(twist=1)), "twist"),
    ],
)
def test_a_name_that_this_release_does_not_have_is_of_a_later_one(
    change: Callable[[Any], object], where: str
) -> None:
    with pytest.raises(TableError, match=f"of a later release, at {re.escape(where)}: ") as caught:
        RoutingTable.from_json_data(signed(change))
    assert "Upgrade moe-autotune" in caught.value.hint


def test_the_static_choice_is_not_guessed_across_a_gap() -> None:
    table = make_table(tokens=(8, 16, 1024))
    for tokens, known in ((4, True), (3, False), (12, True), (512, True), (500, False), (1025, False)):
        profile = TrafficProfile(name="one", weights={tokens: 1.0})
        assert (table.static_choice(profile) is not None) == known, tokens


def test_the_static_choice_minimizes_the_weighted_time() -> None:
    # The baseline (triton) takes 20 + 1.5 M us and wins 1.25x at 8; deep_gemm takes 1.5 times the baseline.
    table = make_table(tokens=(8, 64), wins={8: 1.25})
    choice = table.static_choice(TrafficProfile(name="x", weights={8: 10.0, 60: 1.0}))
    assert choice is not None
    assert choice.backend == "triton"
    assert choice.total_us["triton"] == pytest.approx(10 * 25.6 + 116.0)
    assert choice.total_us["deep_gemm"] == pytest.approx(10 * 48.0 + 174.0)


def test_the_static_choice_takes_allowed_backends_only() -> None:
    table = make_table(tokens=(8, 64))
    profile = TrafficProfile(name="x", weights={8: 1.0})
    only = table.static_choice(profile, frozenset({"deep_gemm"}))
    assert only is not None
    assert only.backend == "deep_gemm"
    assert table.static_choice(profile, frozenset({"vllm_cutlass"})) is None


def test_the_static_choice_leaves_out_what_was_not_measured_everywhere() -> None:
    full = make_table(tokens=(8, 64))
    without = full.routes[1].model_copy(update={"alternatives": ()})
    table = full.model_copy(update={"routes": (full.routes[0], without)})
    choice = table.static_choice(TrafficProfile(name="x", weights={8: 1.0, 64: 1.0}))
    assert choice is not None
    assert set(choice.total_us) == {"triton"}


def test_there_is_no_static_choice_beyond_the_table() -> None:
    assert (
        make_table(tokens=(8, 64)).static_choice(TrafficProfile(name="x", weights={8: 1.0, 65: 0.1})) is None
    )


def test_a_winner_from_another_backend_counts_for_that_backend() -> None:
    table = make_table(tokens=(8,), winner=DeepGemmCandidate(), wins={8: 2.0})
    choice = table.static_choice(TrafficProfile(name="x", weights={8: 1.0}))
    assert choice is not None
    assert choice.backend == "deep_gemm"
    assert choice.total_us == pytest.approx({"deep_gemm": 16.0, "triton": 32.0})


def test_the_static_choice_knows_flashinfer_only_tuned_and_of_a_named_version() -> None:
    profile = TrafficProfile(name="x", weights={8: 1.0})

    def choice(candidate: FlashinferCutlassCandidate, flashinfer: str | None) -> dict[str, float]:
        environment = H200.model_copy(update={"flashinfer": flashinfer})
        table = make_table(environment=environment, tokens=(8,))
        fast = (
            table.routes[0]
            .alternatives[0]
            .model_copy(update={"candidate": candidate, "timing": Timing(p50_us=1.0, p95_us=1.1)})
        )
        route = table.routes[0].model_copy(update={"alternatives": (fast,)})
        found = table.model_copy(update={"routes": (route,)}).static_choice(profile)
        assert found is not None
        return dict(found.total_us)

    assert choice(FlashinferCutlassCandidate(), "0.6.13")["flashinfer_cutlass"] == 1.0
    assert "flashinfer_cutlass" not in choice(FlashinferCutlassCandidate(), None)
    assert "flashinfer_cutlass" not in choice(FlashinferCutlassCandidate(tuned=False), "0.6.13")


def spoilt(place: str, value: object) -> dict[str, Any]:
    """A table's data with one value changed, under the digest of just that content where it has one."""
    data = json.loads(json.dumps(make_table(tokens=(8,)).content()))
    *path, last = (int(part) if part.isdigit() else part for part in place.split("."))
    inside = data
    for part in path:
        inside = inside[part]
    inside[last] = value
    try:
        digest = content_digest(data)
    except ValueError:
        digest = "0" * 64
    return {**data, "digest": digest}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("routes.0.alternatives.0.timing.p50_us", 1.7e308),
        ("routes.0.alternatives.0.timing.p50_us", 5e-324),
        ("routes.0.winner_timing.p95_us", 1e10),
        ("routes.0.speedup.median", 1e300),
        ("routes.0.last", 10**9),
        ("routes.0.alternatives.0.first", 10**9),
        ("routes.0.alternatives.0.first", 9),
        ("recording.first", "2026-11-29T12:00:00"),
        ("recording.last", "9999-12-31T23:59:59-23:59"),
        ("recording.measurements", 1 << 80),
        ("routing", "whatever"),
        ("routing", "zipf:1.2\x1b[31m"),
        ("routing", "zipf:\u0663"),
        ("routing", "\ud800"),
        ("recording.driver", "\ud800"),
        ("routes.0.evidence", ["\ud800"]),
        ("routes.0.evidence", ["\x1b[31m" * 8]),
        ("routes.0.evidence", ["a" * 10_000]),
        ("routes.0.alternatives.0.evidence", ["\udfff"]),
        ("environment.gpu", "\ud800"),
    ],
)
def test_a_table_that_would_fail_its_readers_is_no_table(place: str, value: object) -> None:
    with pytest.raises(TableError) as caught:
        RoutingTable.from_json_data(spoilt(place, value))
    assert place.split(".")[0] in caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.hint


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("\ud800", 1),
        ("digest", "\ud800" * 9),
        ("schema_version", "\ud800"),
        ("routes.0.\udc00\x1b", 1),
    ],
)
def test_what_is_said_about_a_broken_table_can_be_printed(place: str, value: object) -> None:
    data = {**spoilt("margin", 0.01)}
    *path, last = (int(part) if part.isdigit() else part for part in place.split("."))
    inside: Any = data
    for part in path:
        inside = inside[part]
    inside[last] = value
    with pytest.raises(TableError) as caught:
        RoutingTable.from_json_data(data)
    assert caught.value.message.isprintable()


def test_the_limits_themselves_are_within() -> None:
    for place, value in (
        ("routes.0.alternatives.0.timing.p50_us", 1e9),
        ("routes.0.alternatives.0.timing.p50_us", 1e-3),
        ("routing", "zipf:1.25"),
        ("recording.first", "2026-11-29T12:00:00+09:00"),
    ):
        RoutingTable.from_json_data(spoilt(place, value))
    table = make_table(tokens=(8, 1 << 20))
    slow = Timing(p50_us=1e9, p95_us=1e9)
    route = table.routes[0].model_copy(update={"winner_timing": slow, "baseline_timing": slow})
    slowest = table.model_copy(update={"routes": (route.model_copy(update={"alternatives": ()}),)})
    choice = slowest.static_choice(TrafficProfile(name="x", weights={8: 1e9}))
    assert choice is not None
    assert choice.total_us == {"triton": 1e18}
