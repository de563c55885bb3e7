"""`autotune db upgrade`, and how every command opens its database."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.vocabulary.errors import MissingDependencyError
from autotune.vocabulary.installing import install_extra
from autotune.vocabulary.settings import Settings

if TYPE_CHECKING:
    from autotune.db.engine import Database

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        help="Database: sqlite:///FILE or postgresql://USER@HOST/NAME. "
        "Default: AUTOTUNE_DB, else sqlite:///autotune.db.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add this module's commands."""
    group = typer.Typer(help="Look after the database.", no_args_is_help=True)
    group.callback()(_group)
    group.command("upgrade")(upgrade)
    app.add_typer(group, name="db")


def open_for_command(db: str | None, *, create: bool = True, adopt: bool = False) -> Database:
    """Open the database that `--db`, AUTOTUNE_DB or the default names; an older one is upgraded.

    Args:
        create: False refuses a SQLite file that does not exist: for commands that only read.
        adopt: put our tables into a database that holds only another program's.

    Raises:
        MissingDependencyError: if SQLAlchemy or Alembic is not installed.
        UsageError: if the URL is malformed.
        DatabaseError: if it cannot be opened.
    """
    require_packages()
    from autotune.db.engine import open_database

    return open_database(db or Settings.from_env().db, create=create, adopt=adopt)


def require_packages() -> None:
    """Make sure that what the database needs is installed.

    Raises:
        MissingDependencyError: naming what to install.
    """
    missing = [name for name in ("sqlalchemy", "alembic") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"Databases need {' and '.join(missing)}, which is not installed.",
            install_extra("tune"),
        )


def _group() -> None:
    """Look after the database."""


def upgrade(db: DatabaseOption = None) -> None:
    """Create the database's tables, or bring an older database up to this
    release.

    Commands that write (sweep, publish, serve) do this by themselves, and
    those that read (revisions, diff, rollback) upgrade a database that is
    there, but make none. Run it to do it at a time of your choosing. It is
    safe beside other processes. A database that a newer release made is
    refused. One that holds only another program's tables is refused by
    every other command; this one puts ours beside them.
    """
    require_packages()
    from sqlalchemy import text

    from autotune.db.schema import VERSION_TABLE, foreign_tables, require_tables

    with open_for_command(db, adopt=True) as database:
        with database.read() as session:
            version = session.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one()
            require_tables(session.connection())
            foreign = foreign_tables(session.connection())
        if foreign:
            names = f"{', '.join(foreign[:5])}{' ...' if len(foreign) > 5 else ''}"
            typer.echo(f"Another program's tables stand beside ours: {names}.", err=True)
        typer.echo(f"{database.name} is up to date (schema {version}).")
