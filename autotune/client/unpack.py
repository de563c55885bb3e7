"""Unpacking an answer's body while it comes: never more in memory than a step beyond what may be kept."""

from __future__ import annotations

import zlib
from typing import Any

ACCEPTED = "gzip, deflate"
"""What requests ask for: httpx alone would ask for whatever decoders are installed."""
_STEP = 256 * 1024
"""Bytes unpacked at once: zlib makes a thousand of one."""
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class UnpackError(Exception):
    """A body that cannot be unpacked, or is too large; the message says why, and follows "the answer"."""


class Body:
    """A body in the making.

    Args:
        encoding: its `Content-Encoding`; one layer of gzip or deflate at most, whatever was asked for: a
            proxy may pack what the service did not.
        most: bytes that it may have, both as it is sent and unpacked.

    Raises:
        UnpackError: if it is packed otherwise.
    """

    def __init__(self, encoding: str, most: int) -> None:
        layers = [
            part for part in encoding.lower().replace(" ", "").split(",") if part not in ("", "identity")
        ]
        if len(layers) > 1 or (layers and layers[0] not in _WINDOWS):
            raise UnpackError(f"is packed as {encoding!r}; only one layer of gzip or deflate is unpacked")
        self._packed_as = layers[0] if layers else ""
        self._unpacking: Any = zlib.decompressobj(_WINDOWS[layers[0]]) if layers else None
        self._most = most
        self._came = 0
        self._content = bytearray()

    def add(self, data: bytes) -> None:
        """Take what came next.

        Raises:
            UnpackError: if the body exceeds its limit, or is not packed as it says.
        """
        self._came += len(data)
        self._limit(self._came)
        if self._unpacking is None:
            self._content += data
            return
        first = self._came == len(data)
        try:
            self._unpack(data)
        except zlib.error as error:
            if not (first and self._packed_as == "deflate"):
                raise UnpackError(f"is no {self._packed_as}: {error}") from error
            # Many servers leave zlib's header out.
            self._unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
            self._content.clear()
            try:
                self._unpack(data)
            except zlib.error:
                raise UnpackError(f"is no {self._packed_as}: {error}") from error

    def content(self) -> bytes:
        """All of it, when it has come.

        Raises:
            UnpackError: if it was cut off. An empty one is empty, however it says to be packed.
        """
        if self._unpacking is not None and self._came and not self._unpacking.eof:
            raise UnpackError("was cut off")
        return bytes(self._content)

    def _unpack(self, data: bytes) -> None:
        while not self._unpacking.eof:
            unpacked = self._unpacking.decompress(data, _STEP)
            self._content += unpacked
            self._limit(len(self._content))
            data = self._unpacking.unconsumed_tail
            # A full step may have left something in zlib's own buffer.
            if not data and len(unpacked) < _STEP:
                return

    def _limit(self, size: int) -> None:
        if size > self._most:
            raise UnpackError(f"exceeds {self._most / 2**20:g} MiB")
