"""Which file a SQLite database is: a path may come to name another one, or none, while it is open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from autotune.vocabulary.errors import MovedDatabaseError


@dataclass(frozen=True)
class FileIdentity:
    """A path and the file that stood there when the database was opened.

    SQLite goes on working on a file that was renamed, deleted or replaced, and so would store what nobody
    finds again.
    """

    path: Path
    name: str
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path, name: str) -> Self:
        """The file that is there now.

        Args:
            name: the database, as shown to people.

        Raises:
            MovedDatabaseError: if there is none.
        """
        device, inode = _found(path, name)
        return cls(path.absolute(), name, device, inode)

    def check(self) -> None:
        """Make sure that the file is still the one at the path. Takes microseconds.

        Raises:
            MovedDatabaseError: if it was removed or replaced.
        """
        if _found(self.path, self.name) != (self.device, self.inode):
            raise MovedDatabaseError(
                f"{self.name} was replaced by another file while it was open.",
                "Start this again to work on the new file.",
            )


def _found(path: Path, name: str) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise MovedDatabaseError(
            f"{name} is no longer at its path ({error.strerror}).",
            "Put the file back, or start this again to begin a new one.",
        ) from error
    return status.st_dev, status.st_ino
