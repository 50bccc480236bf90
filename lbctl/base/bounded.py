"""Joins the pieces of a response, up to a size limit. The caller must limit the total time.

Adding a piece does not copy earlier pieces, so the cost is linear in the length of the response.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable


class TooLargeError(ValueError):
    """A response, or one of its lines, exceeds its size limit. The message states the limit."""

    def __init__(self, what: str, most: int) -> None:
        super().__init__(f"{what} larger than {size(most)}")


class Bounded:
    """A buffer with a size limit."""

    def __init__(self, most: int, what: str = "a response") -> None:
        self._most = most
        self._what = what
        self._pieces: list[bytes] = []
        self.size = 0
        """Number of bytes added so far."""

    def add(self, piece: bytes) -> None:
        """Add a piece. Raises TooLargeError."""
        self.size += len(piece)
        if self.size > self._most:
            self._pieces.clear()
            raise TooLargeError(self._what, self._most)
        self._pieces.append(piece)

    def take(self) -> bytes:
        """Return all bytes, and empty the buffer."""
        pieces, self._pieces, self.size = self._pieces, [], 0
        return b"".join(pieces)


async def whole(pieces: AsyncIterable[bytes], most: int) -> bytes:
    """Return all bytes of a response. Raises TooLargeError if its size exceeds `most` bytes."""
    bounded = Bounded(most)
    async for piece in pieces:
        bounded.add(piece)
    return bounded.take()


def whole_of(pieces: Iterable[bytes], most: int) -> bytes:
    """Return all bytes of a response. Raises TooLargeError if its size exceeds `most` bytes."""
    bounded = Bounded(most)
    for piece in pieces:
        bounded.add(piece)
    return bounded.take()


async def lines(pieces: AsyncIterable[bytes], most: int) -> AsyncGenerator[bytes]:
    """Yield the non-blank lines without their line endings.

    Raises TooLargeError if a line is longer than `most` bytes.
    """
    rest = Bounded(most, "a line")
    async for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            rest.add(piece[start:end])
            start = end + 1
            line = rest.take()
            if line and not line.isspace():
                yield line
        rest.add(piece[start:])
    line = rest.take()
    if line and not line.isspace():
        yield line


def size(count: int) -> str:
    """Format a number of bytes in the largest unit that divides it."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if count and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} B"
