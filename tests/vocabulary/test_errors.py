"""The error tree: exit codes, HTTP statuses and hints."""

from __future__ import annotations

import inspect

import pytest
from pydantic import BaseModel, model_serializer

from autotune.vocabulary import errors
from autotune.vocabulary.errors import AutotuneError, ShapeError, UnknownNameError, UsageError, is_interrupt

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, AutotuneError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_in_the_documented_tree_with_its_codes(kind: type[AutotuneError]) -> None:
    assert errors.__doc__ is not None
    (line,) = (
        line for line in errors.__doc__.splitlines() if f" {kind.__name__} " in f" {line.strip('├└│─ ')} "
    )
    own = {part.strip() for part in line.replace(":", ",").split(",")}
    if "exit" in line:
        assert any(part.endswith(f"exit {kind.exit_code}") for part in own)
        assert f"HTTP {kind.http_status}" in own
    assert kind.title


def test_the_hint_is_part_of_the_text() -> None:
    assert str(AutotuneError("It broke.", "Mend it.")) == "It broke. Mend it."
    assert str(AutotuneError("It broke.")) == "It broke."


def test_bad_usage_exits_2_and_other_failures_1() -> None:
    assert UsageError("x").exit_code == ShapeError("x", 0, "", "").exit_code == 2
    assert AutotuneError("x").exit_code == 1


@pytest.mark.parametrize(
    ("name", "nearest"), [("H20O", "h200"), ("trition", "triton"), ("zzz", None), ("", None)]
)
def test_the_nearest_name_ignores_case(name: str, nearest: str | None) -> None:
    error = UnknownNameError("thing", name, ["h200", "triton"])
    assert error.nearest == nearest
    assert "h200, triton" in error.hint


def test_an_interrupt_is_known_in_what_a_library_wrapped_it_in() -> None:
    """As pydantic does, from a serializer in which Ctrl-C arrived."""

    class Slow(BaseModel):
        x: int = 1

        @model_serializer
        def _interrupted(self) -> dict[str, int]:
            raise KeyboardInterrupt

    with pytest.raises(Exception, match="KeyboardInterrupt") as caught:
        Slow().model_dump()
    assert not isinstance(caught.value, KeyboardInterrupt)
    assert is_interrupt(caught.value)
    assert is_interrupt(KeyboardInterrupt())
    assert not is_interrupt(ValueError("x"))
