"""Published tables straight from a database, as the client's other sources hand them out."""

from __future__ import annotations

import logging
import threading

from autotune.db.engine import Database
from autotune.db.revisions import Revision, RevisionRepository
from autotune.db.tables import GONE, read_stored, stored_contents
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.table import PublishedTable, RoutingTable

log = logging.getLogger(__name__)


class DatabaseSource:
    """What the channels of one database point at. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        # Tables are immutable and named by content, so one that was read once stays valid.
        self._read: dict[str, RoutingTable] = {}
        self._broken: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The database's URL without its password."""
        return self._database.name

    def tables(self, gpu: str | None, channel: str = "stable") -> list[PublishedTable]:
        """Every current table of a channel, "none" included.

        One that does not match its digest is logged once and comes without its table, saying why in `broken`.

        Args:
            gpu: vLLM's device name; None for all.

        Raises:
            DatabaseError: if the database cannot be read.
        """
        with self._database.read() as session:
            repository = RevisionRepository(session)
            revisions = repository.current(gpu, channel)
            wanted = {r.table_digest for r in revisions if r.table_digest is not None}
            with self._lock:
                # A broken one is read again: it may have been mended by now.
                missing = wanted - self._read.keys()
            contents = stored_contents(session, missing) if missing else {}
        for digest in missing:
            self._keep(digest, contents.get(digest))
        return [self._published(r, channel) for r in revisions]

    def _keep(self, digest: str, content: bytes | str | None) -> None:
        try:
            table = read_stored(digest, content)
        except TableError as error:
            with self._lock:
                known = self._broken.get(digest) == error.message
                self._broken[digest] = error.message
            if not known:
                log.warning("table %s in %s is broken: %s", digest[:12], self.name, error.message)
            return
        with self._lock:
            self._read[digest] = table
            self._broken.pop(digest, None)

    def _published(self, revision: Revision, channel: str) -> PublishedTable:
        table, broken = None, ""
        if revision.table_digest is not None:
            with self._lock:
                table = self._read.get(revision.table_digest)
                broken = "" if table else self._broken.get(revision.table_digest, GONE)
        return PublishedTable(
            problem=revision.problem,
            environment=revision.environment,
            checkpoint=revision.checkpoint,
            revision=revision.number,
            channel=channel,
            table=table,
            broken=broken,
        )
