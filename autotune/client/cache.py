"""The last known good answer of a service, kept on disk for when it cannot be reached."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.client.addresses import shown
from autotune.vocabulary.canonical import content_digest
from autotune.vocabulary.files import MAX_BYTES, read_text, reason
from autotune.vocabulary.text import printable

FORMAT = 1
_TAG = re.compile(r'(W/)?"[\x21\x23-\x7e]{1,500}"')
_TEMPORARY = re.compile(r"\..+-[0-9a-f]{16}", re.DOTALL)
_STALE_S = 3600.0
"""Seconds after which a temporary file is one that a killed process left: writing takes no minute."""
_MOST_BYTES = 4 * MAX_BYTES
"""Of an answer's file, in which JSON escapes may stand for what the service sent as UTF-8."""


@dataclass(frozen=True)
class Kept:
    """A stored answer.

    Args:
        body: what the service sent, digest checked.
        etag: to ask with `If-None-Match`; None if the service sent none that can be sent back and names
            this body.
        saved_at: when it was fetched, ISO 8601.
    """

    body: dict[str, Any]
    etag: str | None
    saved_at: str

    def saved_after(self, moment: datetime) -> bool:
        """Whether it was fetched after a moment; False where `saved_at` is no time."""
        try:
            return datetime.fromisoformat(self.saved_at) > moment
        except (ValueError, TypeError):
            return False


class LastKnownGood:
    """One stored answer per service, GPU and channel.

    Args:
        folder: where they lie; created when first written.
    """

    def __init__(self, folder: Path, url: str, gpu: str | None, channel: str) -> None:
        self._asked = [shown(url), gpu, channel]
        self.path = folder / "tables" / f"{content_digest([url, gpu, channel])[:24]}.json"

    def read(self) -> tuple[Kept | None, str]:
        """The stored answer, or None and why it is ignored (empty if there is none)."""
        try:
            # Without a home the folder lies where every account may write.
            stored = json.loads(read_text(self.path, _MOST_BYTES, own=True))
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError, RecursionError) as error:
            return None, f"the stored tables {self.path} are ignored: {reason(error)}"
        if not isinstance(stored, dict) or [stored.get("format"), stored.get("asked")] != [
            FORMAT,
            self._asked,
        ]:
            return None, f"the stored tables {self.path} are ignored: of another release or service"
        body = stored.get("body")
        try:
            digest = content_digest(body)
        except (ValueError, RecursionError) as error:
            return None, f"the stored tables {self.path} are ignored: {error}"
        if not isinstance(body, dict) or digest != stored.get("digest"):
            return (
                None,
                f"the stored tables {self.path} are ignored: the digest does not match their content",
            )
        return Kept(body, _usable(stored.get("etag"), body), printable(str(stored.get("saved_at")), 40)), ""

    def write(self, body: dict[str, Any], etag: str | None) -> str:
        """Store an answer; returns why that failed, or an empty string."""
        stored = {
            "format": FORMAT,
            "asked": self._asked,
            "etag": _usable(etag, body),
            "saved_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "body": body,
            "digest": content_digest(body),
        }
        return write_atomically(self.path, json.dumps(stored)) or ""


def _usable(etag: object, body: dict[str, Any]) -> str | None:
    """An entity tag that a request can carry and that belongs to this body; else None, and all is asked for.

    The service's tags hold the digest of what they name. Another one could have come with another answer, and
    "not modified" would then keep this body for good.
    """
    if not isinstance(etag, str) or not _TAG.fullmatch(etag):
        return None
    digest = body.get("digest")
    return etag if isinstance(digest, str) and digest and digest in etag else None


def write_atomically(path: Path, content: str | bytes, *, private: bool = True) -> str | None:
    """Replace a file so that a reader sees the old or the new content, never a part, even after a crash.

    What killed processes left behind of earlier writes goes, after an hour.

    Args:
        private: for this user only, in a folder of this project's own; False follows the umask, as any file
            that a program writes for people.

    Returns:
        Why it failed (read-only, full disk), or None.
    """
    temporary: Path | None = None
    data = content.encode() if isinstance(content, str) else content
    try:
        if not private and path.exists() and not path.is_file():
            # A pipe or a device, such as /dev/stdout: it is written to, not replaced. Not where nobody names
            # one, since writing to a pipe waits for a reader.
            path.write_bytes(data)
            return None
        if not private:
            path = Path(os.path.realpath(path))  # a link stays a link
        path.parent.mkdir(parents=True, exist_ok=True)
        start = f".{path.name[:100]}-"
        # In people's folders only what has this very file's name: another may be theirs.
        _remove_stale(path.parent, None if private else start)
        unused = path.with_name(start + secrets.token_hex(8))
        handle = os.open(unused, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        temporary = unused
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        return None
    except OSError as error:
        return f"{path} cannot be written: {error}"
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _remove_stale(folder: Path, start: str | None) -> None:
    """Delete old temporary files, or those whose names begin so. One that cannot be deleted stays."""
    before = time.time() - _STALE_S
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            # By its name first: a folder may hold many files.
            if not _TEMPORARY.fullmatch(entry.name) or start not in (None, entry.name[:-16]):
                continue
            with contextlib.suppress(OSError):
                if (
                    entry.is_file(follow_symlinks=False)
                    and entry.stat(follow_symlinks=False).st_mtime < before
                ):
                    os.unlink(entry.path)
