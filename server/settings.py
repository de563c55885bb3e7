"""What an operator sets for the service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.server.tokens import Tokens, read_tokens

BODY_LIMIT = 8 * 1024 * 1024
"""Bytes of a request's body; a table takes about 50 kB, a thousand measurements about 2 MB."""


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one service.

    Args:
        tokens: who may write; none means nobody.
        body_limit: bytes that a request's body may have.
        batch_limit: measurements or counts in one request.
    """

    tokens: Tokens = field(default_factory=Tokens)
    body_limit: int = BODY_LIMIT
    batch_limit: int = 2000

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> ServerSettings:
        """Read `AUTOTUNE_TOKENS`.

        Raises:
            UsageError: if it does not parse.
        """
        source = os.environ if env is None else env
        return cls(tokens=read_tokens(source.get("AUTOTUNE_TOKENS", "")))
