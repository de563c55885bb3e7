"""One decision from tables and a query: the same rules everywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from autotune.vocabulary.decide import Query, decide, select_table
from autotune.vocabulary.table import Decision, Miss, PublishedTable, Verdict
from autotune.vocabulary.traffic import TrafficProfile
from tests.factories import H100, H200, OTHER_PROBLEM, PROBLEM, RECORDED_AT, make_published, make_table

NEWER = H200.model_copy(update={"vllm": "0.33.0", "triton": "3.9.0"})
HERE = Query(problem=PROBLEM, environment=H200)
ANYWHERE = Query(problem=PROBLEM)


def none_published(revision: int = 2) -> PublishedTable:
    return make_published().model_copy(update={"table": None, "revision": revision})


def reason(tables: list[PublishedTable], query: Query, tokens: int = 8) -> Miss | None:
    decision = decide(tables, query, tokens)
    assert (decision.reason is None) == (decision.answer == "route")
    assert (decision.route is None) == (decision.answer == "fallback")
    assert decision.detail
    return decision.reason


def test_a_win_names_what_to_run() -> None:
    published = make_published(revision=3)
    decision = decide([published], HERE, 8, source="a file")
    assert published.table is not None
    assert decision.answer == "route"
    assert decision.route == published.table.lookup(8)
    assert decision.candidate == published.table.routes[3].winner
    assert (decision.revision, decision.channel, decision.source) == (3, "stable", "a file")
    assert decision.table_digest == published.table.digest
    assert decision.environment == H200
    assert not decision.inferred
    assert "1.250x" in decision.detail


def test_no_benefit_is_a_route_that_keeps_the_baseline() -> None:
    decision = decide([make_published(wins={})], HERE, 8)
    assert decision.answer == "route"
    assert decision.route is not None
    assert decision.route.verdict is Verdict.NO_BENEFIT
    assert decision.candidate is None
    assert "kept" in decision.detail


def test_every_kind_of_miss_is_a_named_fallback() -> None:
    gapped = make_published(tokens=(4, 64), firsts={64: 64})
    assert reason([], HERE) is Miss.UNKNOWN_PROBLEM
    assert reason([gapped], Query(problem=OTHER_PROBLEM, environment=H200)) is Miss.UNKNOWN_PROBLEM
    assert reason([gapped], Query(problem=PROBLEM, environment=H100)) is Miss.UNKNOWN_GPU
    assert reason([gapped], Query(problem=PROBLEM, gpu=H100.gpu)) is Miss.UNKNOWN_GPU
    assert reason([gapped], HERE, 3) is Miss.BELOW_RANGE
    assert reason([gapped], HERE, 65) is Miss.ABOVE_RANGE
    assert reason([gapped], HERE, 8) is Miss.UNMEASURED
    assert reason([gapped], Query(problem=PROBLEM, environment=NEWER)) is Miss.STALE
    assert reason([none_published()], HERE) is Miss.NONE_PUBLISHED
    assert reason([gapped], HERE, 64) is None


def test_nothing_is_taken_from_a_neighbouring_problem() -> None:
    near = PROBLEM.model_copy(update={"K": PROBLEM.K + 128})
    assert reason([make_published(problem=near)], HERE) is Miss.UNKNOWN_PROBLEM
    wide = PROBLEM.model_copy(update={"topk": 4})
    assert reason([make_published(problem=wide)], HERE) is Miss.UNKNOWN_PROBLEM


def test_another_capability_of_the_same_name_is_another_gpu() -> None:
    other = H200.model_copy(update={"capability": "10.0"})
    assert reason([make_published()], Query(problem=PROBLEM, environment=other)) is Miss.UNKNOWN_GPU


def test_a_stale_table_is_applied_only_if_asked_for_and_says_so() -> None:
    tables = [make_published()]
    refused = decide(tables, Query(problem=PROBLEM, environment=NEWER), 8)
    assert refused.candidate is None
    assert "triton 3.9.0 (table: 3.6.0)" in refused.detail
    assert "AUTOTUNE_MATCH=compatible" in refused.detail
    taken = decide(tables, Query(problem=PROBLEM, environment=NEWER, compatible=True), 8)
    assert taken.answer == "route"
    assert taken.inferred


def test_compatible_never_crosses_gpus() -> None:
    query = Query(problem=PROBLEM, environment=H100, compatible=True)
    assert reason([make_published()], query) is Miss.UNKNOWN_GPU


def test_an_exact_table_goes_before_a_newer_stale_one() -> None:
    exact, stale = make_published(revision=1), make_published(environment=NEWER, revision=9)
    query = Query(problem=PROBLEM, environment=H200, compatible=True)
    selection = select_table([stale, exact], query)
    assert selection.published == exact
    assert not selection.inferred


def test_a_person_without_an_environment_gets_the_newest() -> None:
    old, new = make_published(revision=1), make_published(environment=NEWER, revision=2)
    assert select_table([new, old], ANYWHERE).published == new
    decision = decide([old, new], ANYWHERE, 8)
    assert decision.environment == NEWER
    assert not decision.inferred


def test_files_without_revisions_go_by_when_they_were_recorded() -> None:
    old = make_published(make_table(), revision=None)
    new = make_published(
        make_table(environment=NEWER, recorded_at=RECORDED_AT + timedelta(days=1)), revision=None
    )
    assert select_table([new, old], ANYWHERE).published == new
    assert select_table([old, new], ANYWHERE).published == new


def test_moments_in_several_time_zones_are_compared_as_moments() -> None:
    tokyo = timezone(timedelta(hours=9))
    evening = make_table(recorded_at=datetime(2026, 11, 30, 20, 0, tzinfo=UTC))
    # Four hours earlier, although its text is the larger one.
    earlier = make_table(tokens=(8,), recorded_at=datetime(2026, 12, 1, 1, 0, tzinfo=tokyo))
    for order in ((evening, earlier), (earlier, evening)):
        selection = select_table([make_published(t, revision=None) for t in order], Query(PROBLEM))
        assert selection.table == evening


def test_none_is_final_even_beside_an_older_table() -> None:
    assert reason([make_published(revision=1), none_published(2)], HERE) is Miss.NONE_PUBLISHED


def test_the_checkpoint_narrows_and_fp8_goes_first() -> None:
    fp8 = make_published(revision=1)
    compressed = make_published(checkpoint="compressed-tensors", revision=5)
    assert select_table([compressed, fp8], HERE).published == fp8
    named = Query(problem=PROBLEM, environment=H200, checkpoint="compressed-tensors")
    assert select_table([fp8, compressed], named).published == compressed
    assert reason([fp8], named) is Miss.UNKNOWN_PROBLEM


def test_traffic_selects_the_static_choice_and_never_the_route() -> None:
    tables = [make_published(tokens=(8, 64))]
    plain = decide(tables, HERE, 8)
    profile = TrafficProfile(name="steady", weights={8: 1.0, 64: 1.0})
    asked = decide(tables, Query(problem=PROBLEM, environment=H200, profile=profile), 8)
    assert asked.route == plain.route
    assert plain.static is None
    assert asked.static is not None
    assert (asked.static.profile, asked.static.backend) == ("steady", "triton")
    outside = Query(problem=PROBLEM, environment=H200, profile=TrafficProfile.concurrency(128))
    assert decide(tables, outside, 8).static is None


def test_the_order_of_tables_does_not_matter() -> None:
    tables = [make_published(revision=r, environment=e) for r, e in ((1, H200), (2, NEWER), (3, H100))]
    forward, backward = decide(tables, HERE, 8), decide(tables[::-1], HERE, 8)
    assert forward == backward
    assert forward.revision == 1


def test_a_decision_survives_json() -> None:
    for decision in (decide([make_published()], HERE, 8), decide([], HERE, 8)):
        assert Decision.model_validate_json(decision.model_dump_json()) == decision


@pytest.mark.parametrize("tokens", [0, -5])
def test_tokens_must_be_positive(tokens: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        decide([make_published()], HERE, tokens)
