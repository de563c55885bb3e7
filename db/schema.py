"""The schema's version: what the database has, what this release needs, and the way between them."""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.schema import SchemaItem

from autotune.db.models import Base
from autotune.vocabulary.errors import DamagedDatabaseError, DatabaseError, SchemaVersionError

VERSION_TABLE = "moe_autotune_version"
"""Not Alembic's default name: Optuna's storage brings that one into the same database."""

OPTUNA_TABLES = frozenset(
    {
        "alembic_version", "version_info", "studies", "study_directions", "study_user_attributes",
        "study_system_attributes", "trials", "trial_user_attributes", "trial_system_attributes",
        "trial_params", "trial_values", "trial_intermediate_values", "trial_heartbeats",
    }
)  # fmt: skip
"""Of Optuna's storage, which may share a database with ours."""

_UPGRADE_LOCK = 0x6D6F6561  # "moea": any number that no other program takes as its advisory lock


class SchemaState(StrEnum):
    CURRENT = "current"
    EMPTY = "empty"
    OLDER = "older"


def is_ours(item: SchemaItem, name: str | None, kind: str, reflected: bool, compare_to: object) -> bool:
    """Whether a reflected object belongs to this project; Optuna's tables may stand beside ours."""
    return not (kind == "table" and reflected and name not in Base.metadata.tables)


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's settings, without a file: the migrations are found in the installed package."""
    config = Config()
    config.set_main_option("script_location", "autotune:alembic")
    config.attributes["connection"] = connection
    return config


@cache
def released() -> tuple[frozenset[str], frozenset[str]]:
    """The schemas that this release knows, and the newest of them."""
    scripts = ScriptDirectory.from_config(configuration())
    return frozenset(s.revision for s in scripts.walk_revisions()), frozenset(scripts.get_heads())


def inspect_schema(connection: Connection) -> SchemaState:
    """Compare the database with this release.

    Raises:
        SchemaVersionError: if a newer release made it, or it does not say.
    """
    if not inspect(connection).has_table(VERSION_TABLE):
        return SchemaState.EMPTY
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    found = set(context.get_current_heads())
    if not found:
        if Base.metadata.tables.keys() & set(inspect(connection).get_table_names()):
            raise SchemaVersionError(
                "The database does not say any more which schema it has, though its tables are there.",
                "It was changed from outside: restore it from a copy, or name another with --db.",
            )
        return SchemaState.EMPTY
    known, newest = released()
    if unknown := found - known:
        raise SchemaVersionError(
            f"The database has schema {', '.join(sorted(unknown))}, which this release does not know: "
            "a newer release made it.",
            "Upgrade the package: git pull in its clone, then pip install --upgrade . there.",
        )
    return SchemaState.CURRENT if found == newest else SchemaState.OLDER


def foreign_tables(connection: Connection) -> list[str]:
    """Names of tables that are neither ours nor Optuna's."""
    names = set(inspect(connection).get_table_names()) - {VERSION_TABLE}
    # Without our version table, one of a name like ours is another program's too.
    ours = frozenset() if inspect_schema(connection) is SchemaState.EMPTY else Base.metadata.tables.keys()
    return sorted(names - ours - (OPTUNA_TABLES if "studies" in names else frozenset()))


def require_tables(connection: Connection) -> None:
    """Refuse a database from which somebody took one of our tables; its version does not tell.

    Raises:
        DamagedDatabaseError: naming what is gone.
    """
    if gone := Base.metadata.tables.keys() - set(inspect(connection).get_table_names()):
        raise DamagedDatabaseError(
            f"Of the database's tables these are gone: {', '.join(sorted(gone))}.",
            "It was changed from outside: restore it from a copy, or name another with --db.",
        )


def refuse_foreign(connection: Connection) -> None:
    """Refuse a database without our tables that another program uses: its URL may be a mistake.

    Raises:
        DatabaseError: naming the tables that are there.
    """
    if found := foreign_tables(connection):
        listing = f"{', '.join(found[:5])}{' ...' if len(found) > 5 else ''}"
        if clash := sorted(Base.metadata.tables.keys() & set(found)):
            named = ", ".join(clash)
            raise DatabaseError(
                f"The database belongs to another program, and has tables named like ours: {named}.",
                "Name another with --db: the two cannot share one.",
            )
        raise DatabaseError(
            f"The database belongs to another program: it has tables ({listing}), but none of ours.",
            "Name another with --db; to put our tables beside those, run `autotune db upgrade` on it.",
        )


def upgrade_schema(connection: Connection) -> bool:
    """Bring the schema up to date inside the connection's transaction; False if it already was.

    Two processes that do this at once wait for each other: SQLite through the write transaction that the
    caller began, Postgres through an advisory lock held until the transaction ends.
    """
    if connection.dialect.name == "postgresql":
        # A migration of much evidence may take longer than any other statement.
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
    if inspect_schema(connection) is SchemaState.CURRENT:
        return False
    command.upgrade(configuration(connection), "head")
    return True


def require_current(connection: Connection) -> None:
    """Refuse a schema that is not exactly this release's.

    Raises:
        SchemaVersionError: naming the command that upgrades the database or the package.
    """
    state = inspect_schema(connection)
    if state is not SchemaState.CURRENT:
        what = "has no tables yet" if state is SchemaState.EMPTY else "was made by an older release"
        raise SchemaVersionError(f"The database {what}.", "Run `autotune db upgrade` on it.")
