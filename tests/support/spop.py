"""Frames that HAProxy sends to the picker by SPOP, written from the specification and without the picker's codec."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

HELLO, DISCONNECT, NOTIFY = 1, 2, 3
_REPLICA = re.compile(rb"\x01\x03\x02\x07replica\x08(.)(.*)", re.DOTALL)


def varint(value: int) -> bytes:
    """Return a number: a byte below 240, else its lowest 4 bits and then 7 bits in each further byte."""
    if value < 240:
        return bytes([value])
    encoded, rest = [240 | value & 15], (value - 240) >> 4
    while rest >= 128:
        encoded.append(128 | rest & 127)
        rest = (rest - 128) >> 7
    return bytes([*encoded, rest])


def name(text: str) -> bytes:
    """Return a name of a value or of a message."""
    return varint(len(text)) + text.encode("ascii")


def string(value: str | bytes) -> bytes:
    """Return a typed string."""
    data = value if isinstance(value, bytes) else value.encode()
    return b"\x08" + varint(len(data)) + data


def frame(kind: int, payload: bytes, stream: int = 0, number: int = 0, flags: int = 1) -> bytes:
    """Return a frame with its length."""
    body = bytes([kind]) + flags.to_bytes(4, "big") + varint(stream) + varint(number) + payload
    return len(body).to_bytes(4, "big") + body


def hello(versions: str = "2.0", max_frame_size: int = 16_380, *, check: bool = False) -> bytes:
    """Return the first frame of a connection; `check`: of a health check."""
    payload = name("supported-versions") + string(versions)
    payload += name("max-frame-size") + b"\x03" + varint(max_frame_size)
    payload += name("capabilities") + string("pipelining,async")
    payload += name("healthcheck") + b"\x11" if check else name("engine-id") + string("e1")
    return frame(HELLO, payload)


def notify(arguments: Sequence[tuple[str, bytes]], stream: int = 7, number: int = 1) -> bytes:
    """Return a query of a stream. The arguments are names with typed values."""
    pairs = b"".join(name(key) + value for key, value in arguments)
    return frame(NOTIFY, name("pick1") + bytes([len(arguments)]) + pairs, stream, number)


def ack(replica: str | None, stream: int = 7, number: int = 1) -> bytes:
    """Return the response to a query: the variable of the transaction with a replica, or none."""
    variable = b"" if replica is None else b"\x01\x03\x02" + name("replica") + string(replica)
    return frame(103, variable, stream, number)


def replica_of(response: bytes) -> str:
    """Return the replica that a response sets; empty if it sets none."""
    found = _REPLICA.search(response)
    return "" if found is None else found.group(2)[: found.group(1)[0]].decode()


def read(connection: socket.socket) -> bytes:
    """Return the next frame with its length, or fewer bytes at the end of the connection."""
    received = _exactly(connection, 4)
    return received + _exactly(connection, int.from_bytes(received, "big"))


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (piece := connection.recv(size - len(received))):
        received += piece
    return received
