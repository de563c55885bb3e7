"""The package's own tables beside those of the database, where an operator wants them."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.db.source import DatabaseSource
from autotune.vocabulary.table import PublishedTable

CHANNEL = "stable"
"""The only channel that they answer in: another one is for what is tried out."""


class WithStarters:
    """What a database's channels point at, and starter tables for layers of which it says nothing.

    A layer is one problem, GPU and checkpoint format. "None" says something: then nothing is applied.
    """

    def __init__(self, source: DatabaseSource, starters: Sequence[PublishedTable]) -> None:
        self._source = source
        self._starters = tuple(starters)

    def tables(self, gpu: str | None, channel: str = CHANNEL) -> list[PublishedTable]:
        """As `DatabaseSource.tables`; a starter table has no revision.

        Raises:
            DatabaseError: if the database cannot be read.
        """
        published = self._source.tables(gpu, channel)
        if channel != CHANNEL:
            return published
        told = {_layer(table) for table in published}
        beside = (s for s in self._starters if gpu in (None, s.environment.gpu) and _layer(s) not in told)
        return [*published, *beside]


def _layer(table: PublishedTable) -> tuple[str, str, str]:
    return str(table.problem), table.environment.gpu, table.checkpoint
