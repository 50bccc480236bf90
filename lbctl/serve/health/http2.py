"""One request on its own HTTP/2 connection, for checks of replicas that speak only HTTP/2.

A check needs the status and the first bytes of a body, so this implements one stream, not a client: of the response
headers it decodes only the first, which in HTTP/2 is `:status`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from lbctl.base.records import dataclass

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_LARGEST_FRAME = 16_384
_STATUSES = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}
"""Status codes of the static table of HPACK, by index."""
_WINDOW = 65_535
"""The initial flow-control window in bytes."""


class BrokenAnswerError(Exception):
    """The replica did not send an HTTP/2 response; the message says what it sent."""


@dataclass(frozen=True, slots=True)
class Http2Response:
    """The response to one request."""

    status: int
    """The status of the response."""
    body: bytes
    """All of the body, or at least its first 65,535 bytes."""


async def send_request(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    headers: Iterable[tuple[str, str]],
    body: bytes | None = None,
) -> Http2Response:
    """Send one request and return the response. `headers` begin with the pseudo-headers.

    Raises BrokenAnswerError, OSError and asyncio.IncompleteReadError.
    """
    block = b"".join(b"\x00" + _string_literal(name) + _string_literal(value) for name, value in headers)
    end = _END_STREAM if body is None else 0
    request = _PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS | end, 1, block)
    writer.write(request if body is None else request + _frame(_DATA, _END_STREAM, 1, body))
    return await _read_response(reader, writer)


async def _read_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Http2Response:
    status, body = 0, bytearray()
    while True:
        kind, flags, stream, payload = await _read_frame(reader)
        if kind == _SETTINGS and not flags & _ACK:
            writer.write(_frame(_SETTINGS, _ACK, 0, b""))
        if kind == _GOAWAY or (kind == _RST and stream == 1):
            raise BrokenAnswerError("it broke the request off")
        if stream != 1:
            continue
        if kind == _HEADERS and status < 200:
            status = _status(_fields(payload, flags))
        if kind == _DATA:
            body += _unpadded(payload, flags)
        if status >= 200 and ((flags & _END_STREAM and kind in {_DATA, _HEADERS}) or len(body) >= _WINDOW):
            return Http2Response(status, bytes(body))


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, int, int, bytes]:
    """Return type, flags, stream and payload of the next frame."""
    head = await reader.readexactly(9)
    if head[:5] == b"HTTP/":
        raise BrokenAnswerError("it speaks HTTP/1.1 alone")
    size = int.from_bytes(head[:3])
    if size > _LARGEST_FRAME:
        raise BrokenAnswerError("its answer is no HTTP/2")
    return head[3], head[4], int.from_bytes(head[5:9]) & 0x7FFF_FFFF, await reader.readexactly(size)


def _unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of a frame without padding."""
    if flags & _PADDED:
        payload = payload[1 : len(payload) - payload[0]]
    return payload


def _fields(payload: bytes, flags: int) -> bytes:
    """Return the header block of a HEADERS frame."""
    return _unpadded(payload, flags)[5 if flags & _PRIORITY else 0 :]


def _status(block: bytes) -> int:
    """Return the status, which is the first field of a header block. A new connection has only the static table."""
    start = 0
    while start < len(block) and block[start] & 0xE0 == 0x20:  # a change of the table's size
        start += 1 if block[start] != 0x3F else 2 + next(i for i, byte in enumerate(block[start + 1 :]) if byte < 0x80)
    field = block[start : start + 6]
    if field and field[0] & 0x80 and field[0] & 0x7F in _STATUSES:
        return _STATUSES[field[0] & 0x7F]
    if len(field) > 2 and _index(field[0]) in _STATUSES:
        size = field[1] & 0x7F
        text = field[2 : 2 + size]
        digits = _huffman(text) if field[1] & 0x80 else text.decode("latin-1")
        if len(digits) == 3 and digits.isascii() and digits.isdigit():
            return int(digits)
    raise BrokenAnswerError("its answer has no status")


def _index(first: int) -> int:
    """The index of the name of a literal field, with or without incremental indexing."""
    return first & 0x3F if first & 0x40 else first & 0x0F


def _huffman(text: bytes) -> str:
    """Decode three digits: the codes of 0 to 2 are 00000 to 00010, those of 3 to 9 are 011001 to 011111."""
    bits = "".join(f"{byte:08b}" for byte in text)
    digits = ""
    while len(digits) < 3 and len(bits) >= 5:
        size = 5 if bits.startswith("000") else 6
        code, bits = int(bits[:size].ljust(size, "0"), 2), bits[size:]
        digits += str(code if size == 5 else code - 0b011001 + 3)
    return digits


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _string_literal(value: str) -> bytes:
    """Encode a string literal of HPACK without Huffman coding."""
    encoded = value.encode()
    size = len(encoded)
    if size < 0x7F:
        return bytes((size,)) + encoded
    head, size = bytearray((0x7F,)), size - 0x7F
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*head, size)) + encoded
