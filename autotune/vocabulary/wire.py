"""How a list of published tables travels: `{"tables": [...], "digest": ...}`, in files and over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.table import PublishedTable, RoutingTable
from autotune.vocabulary.text import printable


def encode_published(published: PublishedTable) -> dict[str, Any]:
    """One table as plain JSON data; the table itself carries its own digest, or is null."""
    # Said only where it applies, so that lists without a broken table keep their digest.
    data = published.model_dump(mode="json", exclude={"table"} if published.broken else {"table", "broken"})
    return {**data, "table": published.table.to_json_data() if published.table else None}


def encode_tables(tables: Iterable[PublishedTable]) -> dict[str, Any]:
    """The body of `GET /routing/tables`."""
    listed = [encode_published(table) for table in tables]
    return {"tables": listed, "digest": content_digest(listed)}


def decode_tables(body: object) -> tuple[tuple[PublishedTable, ...], tuple[str, ...]]:
    """Read what `encode_tables` made: the tables, and a reason for each one that is broken and left out.

    Raises:
        TableError: if the body as a whole is broken, so that nothing of it may be used.
    """
    if not isinstance(body, dict) or not isinstance(body.get("tables"), list):
        raise TableError(
            'The answer is not {"tables": [...], "digest": ...}.',
            "Check that the address is that of a moe-autotune service.",
        )
    listed = body["tables"]
    try:
        digest = content_digest(listed)
    except (ValueError, TypeError, RecursionError) as error:
        raise TableError(f"The list of tables cannot be read: {error}.") from error
    if body.get("digest") != digest:
        raise TableError(
            f"The list's digest {printable(str(body.get('digest')), 12)} does not match its content "
            f"({digest[:12]}).",
            "It was changed or cut on the way; fetch it again.",
        )
    tables: list[PublishedTable] = []
    broken: list[str] = []
    for position, item in enumerate(listed):
        try:
            tables.append(_decode_published(item))
        except TableError as error:
            broken.append(f"table {position + 1}: {error.message}")
    return tuple(tables), tuple(broken)


def _decode_published(item: object) -> PublishedTable:
    if not isinstance(item, dict):
        raise TableError("A published table must be a JSON object.")
    raw = item.get("table")
    table = RoutingTable.from_json_data(raw) if raw is not None else None
    try:
        published = PublishedTable.model_validate({**item, "table": table})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise TableError(printable(f"malformed at {where}: {first['msg']}")) from error
    if table and (table.problem, table.environment, table.checkpoint) != (
        published.problem, published.environment, published.checkpoint,
    ):  # fmt: skip
        raise TableError(f"announced for {published.problem}, but it holds another problem or environment")
    return published


def of_file(table: RoutingTable) -> PublishedTable:
    """A table read from a file, which no revision names."""
    return PublishedTable(
        problem=table.problem, environment=table.environment, checkpoint=table.checkpoint, table=table
    )
