"""Checks of what a user set for the service, and its address as it may be shown: without a password."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

MASK = "***"
CHANNEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
"""Names that a channel can be published under."""

_ADDRESS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)?(?P<host>[^/?#]*)(?P<rest>.*)", re.IGNORECASE | re.DOTALL
)


def shown(url: str) -> str:
    """A URL with its user name and password masked, also if it is malformed."""
    scheme, user, rest = _split(url)
    return f"{scheme}{MASK}@{rest}" if user else url


def masked(text: str, url: str) -> str:
    """A message without the URL's user name and password."""
    _, user, _ = _split(url)
    if not user:
        return text
    text = text.replace(url, shown(url)).replace(f"{user}@", f"{MASK}@")
    password = user.partition(":")[2]
    for secret in {user, password, unquote(user), unquote(password)}:
        # A shorter one would mask parts of ordinary words, and is no secret.
        if len(secret) > 3:
            text = text.replace(secret, MASK)
    return text


def address_fault(url: str) -> str:
    """Why a URL cannot be a service's, in words that follow it; an empty string if it can."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        # The error quotes parts of the URL, of a password too.
        return "is no URL" if shown(url) != url else f"is no URL: {error}"
    if not url.isprintable() or parts.scheme not in ("http", "https") or not host:
        return "is no http:// or https:// address"
    return ""


def channel_fault(channel: str) -> str:
    """Why a channel cannot have this name; an empty string if it can."""
    return "" if CHANNEL.fullmatch(channel) else f"{channel!r} is no channel name"


def _split(url: str) -> tuple[str, str, str]:
    """Scheme, user with password, and the rest after the `@`."""
    match = _ADDRESS.fullmatch(url)
    assert match is not None
    scheme, host, rest = match["scheme"] or "", match["host"], match["rest"]
    if "@" in host:
        user, _, name = host.rpartition("@")
        return scheme, user, name + rest
    if "@" in rest and ":" in host and not host.rpartition(":")[2].isdigit():
        # A password with an unquoted slash: no port looks like this.
        user, _, name = (host + rest).rpartition("@")
        return scheme, user, name
    return scheme, "", host + rest
