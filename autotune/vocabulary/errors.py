"""Every error this project raises on purpose, as one tree.

AutotuneError                      exit 1, HTTP 500
├── UsageError                     exit 2, HTTP 400: the request itself is wrong
│   ├── ShapeError                 a problem that does not parse; knows the position
│   └── UnknownNameError           a name not in a known list; knows the nearest spelling
├── NotFoundError                  exit 1, HTTP 404
├── ConflictError                  exit 1, HTTP 409
├── UnauthorizedError              exit 1, HTTP 401
├── ForbiddenError                 exit 1, HTTP 403
├── WrongGpuError                  exit 2, HTTP 409: another GPU than the one asked for
├── GpuNotReadyError               exit 1, HTTP 503: no GPU, busy or throttled
├── DatabaseError                  exit 1, HTTP 503
│   ├── SchemaVersionError         the database is older or newer than this release
│   ├── DamagedDatabaseError       what is stored cannot be read any more, and waiting will not help
│   └── MovedDatabaseError         its file was taken away or replaced while it was open
├── BrokenFileError                exit 1, HTTP 422: a file that can be read, but not understood
├── TableError                     exit 1, HTTP 422: a broken routing table
└── MissingDependencyError         exit 1, HTTP 500: an optional part is not installed

Each carries `hint`: what the reader should do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AutotuneError(Exception):
    """Base of all errors raised on purpose; `hint` says what to do next."""

    exit_code = 1
    http_status = 500
    title = "The work failed"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class UsageError(AutotuneError):
    """The request itself is wrong: fix it and ask again."""

    exit_code = 2
    http_status = 400
    title = "Bad request"


class ShapeError(UsageError):
    """A problem that does not parse. `position` is the 0-based offset of the first bad character."""

    title = "The shape does not parse"

    def __init__(self, message: str, position: int, text: str, grammar: str) -> None:
        super().__init__(f"{message} (at position {position} of {text!r}).", f"Grammar: {grammar}")
        self.position = position
        self.text = text
        self.grammar = grammar


class UnknownNameError(UsageError):
    """A name that is not in the list of known ones."""

    title = "Unknown name"

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(known)
        by_folded = {known_name.casefold(): known_name for known_name in self.known}
        close = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.5)
        self.nearest = by_folded[close[0]] if close else None
        nearest = f"Did you mean {self.nearest!r}? " if self.nearest else ""
        super().__init__(
            f"Unknown {kind} {name!r}.", f"{nearest}Known: {', '.join(self.known)}. {hint}".rstrip()
        )


class NotFoundError(AutotuneError):
    """What was asked for does not exist."""

    http_status = 404
    title = "Not found"


class ConflictError(AutotuneError):
    """The request contradicts what is stored."""

    http_status = 409
    title = "Conflict"


class UnauthorizedError(AutotuneError):
    """No valid credentials came with a call that needs them."""

    http_status = 401
    title = "Unauthorized"


class ForbiddenError(AutotuneError):
    """The credentials are valid but do not cover this call."""

    http_status = 403
    title = "Forbidden"


class WrongGpuError(AutotuneError):
    """The GPU in this machine is not the one that was asked for."""

    exit_code = 2
    http_status = 409
    title = "Wrong GPU"


class GpuNotReadyError(AutotuneError):
    """There is no usable GPU, or it is busy with other work, or throttled."""

    http_status = 503
    title = "GPU not ready"


class DatabaseError(AutotuneError):
    """The database cannot be reached or refuses the work."""

    http_status = 503
    title = "Database error"


class SchemaVersionError(DatabaseError):
    """The database's schema is not the one that this release works with."""

    title = "Database schema version"


class DamagedDatabaseError(DatabaseError):
    """What is stored cannot be read any more: only a copy brings it back."""


class MovedDatabaseError(DatabaseError):
    """The database's file was taken away or replaced while it was open."""


class BrokenFileError(AutotuneError):
    """A file that can be read, but does not hold what it should. One that cannot be read is a UsageError."""

    http_status = 422
    title = "Broken file"


class TableError(AutotuneError):
    """A routing table that is broken: unreadable, of an unknown schema, or with a wrong digest."""

    http_status = 422
    title = "Broken routing table"


class MissingDependencyError(AutotuneError):
    """An optional part of the installation is missing."""

    title = "Missing dependency"


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception is Ctrl-C, or another in which a library wrapped it.

    pydantic calls Python from its own code, and turns whatever is raised there into an error of its own.
    """
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        if isinstance(now, KeyboardInterrupt):
            return True
        seen.add(id(now))
        now = now.__cause__ or now.__context__
    return False
