"""What evidence may hold so that every database and every reader can take it."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from autotune.vocabulary.environment import Environment
from autotune.vocabulary.measurement import Measurement
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.text import counted, printable
from tests.factories import make_measurement


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 2**70},
        {"process": 2**70},
        {"seed": 2**70},
        {"peak_bytes": 2**80},
        {"compile_s": math.inf},
        {"setup_s": math.nan},
        {"relative_error": math.inf},
        {"run": "x" * 201},
        {"run": "a\x00b"},
        {"driver": "\ud800"},
        {"reason": "x" * 2001},
        {"recorded_at": datetime(1, 1, 1, tzinfo=UTC)},
        {"recorded_at": datetime(9999, 12, 31, tzinfo=UTC)},
    ],
)
def test_a_measurement_refuses_what_cannot_be_stored(change: dict[str, object]) -> None:
    data = make_measurement().model_dump(mode="python")
    with pytest.raises(ValidationError):
        Measurement.model_validate({**data, **change})


@pytest.mark.parametrize(
    "change", [{"gpu": "x\x00y"}, {"gpu": "x" * 201}, {"capability": "\u0663.\u0664"}, {"vllm": "\ud800"}]
)
def test_an_environment_refuses_what_cannot_be_stored(change: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Environment.model_validate({"gpu": "NVIDIA_H200", "capability": "9.0", **change})


def test_a_user_without_a_home_gets_a_cache_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(self: object) -> object:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.expanduser", no_home)
    assert "moe-autotune" in str(Settings.from_env({}).cache)


def test_a_librarys_error_becomes_a_reason_that_can_be_stored() -> None:
    reason = printable("\x1b[31mCUDA error\x1b[0m\n\ud800" + "x" * 3000)
    data = make_measurement().model_dump(mode="python")
    stored = Measurement.model_validate({**data, "reason": reason})
    assert "CUDA error" in stored.reason
    assert len(stored.reason) == 500


def test_one_is_singular() -> None:
    assert [counted(n, "token") for n in (0, 1, 2)] == ["0 tokens", "1 token", "2 tokens"]
