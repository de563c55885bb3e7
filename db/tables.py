"""Stored routing tables by their digest: read with care, and written anew where they were damaged."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import LargeBinary, Text, cast, delete, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from autotune.db.engine import ReadSession, WriteSession
from autotune.db.models import RevisionRow, RoutingTableRow
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.files import reason
from autotune.vocabulary.table import RoutingTable

GONE = "The stored table is not there."
_HINT = "Publish it again, or roll back to another revision or to none."


def stored_contents(session: ReadSession, digests: Collection[str]) -> dict[str, bytes | str]:
    """Stored JSON by digest, as it stands: that of one table must not keep the others from being read."""
    # SQLite checks neither what is JSON nor what is UTF-8, and fails the whole query on either.
    kind: Any = LargeBinary() if _is_sqlite(session) else Text()
    query = select(RoutingTableRow.digest, cast(RoutingTableRow.content, kind))
    found = session.execute(query.where(RoutingTableRow.digest.in_(digests)))
    return {digest: content for digest, content in found}  # noqa: C416


def read_stored(digest: str, content: bytes | str | None) -> RoutingTable:
    """A table from its stored JSON; None is one that is not there.

    Raises:
        TableError: if it is not what its digest says.
    """
    if content is None:
        raise TableError(GONE, _HINT)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TableError(f"The stored table is no JSON: {reason(error)}.", _HINT) from error
    try:
        return RoutingTable.from_json_data({**data, "digest": digest} if isinstance(data, dict) else data)
    except TableError as error:
        raise TableError(error.message, _HINT) from error


def store_table(session: WriteSession, table: RoutingTable) -> bool:
    """Store a table; True if revisions cite it already, but it was gone or damaged and is mended now.

    Raises:
        DatabaseError: if the database refuses.
    """
    content = stored_contents(session, [table.digest]).get(table.digest)
    if content is not None:
        try:
            read_stored(table.digest, content)
        except TableError:
            _replace(session, table)
            return True
        return False
    insert = sqlite.insert if _is_sqlite(session) else postgresql.insert
    session.execute(
        insert(RoutingTableRow)
        .values(digest=table.digest, content=table.content())
        .on_conflict_do_nothing(index_elements=["digest"])
    )
    citing = select(func.count()).select_from(RevisionRow).where(RevisionRow.table_digest == table.digest)
    return bool(session.scalar(citing))


def _replace(session: WriteSession, table: RoutingTable) -> None:
    """Put the content back that the digest names. Triggers refuse every other change of a stored table."""
    here = RoutingTableRow.digest == table.digest
    if _is_sqlite(session):
        # Updates are refused and revisions cite the row: it goes and comes back within the transaction.
        session.execute(text("PRAGMA defer_foreign_keys = ON"))
        session.execute(delete(RoutingTableRow).where(here).execution_options(synchronize_session=False))
        session.execute(sqlite.insert(RoutingTableRow).values(digest=table.digest, content=table.content()))
        return
    # For this transaction alone; others wait for its end.
    session.execute(text("ALTER TABLE routing_tables DISABLE TRIGGER USER"))
    change = update(RoutingTableRow).where(here).values(content=table.content())
    session.execute(change.execution_options(synchronize_session=False))
    session.execute(text("ALTER TABLE routing_tables ENABLE TRIGGER USER"))


def _is_sqlite(session: ReadSession) -> bool:
    return session.get_bind().dialect.name == "sqlite"
