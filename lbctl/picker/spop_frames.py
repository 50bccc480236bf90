"""The frames of SPOP 2.0, the Stream Processing Offload Protocol that HAProxy uses to query agents.

A frame consists of a 4-byte length, a type, 4 bytes of flags, a stream ID, a frame ID, and a payload. Numbers are
varints: one byte if below 240; otherwise 4 bits followed by 7 bits in each additional byte. Source: HAProxy's
doc/SPOE.txt, section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from lbctl.picker.connection import MalformedError

HAPROXY_HELLO, HAPROXY_DISCONNECT, NOTIFY = 1, 2, 3
AGENT_HELLO, AGENT_DISCONNECT, ACK = 101, 102, 103
_FINISHED = 1
"""Flag of an unfragmented frame."""
_NULL, _BOOLEAN, _UINT32, _STRING, _BINARY = 0, 1, 3, 8, 9
_INTEGERS, _IP_BYTES = (2, 3, 4, 5), {6: 4, 7: 16}
_SET_VAR, _SET_VAR_ARGUMENTS, _TRANSACTION = 1, 3, 2
_HEAD = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size
MAX_VALUES = 255
"""Maximum number of values in a frame; this also limits a message. The values are read before the key is checked."""

Value = bytes | int | bool | None


class Frame(NamedTuple):
    """One frame."""

    kind: int
    stream: int
    """HAProxy's ID for the stream."""
    id: int
    payload: bytes


def length(received: bytearray) -> int:
    """Return the first frame's length, excluding its length field. `received` must contain at least this field."""
    size: int
    (size,) = _LENGTH.unpack_from(received)
    return size


def read(data: bytes) -> Frame:
    """Parse a frame from the bytes that follow its length field. Raises MalformedError."""
    try:
        kind, flags = _HEAD.unpack_from(data)
        if not flags & _FINISHED:
            raise MalformedError("fragmented frames are not supported")
        stream, at = _varint(data, _HEAD.size)
        number, at = _varint(data, at)
    except (struct.error, IndexError):
        raise MalformedError("not a frame") from None
    return Frame(kind, stream, number, data[at:])


def values(payload: bytes) -> dict[bytes, Value]:
    """Return the items in a HELLO or DISCONNECT frame. Raises MalformedError."""
    return dict(_pairs(payload, 0, None)[0])


def arguments(payload: bytes) -> list[tuple[bytes, Value]]:
    """Return the named arguments of a NOTIFY frame that contains a single message, in order. Raises MalformedError."""
    try:
        _, at = _string(payload, 0)
        found, at = _pairs(payload, at + 1, payload[at])
    except IndexError:
        raise MalformedError("not a message") from None
    if at < len(payload):
        raise MalformedError("multiple messages in a frame are not supported")
    return found


def hello(max_frame_size: int) -> bytes:
    """Return the frame with which an agent accepts a connection, with several concurrent queries but no fragments."""
    items = ((b"version", b"2.0"), (b"max-frame-size", max_frame_size), (b"capabilities", b"pipelining"))
    return _frame(AGENT_HELLO, 0, 0, b"".join(_encoded(name) + _typed(value) for name, value in items))


def disconnect(status: int, message: str) -> bytes:
    """Return the frame with which an agent closes a connection. `status` is a SPOP status code; 0 means normal."""
    items = ((b"status-code", status), (b"message", message.encode("ascii", "replace")))
    return _frame(AGENT_DISCONNECT, 0, 0, b"".join(_encoded(name) + _typed(value) for name, value in items))


def ack(frame: Frame, variables: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the response to a NOTIFY frame; it sets transaction variables."""
    actions = (
        bytes((_SET_VAR, _SET_VAR_ARGUMENTS, _TRANSACTION)) + _encoded(name) + _typed(value)
        for name, value in variables
    )
    return _frame(ACK, frame.stream, frame.id, b"".join(actions))


def _frame(kind: int, stream: int, number: int, payload: bytes) -> bytes:
    body = _HEAD.pack(kind, _FINISHED) + _number(stream) + _number(number) + payload
    return _LENGTH.pack(len(body)) + body


def _pairs(data: bytes, at: int, count: int | None) -> tuple[list[tuple[bytes, Value]], int]:
    """Return `count` names with their values (all if `count` is None), and the position after them."""
    pairs: list[tuple[bytes, Value]] = []
    try:
        while at < len(data) if count is None else len(pairs) < count:
            if len(pairs) == MAX_VALUES:
                raise MalformedError("too many values")
            name, at = _string(data, at)
            value, at = _value(data, at)
            pairs.append((name, value))
    except IndexError:
        raise MalformedError("a value is incomplete") from None
    return pairs, at


def _value(data: bytes, at: int) -> tuple[Value, int]:
    kind, flags = data[at] & 15, data[at] >> 4
    at += 1
    if kind in (_STRING, _BINARY):
        return _string(data, at)
    if kind == _NULL:
        return None, at
    if kind == _BOOLEAN:
        return bool(flags), at
    if kind in _INTEGERS:
        return _varint(data, at)
    if size := _IP_BYTES.get(kind):
        return _slice(data, at, size)
    raise MalformedError("not a known value type")


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _varint(data, at)
    return _slice(data, at, size)


def _slice(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(data):
        raise MalformedError("a value is incomplete")
    return data[at:end], end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 240:
        return value, at
    shift = 4
    while shift < 64:
        byte = data[at]
        at += 1
        value += byte << shift
        shift += 7
        if byte < 128:
            return value, at
    raise MalformedError("a number is too long")


def _number(value: int) -> bytes:
    if value < 240:
        return bytes((value,))
    encoded = bytearray(((value & 15) | 240,))
    value = (value - 240) >> 4
    while value >= 128:
        encoded.append((value & 127) | 128)
        value = (value - 128) >> 7
    encoded.append(value)
    return bytes(encoded)


def _encoded(text: bytes) -> bytes:
    return _number(len(text)) + text


def _typed(value: bytes | int) -> bytes:
    return bytes((_UINT32,)) + _number(value) if isinstance(value, int) else bytes((_STRING,)) + _encoded(value)
