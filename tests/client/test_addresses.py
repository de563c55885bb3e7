"""Addresses as they are shown, and the names that channels may have."""

from __future__ import annotations

import pytest

from autotune import publish
from autotune.client.addresses import address_fault, channel_fault, masked, shown
from autotune.vocabulary.errors import UsageError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:8765/x", "http://host:8765/x"),
        ("http://me:pw@host:8765/x", "http://***@host:8765/x"),
        ("http://me@host", "http://***@host"),
        ("http://me:a@b@host/x@y", "http://***@host/x@y"),
        ("http://me:a/b@host", "http://***@host"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("postgresql://me:pw@host/db", "postgresql://***@host/db"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
        ("me:pw@host", "***@host"),
        ("", ""),
    ],
)
def test_what_is_shown(url: str, expected: str) -> None:
    assert shown(url) == expected


def test_a_message_is_masked() -> None:
    url = "http://me:p%40ss@host"
    assert masked(f"no {url} with p@ss", url) == "no http://***@host with ***"
    assert masked("some text", "http://me:me@host") == "some text"


@pytest.mark.parametrize("url", ["garbage", "http://", "ftp://x", "http://[", "http://h:x", "http://h\udcff"])
def test_what_is_no_address(url: str) -> None:
    assert address_fault(url)


@pytest.mark.parametrize("url", ["http://h", "https://me:pw@h:1/x", "HTTP://[::1]:8765"])
def test_what_is_one(url: str) -> None:
    assert address_fault(url) == ""


@pytest.mark.parametrize(
    "name", ["stable", "a", "0.1_b-c", "a" * 63, "a" * 64, "", ".a", "-a", "A", "ä", "a b", "a\n", "a\udcff"]
)
def test_channels_are_named_by_the_rule_of_publishing(name: str) -> None:
    try:
        publish.check_texts("author", "reason", name)
        refused = False
    except UsageError:
        refused = True
    assert bool(channel_fault(name)) is refused
