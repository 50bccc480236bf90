"""Frames of the stream: bytes that are encoded once and sent to every browser, either plain or compressed.

A compressed stream is a single gzip stream. Its parts are compressed independently and end on a byte boundary, so any
part may follow any other. Connections can therefore share parts, even if they start late or skip some parts.
"""

from __future__ import annotations

import zlib

GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""The first bytes of a compressed stream. The stream has no end marker, because either the client or the process closes
it."""
_LEVEL = 3


class Frame:
    """A part of the stream. `number` is the frame's number in its `Live`."""

    def __init__(self, number: int, raw: bytes) -> None:
        self.number = number
        self.raw = raw
        self._packed: bytes | None = None

    def pack(self) -> None:
        """Compress the frame if it is not compressed yet; this takes milliseconds."""
        if self._packed is None:
            compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
            self._packed = compressor.compress(self.raw) + compressor.flush(zlib.Z_FULL_FLUSH)

    def content(self, packed: bool) -> bytes:
        """Return the frame's bytes, compressed or plain."""
        if not packed:
            return self.raw
        self.pack()
        assert self._packed is not None
        return self._packed
