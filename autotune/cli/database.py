"""`autotune db upgrade`, and how every command opens its database."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.vocabulary.errors import MissingDependencyError
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


def open_for_command(db: str | None, *, create: bool = True) -> Database:
    """Open the database that `--db`, AUTOTUNE_DB or the default names; an older one is upgraded.

    Args:
        create: False refuses a SQLite file that does not exist: for commands that only read.

    Raises:
        MissingDependencyError: if SQLAlchemy or Alembic is not installed.
        DatabaseError: if it cannot be opened.
    """
    require_packages()
    from autotune.db.engine import open_database

    return open_database(db or Settings.from_env().db, create=create)


def require_packages() -> None:
    """Make sure that what the database needs is installed.

    Raises:
        MissingDependencyError: naming what to install.
    """
    missing = [name for name in ("sqlalchemy", "alembic") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"Databases need {' and '.join(missing)}, which is not installed.",
            "Install it: pip install 'moe-autotune[tune]'.",
        )


def _group() -> None:
    """Look after the database."""


def upgrade(db: DatabaseOption = None) -> None:
    """Create the database's tables, or bring an older database up to this release.

    Every command does this by itself; run it to do it at a time of your choosing. It is safe beside other
    processes, and a database that a newer release made is refused.
    """
    from autotune.db.schema import VERSION_TABLE

    database = open_for_command(db)
    with database:
        from sqlalchemy import text

        with database.read() as session:
            version = session.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one()
        typer.echo(f"{database.name} is up to date (schema {version}).")
