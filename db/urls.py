"""Database URLs: which are taken, and how they are shown."""

from __future__ import annotations

from sqlalchemy import URL, exc, make_url

from autotune.vocabulary.errors import UsageError

FORMS = "Use sqlite:///FILE (sqlite:////FILE for an absolute path) or postgresql://USER@HOST/NAME."


def parse_url(text: str) -> URL:
    """Read a database URL; Postgres without a named driver gets psycopg 3.

    Raises:
        UsageError: for another database, a SQLite database in memory, or text that is no URL.
    """
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        # The text is not repeated: a malformed URL may still carry a password.
        hint = f"Did you mean sqlite:///{text}? {FORMS}" if "://" not in text else FORMS
        raise UsageError("The database URL does not parse.", hint) from error
    kind = url.get_backend_name()
    if kind == "postgres":
        kind = "postgresql"
        url = url.set(drivername=url.drivername.replace("postgres", "postgresql", 1))
    if kind == "postgresql":
        return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url
    if kind != "sqlite":
        raise UsageError(f"{kind} databases are not supported.", FORMS)
    if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
        raise UsageError(
            "A SQLite database needs a file, since what is measured must outlive the process.", FORMS
        )
    return url


def shown(url: URL) -> str:
    """The URL without its password."""
    return url.render_as_string(hide_password=True)
