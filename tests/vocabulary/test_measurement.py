"""Evidence: a time exists only if the status is ok."""

from __future__ import annotations

import json
import math
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.vocabulary.measurement import LATER_FIELDS, Measurement, PairedTimes, Status
from tests.factories import make_measurement, make_times, triton

FAILED = [status for status in Status if status is not Status.OK]


def changed(measurement: Measurement, **fields: object) -> dict[str, object]:
    return {**measurement.model_dump(), **fields}


@pytest.mark.parametrize("status", FAILED)
def test_only_a_passed_candidate_has_times(status: Status) -> None:
    failed = make_measurement(status=status)
    assert failed.times is None
    with pytest.raises(ValidationError, match="forbids times"):
        Measurement.model_validate(changed(failed, times=make_times()))


def test_a_passed_candidate_needs_times() -> None:
    with pytest.raises(ValidationError, match="needs times"):
        Measurement.model_validate(changed(make_measurement(), times=None))


@pytest.mark.parametrize("status", FAILED)
def test_a_failure_needs_a_reason(status: Status) -> None:
    with pytest.raises(ValidationError, match="needs a reason"):
        make_measurement(status=status, reason="")


def test_times_need_a_time_zone() -> None:
    with pytest.raises(ValidationError, match="time zone"):
        Measurement.model_validate(changed(make_measurement(), recorded_at=datetime(2026, 1, 1)))


@pytest.mark.parametrize("routing", ["uniform", "zipf:1", "zipf:1.2"])
def test_known_routings(routing: str) -> None:
    assert make_measurement(routing=routing).routing == routing


@pytest.mark.parametrize("routing", ["", "zipf", "zipf:-1", "zipf:1.", "uniform "])
def test_unknown_routings_are_refused(routing: str) -> None:
    with pytest.raises(ValidationError):
        make_measurement(routing=routing)


def test_json_comes_back_with_the_same_digest() -> None:
    for measurement in (
        make_measurement(compile_s=1.5, relative_error=0.01),
        make_measurement(status=Status.CRASHED),
    ):
        back = Measurement.model_validate_json(measurement.model_dump_json())
        assert back == measurement
        assert back.digest == measurement.digest


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": 16},
        {"candidate": triton(32)},
        {"baseline": triton(128)},
        {"run": "run-2"},
        {"process": 1},
        {"offset_s": 1.0},
        {"candidate_us": 81.0},
        {"seed": 7},
        {"driver": "590.1"},
        {"status": Status.WRONG},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_the_digest_covers_every_field(fields: dict[str, object]) -> None:
    assert make_measurement(**fields).digest != make_measurement().digest  # type: ignore[arg-type]


times = st.floats(min_value=1e-3, max_value=1e6)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=20))
def test_log_ratios_are_of_the_pairs(pairs: list[tuple[float, float]]) -> None:
    paired = make_times().model_copy(
        update={"candidate_us": tuple(c for c, _ in pairs), "baseline_us": tuple(b for _, b in pairs)}
    )
    for ratio, (candidate, baseline) in zip(paired.log_ratios(), pairs, strict=True):
        assert math.exp(ratio) == pytest.approx(baseline / candidate)
        assert (ratio > 0) == (candidate < baseline)


@pytest.mark.parametrize(
    "fields",
    [
        {"candidate_us": (1.0, 2.0)},
        {"candidate_us": ()},
        {"candidate_us": (0.0,)},
        {"candidate_us": (math.inf,)},
        {"baseline_us": (math.nan,)},
        {"p50_us": -1.0},
        {"p95_us": math.inf},
        {"candidate_us": (1.7e308,)},
        {"baseline_us": (5e-324,)},
        {"baseline_p50_us": 2e9},
        {"p50_us": 1.01, "p95_us": 1.2},
        {"baseline_p50_us": 1.9},
        {"p95_us": 0.9},
    ],
)
def test_times_are_paired_finite_and_positive(fields: dict[str, object]) -> None:
    valid = {
        "candidate_us": (1.0,),
        "baseline_us": (2.0,),
        "p50_us": 1.0,
        "p95_us": 1.1,
        "baseline_p50_us": 2.0,
        "baseline_p95_us": 2.1,
    }
    assert PairedTimes.model_validate(valid).log_ratios() == pytest.approx((math.log(2),))
    with pytest.raises(ValidationError):
        PairedTimes.model_validate({**valid, **fields})


def test_fields_that_came_later_leave_older_evidence_as_it_is() -> None:
    plain = make_measurement()
    assert LATER_FIELDS.isdisjoint(plain.model_dump(mode="json"))
    assert LATER_FIELDS.isdisjoint(json.loads(plain.model_dump_json()))
    # The digest that the release before these fields gave this content.
    assert plain.digest == "eca63ac768580bf624bf5596de7f06c5a5ff00c0fd464cf384f5f1222e11218e"
    tuned = Measurement.model_validate({**plain.model_dump(), "tactic": "gemm1 3, gemm2 9", "tuning_s": 41.5})
    assert tuned.digest != plain.digest
    again = Measurement.model_validate_json(tuned.model_dump_json())
    assert (again, again.digest, again.tactic, again.tuning_s) == (tuned, tuned.digest, tuned.tactic, 41.5)


def test_tuning_takes_no_negative_time() -> None:
    with pytest.raises(ValidationError, match="tuning_s"):
        Measurement.model_validate(changed(make_measurement(), tuning_s=-1.0))


@pytest.mark.parametrize(
    ("error", "of_baseline", "good"),
    [
        (0.029, None, True),
        (0.031, None, False),
        (0.049, 0.04, True),
        (0.051, 0.04, False),
        (1e300, 0.01, False),
    ],
)
def test_what_is_wrong_is_never_ok(error: float, of_baseline: float | None, good: bool) -> None:
    """The limit of FP8 is 0.03, or 1.25 times the baseline's own error."""
    fields = {"relative_error": error, "baseline_relative_error": of_baseline}
    if good:
        assert make_measurement(**fields).relative_error == error
        return
    with pytest.raises(ValidationError, match="status ok with a relative error"):
        make_measurement(**fields)
    assert make_measurement(status=Status.WRONG, **fields).relative_error == error


def test_a_token_count_is_a_number() -> None:
    with pytest.raises(ValidationError, match="tokens"):
        make_measurement(tokens=True)
