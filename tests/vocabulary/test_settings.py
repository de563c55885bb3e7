"""`AUTOTUNE_*` is read in one place, and a wrong value names its variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.vocabulary.errors import UsageError
from autotune.vocabulary.settings import DEFAULT_DB, Settings


def test_nothing_set_gives_the_defaults() -> None:
    settings = Settings.from_env({})
    assert settings.db == DEFAULT_DB == "sqlite:///autotune.db"
    assert (settings.table, settings.url, settings.channel) == (None, None, "stable")
    assert (settings.match, settings.mode, settings.timeout_s, settings.concurrency) == (
        "exact",
        "route",
        2.0,
        8,
    )
    assert settings.cache == Path("~/.cache/moe-autotune").expanduser()


def test_everything_can_be_set() -> None:
    settings = Settings.from_env(
        {
            "AUTOTUNE_DB": "postgresql://host/x",
            "AUTOTUNE_TABLE": "~/table.json",
            "AUTOTUNE_URL": " http://host:8765 ",
            "AUTOTUNE_CHANNEL": "canary",
            "AUTOTUNE_MATCH": "compatible",
            "AUTOTUNE_MODE": "off",
            "AUTOTUNE_TIMEOUT": "0.5",
            "AUTOTUNE_CONCURRENCY": "32",
            "AUTOTUNE_WARMUP_SECONDS": "30",
            "AUTOTUNE_CACHE": "/var/cache/autotune",
            "AUTOTUNE_METRICS": "0",
            "AUTOTUNE_TELEMETRY": "1",
            "AUTOTUNE_TELEMETRY_TOKEN": "abc",
            "OTHER": "ignored",
        }
    )
    assert settings == Settings(
        db="postgresql://host/x",
        table=Path("~/table.json").expanduser(),
        url="http://host:8765",
        channel="canary",
        match="compatible",
        mode="off",
        timeout_s=0.5,
        concurrency=32,
        warmup_s=30.0,
        cache=Path("/var/cache/autotune"),
        metrics=False,
        telemetry=True,
        telemetry_token="abc",
    )


def test_no_seconds_switch_the_warm_up_off() -> None:
    assert Settings.from_env({}).warmup_s == 120.0
    assert Settings.from_env({"AUTOTUNE_WARMUP_SECONDS": "0"}).warmup_s == 0.0


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("yes", True), ("ON", True), ("0", False), ("False", False)]
)
def test_a_switch_takes_the_usual_words(text: str, on: bool) -> None:
    assert Settings.from_env({"AUTOTUNE_UNSPECIALIZE": text}).unspecialize is on
    with pytest.raises(UsageError, match="AUTOTUNE_UNSPECIALIZE must be 0 or 1, not '2'"):
        Settings.from_env({"AUTOTUNE_UNSPECIALIZE": "2"})


def test_empty_counts_as_unset() -> None:
    names = ("DB", "TABLE", "URL", "CHANNEL", "MATCH", "MODE", "TIMEOUT", "CONCURRENCY", "CACHE")
    assert Settings.from_env({f"AUTOTUNE_{name}": " " for name in names}) == Settings.from_env({})


def test_the_cache_follows_xdg() -> None:
    assert Settings.from_env({"XDG_CACHE_HOME": "/x"}).cache == Path("/x/moe-autotune")
    assert Settings.from_env({"XDG_CACHE_HOME": "/x", "AUTOTUNE_CACHE": "/y"}).cache == Path("/y")


@pytest.mark.parametrize("unfit", ["", " ", "relative", "./x"])
def test_an_xdg_folder_that_is_not_absolute_counts_as_unset(unfit: str) -> None:
    expected = Path.home() / ".cache" / "moe-autotune"
    assert Settings.from_env({"XDG_CACHE_HOME": unfit}).cache == expected


def test_settings_made_in_code_have_the_same_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert Settings().cache == Path.home() / ".cache" / "moe-autotune"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert Settings().cache == Path("/x/moe-autotune")


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_CHANNEL", "canary")
    assert Settings.from_env().channel == "canary"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MATCH", "fuzzy"),
        ("MODE", "on"),
        ("TIMEOUT", "soon"),
        ("TIMEOUT", "0"),
        ("TIMEOUT", "-1"),
        ("TIMEOUT", "nan"),
        ("TIMEOUT", "inf"),
        ("WARMUP_SECONDS", "-1"),
        ("CONCURRENCY", "1.5"),
        ("CONCURRENCY", "0"),
    ],
)
def test_a_wrong_value_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"AUTOTUNE_{name}") as caught:
        Settings.from_env({f"AUTOTUNE_{name}": value})
    assert value in str(caught.value)
