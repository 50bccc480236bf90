"""A small HTTP/1 server for the requests of the proxies, on asyncio's own protocols.

It reads what these send and nothing else: a head of at most 64 KiB, a body with its length, one request after the
other on a connection. Whatever differs is answered with 500 and the connection is closed; the proxy then chooses
by itself. The status is never below 500, because an Envoy sends its client such an answer. `http_connections` limits
how many connections there are, and what they hold.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from lbctl.picker.http_connections import ConnectionLimits
from lbctl.xds.protocol.connection import Client, normal_host

MAX_HEAD_BYTES = 64 << 10
"""Bytes of a request line and its headers."""
MAX_BODY_BYTES = 1 << 20
"""Bytes of a body."""
_WITHDRAWN = 1.0
"""Seconds after an answer in which a reset of its connection means that the proxy did not read it."""
QUESTION_TIMEOUT = 10.0
"""Seconds from the connection to its first request, and from the first byte of a request to its last."""
IDLE_TIMEOUT = 60.0
"""Seconds between two requests of a connection."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request."""

    method: str
    target: str
    """The path and query, as they were sent."""
    headers: Mapping[str, list[str]]
    """Name in lower case → its values."""
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers, whose values are printable ASCII."""
    withdraw: Callable[[], None] | None = None
    """Called when the connection ends with the answer unread: the proxy had given up the question. None: nothing."""

    def encoded(self, *, keep: bool) -> bytes:
        """Return the bytes of the answer. `keep`: whether the connection stays open."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.status != HTTPStatus.NO_CONTENT:
            lines.append(f"content-length: {len(self.body)}")
        lines.append(f"connection: {'keep-alive' if keep else 'close'}")
        return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + self.body


class MalformedError(Exception):
    """A request cannot be read. The message says why."""


class PickerConnection(asyncio.Protocol):
    """One connection. `limits` is shared by all connections of a process."""

    def __init__(self, handle: Callable[[HttpRequest], HttpAnswer], limits: ConnectionLimits) -> None:
        self._handle = handle
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._needed = 0
        """The bytes that a request has at least whose beginning is in `_received`."""
        self._is_paused = False
        """Whether nothing is answered until the client has read its answers."""
        self._timer: asyncio.TimerHandle | None = None
        self._withdraw: Callable[[], None] | None = None
        """What the newest answer has for the end of the connection."""
        self._answered_at = 0.0
        self._ended_unread = False
        """Whether the client closed the connection before it had the answer."""
        self._is_incomplete = False
        """Whether a request has begun that has not ended."""

    @property
    def client(self) -> Client | None:
        """The host and the port of the client; None once the connection is closed."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return (normal_host(peer[0]), peer[1]) if peer else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._limits.enter(self)
        self._wait(QUESTION_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection. A client that closes it with an answer unread resets it."""
        self._limits.leave(self)
        self._received.clear()
        if self._timer is not None:
            self._timer.cancel()
        is_recent = asyncio.get_running_loop().time() - self._answered_at < _WITHDRAWN
        if self._withdraw is not None and (self._ended_unread or (exc is not None and is_recent)):
            self._withdraw()

    def eof_received(self) -> None:
        """Note whether the client has the answer: it may also close a connection that it needs no longer."""
        self._ended_unread = self._transport is not None and _is_unread(self._transport)

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._received += data
        self._answer()
        if self._received and not self._is_incomplete:
            self._is_incomplete = True
            self._wait(QUESTION_TIMEOUT)
        self._limits.note_held(self, len(self._received))

    def pause_writing(self) -> None:
        """Read and answer no more: the client does not read its answers."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read and answer again."""
        self._is_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._answer()

    def _answer(self) -> None:
        try:
            while not self._is_paused and len(self._received) >= self._needed:
                parsed = parse(self._received)
                if isinstance(parsed, int):
                    self._needed = parsed
                    return
                request, keep, length = parsed
                del self._received[:length]
                self._needed = 0
                self._send(self._handle(request), keep=keep)
                if not keep:
                    self._received.clear()
                    return
                self._is_incomplete = False
                self._limits.note_answer(self)
                self._wait(IDLE_TIMEOUT)
        except MalformedError as error:
            self._received.clear()
            self._send(HttpAnswer(500, f"{error}\n".encode()), keep=False)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, answer: HttpAnswer, *, keep: bool) -> None:
        assert self._transport is not None
        self._transport.write(answer.encoded(keep=keep))
        self._withdraw, self._answered_at = answer.withdraw, asyncio.get_running_loop().time()
        if not keep:
            self._transport.close()

    def _wait(self, timeout: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(timeout, self.close)


def _is_unread(transport: asyncio.Transport) -> bool:
    """Return whether the other end has not confirmed all bytes that it was sent."""
    connection = transport.get_extra_info("socket")
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        return True
    (unconfirmed,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    return bool(unconfirmed or transport.get_write_buffer_size())


def parse(received: bytearray) -> tuple[HttpRequest, bool, int] | int:
    """Return the first request, whether its connection stays open, and its length.

    While it is not complete, return the bytes that it has at least. Raises MalformedError.
    """
    end = received.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0:
        if len(received) >= MAX_HEAD_BYTES:
            raise MalformedError("the head is too long")
        return len(received) + 1
    first, *lines = received[:end].decode("utf-8", "replace").split("\r\n")
    method, target, version = _request_line(first)
    headers = _headers(lines)
    length = _length(headers)
    start = end + 4
    if len(received) < start + length:
        return start + length
    connection = ",".join(headers.get("connection", ())).lower()
    keep = "keep-alive" in connection if version == "HTTP/1.0" else "close" not in connection
    return HttpRequest(method, target, headers, bytes(received[start : start + length])), keep, start + length


def _request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise MalformedError("not a request line")
    return parts[0], parts[1], parts[2]


def _headers(lines: list[str]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise MalformedError("not a header")
        headers.setdefault(name.lower(), []).append(value.strip(" \t"))
    return headers


def _length(headers: Mapping[str, list[str]]) -> int:
    if "transfer-encoding" in headers:
        raise MalformedError("a body needs its length")
    values = headers.get("content-length", ["0"])
    if len(set(values)) > 1 or not values[0].isascii() or not values[0].isdecimal() or len(values[0]) > 15:
        raise MalformedError("not a length")
    length = int(values[0])
    if length > MAX_BODY_BYTES:
        raise MalformedError("the body is too long")
    return length
