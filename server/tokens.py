"""Bearer tokens and their scopes. Only SHA-256 digests are kept in memory."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from autotune.vocabulary.errors import ForbiddenError, UnauthorizedError, UnknownNameError, UsageError
from autotune.vocabulary.files import read_text, reason

Scope = Literal["measure", "publish", "telemetry"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
FORM = "AUTOTUNE_TOKENS is TOKEN:SCOPE+SCOPE,... or the path of a file with one such entry a line."
_SHORTEST = 16
_MOST_BYTES = 1 << 20


class Tokens:
    """Who may write what."""

    def __init__(self, scopes: Iterable[tuple[str, frozenset[Scope]]] = ()) -> None:
        self._scopes = {_digest(token): allowed for token, allowed in scopes}

    def __bool__(self) -> bool:
        return bool(self._scopes)

    def __repr__(self) -> str:
        return f"Tokens({len(self._scopes)})"

    def require(self, authorization: str | None, scope: Scope) -> None:
        """Check an `Authorization` header.

        Raises:
            UnauthorizedError: without a known token.
            ForbiddenError: if the token lacks the scope, or no tokens are configured at all.
        """
        if not self:
            raise ForbiddenError(
                "This service takes no writes: no tokens are configured.",
                f"Start it with one that has the scope {scope}. {FORM}",
            )
        kind, _, token = (authorization or "").partition(" ")
        if kind.casefold() != "bearer" or not token.strip():
            raise UnauthorizedError(
                "This call needs a bearer token.",
                f"Send `Authorization: Bearer TOKEN` with one that has the scope {scope}.",
            )
        given = _digest(token.strip())
        # All are compared, each in constant time, so that timing tells nothing about which came close.
        matches = [allowed for digest, allowed in self._scopes.items() if hmac.compare_digest(digest, given)]
        if not matches:
            raise UnauthorizedError(
                "The bearer token is not known here.", "Ask the operator for a valid one."
            )
        if scope not in matches[0]:
            raise ForbiddenError(
                f"The token does not have the scope {scope}.",
                f"It has: {', '.join(sorted(matches[0]))}. Use another token.",
            )


def read_tokens(text: str) -> Tokens:
    """Read AUTOTUNE_TOKENS: entries, or the path of a file of entries ('#' begins a comment there).

    An empty value counts as unset; one of blanks is set, and names no token.

    Raises:
        UsageError: if it does not parse; tokens are never repeated in the message.
    """
    if not text:
        return Tokens()
    text = text.strip()
    if text.startswith(("/", "./", "../", "~")):
        try:
            path = Path(text).expanduser()
        except RuntimeError as error:
            raise UsageError("AUTOTUNE_TOKENS begins with ~, but names no home folder.", FORM) from error
        try:
            lines = read_text(path, _MOST_BYTES).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The token file {path} cannot be read: {reason(error)}.", FORM) from error
        entries = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    else:
        entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        # Set, so somebody means to let others write; a service that takes no writes is not what they want.
        raise UsageError("AUTOTUNE_TOKENS is set but names no token.", FORM)
    read = [_entry(position, entry) for position, entry in enumerate(entries, 1)]
    first: dict[str, int] = {}
    for position, (token, _) in enumerate(read, 1):
        if (before := first.setdefault(token, position)) != position:
            raise UsageError(
                f"Tokens {before} and {position} are the same.",
                "Give it once, with all its scopes: TOKEN:SCOPE+SCOPE.",
            )
    return Tokens(read)


def _entry(position: int, entry: str) -> tuple[str, frozenset[Scope]]:
    token, colon, scopes = entry.rpartition(":")
    if not colon or not token:
        raise UsageError(f"Token {position} has no scopes.", FORM)
    if len(token) < _SHORTEST:
        raise UsageError(
            f"Token {position} is shorter than {_SHORTEST} characters.",
            "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    allowed = [scope.strip() for scope in scopes.split("+")]
    for scope in allowed:
        if scope not in SCOPES:
            raise UnknownNameError(f"scope of token {position}", scope, SCOPES)
    return token, frozenset(allowed)  # type: ignore[arg-type]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
