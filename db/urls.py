"""Database URLs: which are taken, and how they are shown."""

from __future__ import annotations

from sqlalchemy import URL, exc, make_url

from autotune.vocabulary.errors import UsageError

_DRIVERS = {
    "sqlite": ("pysqlite",),
    "postgresql": ("psycopg", "psycopg2"),
    "postgres": ("psycopg", "psycopg2"),
}
"""Those that work without an event loop and take the options that are set here."""
FORMS = "Use sqlite:///FILE (sqlite:////FILE for an absolute path) or postgresql://USER@HOST/NAME."


def parse_url(text: str) -> URL:
    """Read a database URL; Postgres without a named driver gets psycopg 3.

    Raises:
        UsageError: for another database or driver, a SQLite database in memory or with options, or text that
            is no URL.
    """
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        # The text is not repeated: a malformed URL may still carry a password.
        hint = f"Did you mean sqlite:///{text}? {FORMS}" if "://" not in text else FORMS
        raise UsageError("The database URL does not parse.", hint) from error
    kind = url.get_backend_name()
    _, plus, driver = url.drivername.partition("+")
    if plus and driver not in _DRIVERS.get(kind, (driver,)):
        raise UsageError(f"The driver {driver!r} is not supported.", f"Leave it out: {FORMS}")
    if kind == "postgres":
        kind = "postgresql"
        url = url.set(drivername=url.drivername.replace("postgres", "postgresql", 1))
    if kind == "postgresql":
        return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url
    if kind != "sqlite":
        raise UsageError(f"{kind} databases are not supported.", FORMS)
    if url.query:
        # The driver takes some of them for a part of the file's name, or fails on their values.
        names = ", ".join(sorted(url.query))
        raise UsageError(f"A SQLite database takes no options ({names}).", f"Leave them out: {FORMS}")
    if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
        raise UsageError(
            "A SQLite database needs a file, since what is measured must outlive the process.", FORMS
        )
    return url


def shown(url: URL) -> str:
    """The URL without its password."""
    return url.render_as_string(hide_password=True)
