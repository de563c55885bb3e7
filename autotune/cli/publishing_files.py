"""Table files, and the two sides of `autotune diff`: revisions, table files, or none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.database import open_for_command
from autotune.vocabulary.errors import TableError, UsageError
from autotune.vocabulary.files import read_given

if TYPE_CHECKING:
    from autotune.db.revisions import Key
    from autotune.vocabulary.table import RoutingTable


@dataclass(frozen=True)
class Side:
    """One side of a comparison; without a table nothing is applied. `key` is null for a bare `none`."""

    name: str
    key: Key | None
    table: RoutingTable | None


def read_sides(before: str, after: str, db: str | None) -> tuple[Side, Side]:
    """Read what two arguments of `autotune diff` name.

    Raises:
        UsageError, TableError: for a file that cannot be read or is broken.
        NotFoundError: if there is no such revision.
    """
    names = (before, after)
    if before == after == "none":
        raise UsageError("None against none differs in nothing.", "Name a revision or a table file.")
    if not any(name.isdecimal() for name in names):
        one, other = (_of_file(name) for name in names)
        return one, other
    from autotune.db.revisions import RevisionRepository

    with open_for_command(db, create=False) as database, database.read() as session:
        repository = RevisionRepository(session)

        def read(name: str) -> Side:
            if not name.isdecimal():
                return _of_file(name)
            revision = repository.get(number(name))
            return Side(name, revision, repository.table(revision))

        return read(before), read(after)


def number(text: str) -> int:
    """A revision's number.

    Raises:
        UsageError: if it is none.
    """
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise UsageError(f"{text!r} is no revision number.", "List them with `autotune revisions`.")
    return int(text)


def read_table(path: Path) -> RoutingTable:
    """Read a table file.

    Raises:
        UsageError: if it cannot be read.
        TableError: if it is no JSON, or not a whole and unchanged table.
    """
    from autotune.db.strict_json import read_json
    from autotune.vocabulary.table import RoutingTable

    content = read_given(path, "Name a table file.")
    try:
        data = read_json(content)
    except ValueError as error:
        raise TableError(
            f"{path} is no JSON that can be stored: {error}.", "Export it with `autotune table export`."
        ) from error
    return RoutingTable.from_json_data(data)


def _of_file(name: str) -> Side:
    if name == "none":
        return Side(name, None, None)
    from autotune.db.revisions import Key

    table = read_table(Path(name))
    key = Key(problem=table.problem, environment=table.environment, checkpoint=table.checkpoint)
    return Side(name, key, table)
