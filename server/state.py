"""What the parts of one service share, and how handlers get it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from autotune.db.engine import Database
from autotune.server.metrics import Metrics
from autotune.server.settings import ServerSettings
from autotune.server.starters import WithStarters
from autotune.server.tokens import Scope


@dataclass(frozen=True)
class State:
    """The open database and what is built on it."""

    database: Database
    source: WithStarters
    metrics: Metrics
    settings: ServerSettings


def state(request: Request) -> State:
    """The service's state, put there by `create_app`."""
    found: State = request.app.state.autotune
    return found


Shared = Annotated[State, Depends(state)]


def requires(scope: Scope) -> Callable[[Request], None]:
    """A dependency that lets only tokens with a scope pass."""

    def check(request: Request) -> None:
        state(request).settings.tokens.require(request.headers.get("authorization"), scope)

    return check
