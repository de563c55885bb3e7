"""The one place where SQLAlchemy's exceptions become this project's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from autotune.vocabulary.errors import ConflictError, DamagedDatabaseError, DatabaseError, UsageError

_DAMAGES: tuple[tuple[str, str], ...] = (
    ("not a database", "Name another file with --db; this one is left as it is."),
    ("malformed", "Restore the file from a copy, or name another with --db."),
)
_SQLITE_DAMAGES: tuple[tuple[str, str], ...] = (
    ("no such table", "A part of its schema is gone: restore it from a copy, or name another with --db."),
    ("no such column", "A part of its schema is gone: restore it from a copy, or name another with --db."),
    ("could not decode", "It was changed from outside or damaged: restore it from a copy."),
)
_HINTS: tuple[tuple[str, str], ...] = (
    ("unable to open", "Create its folder and check that you may write there, or name another with --db."),
    ("readonly", "Make the file and its folder writable, or name another with --db."),
    ("read-only", "Use an account that may write, or name another database with --db."),
    ("locked", "Another process is writing to it; wait for that and try again."),
    ("disk is full", "Free some space and try again; what was committed is kept."),
    ("already exists", "Another program's tables are in the way; use a database of its own."),
    ("password", "Check the user and password in the URL."),
    ("does not exist", "Create it first (createdb), or correct the URL."),
)
_SQLITE_HINTS: tuple[tuple[str, str], ...] = (
    ("disk i/o", "Check the disk and its free space; if the file is damaged, restore it from a copy."),
    ("", "If the file is damaged, restore it from a copy; or name another with --db."),
)
_MOST_CAUSE = 200
_DEFAULT_HINT = "Check that the server runs and that the URL (--db or AUTOTUNE_DB) names it."


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn SQLAlchemy's errors into DatabaseError, ConflictError or UsageError, with the next step.

    Args:
        name: the database, as shown to people.
    """
    try:
        yield
    except exc.IntegrityError as error:
        raise ConflictError(
            f"{name} refused a change that contradicts what is stored: {_cause(error)}.",
            "Somebody may have changed it at the same time; look again and repeat.",
        ) from error
    except exc.DataError as error:
        raise UsageError(
            f"{name} cannot store a value: {_cause(error)}.", "Correct it and try again."
        ) from error
    except (exc.DBAPIError, exc.TimeoutError) as error:
        cause = _cause(error)
        sqlite = name.startswith("sqlite")
        for part, hint in (*_DAMAGES, *(_SQLITE_DAMAGES if sqlite else ())):
            if part in cause.casefold():
                raise DamagedDatabaseError(f"{name} cannot be used: {cause}.", hint) from error
        hints = (*_HINTS, *(_SQLITE_HINTS if sqlite else (("", _DEFAULT_HINT),)))
        hint = next(text for part, text in hints if part in cause.casefold())
        raise DatabaseError(f"{name} cannot be used: {cause}.", hint) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DamagedDatabaseError(
            f"{name} holds what cannot be read: {error}.",
            "It was damaged or changed from outside; restore it from a copy, or name another with --db.",
        ) from error
    except (exc.StatementError, OverflowError, UnicodeEncodeError) as error:
        # A value that the driver cannot even send: an integer beyond 64 bits, half of a surrogate pair.
        cause = str(getattr(error, "orig", None) or error)[:_MOST_CAUSE].rstrip(".")
        raise UsageError(f"{name} cannot store a value: {cause}.", "Correct it and try again.") from error


def _cause(error: exc.SQLAlchemyError) -> str:
    original = getattr(error, "orig", None) or error
    lines = [line.strip() for line in str(original).splitlines() if line.strip()]
    return (lines[0] if lines else type(original).__name__).rstrip(".")
