"""From evidence to routes: verdicts, ranges, alternatives, and that choosing is a pure function."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from autotune.choose.routes import build_table
from autotune.vocabulary.candidate import Candidate, DeepGemmCandidate, FlashinferCutlassCandidate
from autotune.vocabulary.errors import NotFoundError
from autotune.vocabulary.measurement import Measurement, Stage, Status
from autotune.vocabulary.table import Miss, Route, RoutingTable, Verdict
from tests.choose.evidence import finals, screen
from tests.factories import BASELINE, H200, OTHER_PROBLEM, PROBLEM, make_measurement, triton

FAST, OTHER = triton(16, swap_ab=True), triton(32)
FULL = H200.model_copy(update={"flashinfer": "0.6.13"})


def table(measurements: Sequence[Measurement], margin: float = 0.01, **fields: object) -> RoutingTable:
    environment = fields.pop("environment", H200)
    return build_table(
        measurements, problem=PROBLEM, environment=environment, checkpoint="fp8", margin=margin, **fields
    )  # type: ignore[arg-type]


def only(measurements: Sequence[Measurement], margin: float = 0.01) -> Route:
    (route,) = table(measurements, margin).routes
    return route


def at(measurements: Sequence[Measurement], tokens: int) -> Candidate | Miss:
    found = table(measurements).lookup(tokens)
    return found if isinstance(found, Miss) else found.winner


def test_a_win_carries_its_evidence() -> None:
    evidence = finals(8, FAST, 1.25)
    route = only(evidence)
    assert (route.verdict, route.winner, route.first, route.last) == (Verdict.WIN, FAST, 8, 8)
    assert route.speedup is not None
    assert route.speedup.median == pytest.approx(1.25, rel=1e-3)
    assert (route.winner_timing.p50_us, route.baseline_timing.p50_us) == (80.0, 100.0)
    assert route.evidence == tuple(sorted(m.digest for m in evidence))


def test_what_does_not_win_keeps_the_baseline() -> None:
    gemm = DeepGemmCandidate()
    route = only(finals(8, gemm, 0.9))
    assert (route.verdict, route.winner, route.speedup) == (Verdict.NO_BENEFIT, BASELINE, None)
    assert route.evidence
    assert [a.candidate for a in route.alternatives] == [gemm]
    assert route.alternatives[0].speedup.median == pytest.approx(0.9, rel=1e-3)


@pytest.mark.parametrize(("margin", "verdict"), [(0.01, Verdict.WIN), (0.05, Verdict.NO_BENEFIT)])
def test_the_bound_must_clear_the_margin(margin: float, verdict: Verdict) -> None:
    assert only(finals(8, FAST, 1.04), margin).verdict is verdict


def test_fewer_than_three_processes_are_no_win() -> None:
    assert only(finals(8, FAST, 1.5, processes=2)).verdict is Verdict.NO_BENEFIT
    assert only(finals(8, FAST, 1.5, processes=3)).verdict is Verdict.WIN


def test_a_failure_among_the_finals_is_no_win() -> None:
    failed = make_measurement(tokens=8, candidate=FAST, process=3, status=Status.WRONG)
    assert only([*finals(8, FAST, 1.5), failed, *finals(8, OTHER, 0.9)]).verdict is Verdict.NO_BENEFIT


def test_screening_is_no_evidence() -> None:
    route = only([*finals(8, OTHER, 1.1), *(screen(8, FAST, 2.0, process=p) for p in range(3))])
    assert route.winner == OTHER
    with pytest.raises(NotFoundError, match="no final evidence"):
        table([screen(8, FAST, 2.0)])


def test_the_fastest_of_several_wins() -> None:
    assert only([*finals(8, OTHER, 1.2), *finals(8, FAST, 1.3)]).winner == FAST


def test_every_backends_best_is_kept_as_an_alternative() -> None:
    gemm = DeepGemmCandidate()
    route = only([*finals(8, FAST, 1.3), screen(8, gemm, 0.7), screen(8, triton(64, 32), 0.5)])
    assert [(a.candidate, a.final) for a in route.alternatives] == [(gemm, False)]
    kept = only([*finals(8, FAST, 0.9), *finals(8, OTHER, 0.95), *finals(8, gemm, 0.8)])
    # The baseline's own backend is listed only with a candidate that beats the baseline.
    assert [(a.candidate, a.final) for a in kept.alternatives] == [(gemm, True)]
    won = only([*finals(8, gemm, 1.5), *finals(8, FAST, 1.1), *finals(8, OTHER, 0.9)])
    assert [(a.candidate, a.final) for a in won.alternatives] == [(FAST, True)]


def test_a_range_needs_the_winner_measured_at_both_ends() -> None:
    joined = [*finals(8, FAST, 1.3), *finals(32, FAST, 1.2)]
    assert at(joined, 20) == FAST
    apart = [*finals(8, OTHER, 1.3), *finals(32, FAST, 1.2)]
    assert (at(apart, 8), at(apart, 20), at(apart, 32)) == (OTHER, Miss.UNMEASURED, FAST)
    both = [*apart, *finals(8, FAST, 1.05)]
    assert (at(both, 8), at(both, 9)) == (OTHER, FAST)


def test_a_winner_that_loses_at_the_lower_end_holds_only_above() -> None:
    evidence = [*finals(8, FAST, 0.95), *finals(32, FAST, 1.2)]
    assert (at(evidence, 8), at(evidence, 31), at(evidence, 32)) == (BASELINE, Miss.UNMEASURED, FAST)


def test_the_baseline_holds_between_two_counts_where_it_is_kept() -> None:
    evidence = [*finals(8, FAST, 0.9), *finals(32, FAST, 0.9)]
    assert at(evidence, 20) == BASELINE


def test_a_baseline_that_changes_between_two_counts_holds_at_each_alone() -> None:
    """Between them vLLM's own tile is a third one that nobody timed."""
    gemm = DeepGemmCandidate()
    changed = [*finals(8, gemm, 0.9), *finals(32, gemm, 0.9, baseline=OTHER)]
    assert [at(changed, tokens) for tokens in (8, 20, 32)] == [BASELINE, Miss.UNMEASURED, OTHER]


def test_outside_the_measured_counts_there_is_no_answer() -> None:
    evidence = [*finals(8, FAST, 1.3), *finals(32, FAST, 1.2)]
    assert (at(evidence, 7), at(evidence, 33)) == (Miss.BELOW_RANGE, Miss.ABOVE_RANGE)


def mixed() -> list[Measurement]:
    made = [*finals(8, FAST, 1.3), *finals(8, OTHER, 1.28), *finals(32, FAST, 1.01), *finals(64, OTHER, 0.9)]
    made += [screen(t, c, 0.8) for t in (8, 32, 64) for c in (DeepGemmCandidate(), triton(128))]
    return made


def test_shuffled_evidence_gives_the_same_table() -> None:
    first = table(mixed())
    for seed in range(5):
        shuffled = mixed()
        random.Random(seed).shuffle(shuffled)
        assert table(shuffled).digest == first.digest


def test_evidence_of_something_else_is_left_out() -> None:
    first = table(mixed())
    foreign = [
        *finals(8, OTHER, 3.0, problem=OTHER_PROBLEM),
        *finals(8, OTHER, 3.0, checkpoint="compressed-tensors"),
        *finals(8, OTHER, 3.0, routing="zipf:1.2"),
        *finals(8, OTHER, 3.0, environment=H200.model_copy(update={"vllm": "0.26.0"})),
    ]
    assert table([*mixed(), *foreign]).digest == first.digest


def test_only_the_newest_baseline_counts() -> None:
    newer = triton(128)
    evidence = [*finals(8, OTHER, 3.0), *finals(8, FAST, 1.2, baseline=newer, offset_s=3600)]
    route = only(evidence)
    assert (route.baseline, route.winner) == (newer, FAST)


def test_a_screening_that_seems_newer_takes_no_route_away() -> None:
    ahead = screen(8, OTHER, 3.0, baseline=triton(128), offset_s=365 * 86_400)
    route = only([*finals(8, FAST, 1.2), ahead])
    assert (route.baseline, route.winner) == (BASELINE, FAST)


def test_flashinfer_is_in_the_environment_only_if_it_is_used() -> None:
    plain = finals(8, FAST, 1.3, environment=FULL)
    assert table(plain, environment=FULL).environment.flashinfer is None
    used = finals(8, FlashinferCutlassCandidate(), 1.3, environment=FULL)
    assert table(used, environment=FULL).environment.flashinfer == "0.6.13"
    against = finals(8, FAST, 1.3, environment=FULL, baseline=FlashinferCutlassCandidate())
    assert table(against, environment=FULL).environment.flashinfer == "0.6.13"


def test_the_recording_tells_of_the_evidence_cited() -> None:
    made = [*finals(8, FAST, 1.3, offset_s=10), screen(8, triton(128), 0.2, offset_s=99, run="run-2")]
    recording = table(made).recording
    assert (recording.measurements, recording.runs) == (3, ("run-1",))
    assert recording.first == recording.last == made[0].recorded_at
    assert made[0].stage is Stage.FINAL


def test_an_untuned_flashinfer_is_shown_beside_the_tuned_one_and_chosen_never() -> None:
    tuned, untuned = FlashinferCutlassCandidate(), FlashinferCutlassCandidate(tuned=False)
    route = only([*finals(8, untuned, 1.5), *finals(8, tuned, 0.9)])
    assert (route.verdict, route.winner) == (Verdict.NO_BENEFIT, BASELINE)
    assert [a.candidate for a in route.alternatives] == [tuned, untuned]
    # Nor does it stand in the way of the tuned one's win, or vanish beside it.
    route = only([*finals(8, untuned, 1.5), *finals(8, tuned, 1.2)])
    assert route.winner == tuned
    assert [a.candidate for a in route.alternatives] == [untuned]
    # Where the baseline is the tuned one, its untuned state shows what tuning is worth there.
    against = [*finals(8, untuned, 0.2, baseline=tuned), *finals(8, FAST, 1.3, baseline=tuned)]
    route = only(against)
    assert route.winner == FAST
    assert untuned in [a.candidate for a in route.alternatives]
