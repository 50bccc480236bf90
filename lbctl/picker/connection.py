"""A TCP connection from a proxy to the picker, for any protocol: reading, timeouts, and backpressure.

The first byte identifies the protocol: a SPOP frame begins with the high byte of its length, which is 0, whereas HTTP
begins with a letter. This lets both protocols share one port. `connection_limits` limits the number of connections and
the number of bytes that they buffer.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import NamedTuple, Protocol

from lbctl.base.hosts import normal_host
from lbctl.picker.connection_limits import ConnectionLimits
from lbctl.xds.protocol.connection import Client

_WITHDRAWN = 1.0
"""If the connection is reset within this many seconds after a response, the proxy has not read the response."""
QUESTION_TIMEOUT = 10.0
"""Seconds from the connection to its first request, and from a request's first byte to its last, after which the
connection is closed."""
IDLE_TIMEOUT = 60.0
"""Maximum time between requests on a connection, in seconds."""
_CHUNK_BYTES = 64 << 10
"""Maximum number of bytes read at once."""


class Reply(NamedTuple):
    """Response to the first request in the buffer."""

    data: bytes
    """Bytes to send."""
    length: int
    """Length of the request in bytes."""
    keep: bool = True
    """Whether the connection stays open."""
    withdraw: Callable[[], None] | None = None
    """Called if the connection ends before the response is read, because the proxy gave up on the query. None if there
    is nothing to call."""


class Later:
    """Deferred response to the first request in the buffer.

    `length`: length of the request in bytes. `blocks`: whether the connection serves no other requests until then.
    `withdraw` is called if the connection ends before the response.
    """

    __slots__ = ("blocks", "length", "send", "withdraw")

    def __init__(self, length: int, *, blocks: bool) -> None:
        self.length = length
        self.blocks = blocks
        self.withdraw: Callable[[], None] = _ignore
        self.send: Callable[[Reply], None] = _ignore
        """Sends the response. Set by the connection once the request is waiting."""


def _ignore(*_: object) -> None:
    """Do nothing."""


class MalformedError(Exception):
    """A request is malformed. The message states the reason."""


class WireProtocol(Protocol):
    """A connection's protocol."""

    def respond(self, received: bytearray) -> Reply | Later | int:
        """Return the response to the first request in the buffer.

        If the request is incomplete, return its minimum length in bytes. Raises MalformedError.
        """

    def rejection(self, error: MalformedError) -> bytes:
        """Return the bytes to send to a client before closing its connection."""


class PickerConnection(asyncio.BufferedProtocol):
    """One connection. `limits` is shared by all of a listener's connections.

    `choose` returns the protocol that matches the first byte sent by the client.
    """

    _chunk = memoryview(bytearray(_CHUNK_BYTES))
    """Buffer for the event loop to read into. It is shared by all connections, because each copies its data
    immediately.

    With an ordinary protocol, the loop would allocate 256 KiB for each read, which can cost more than a pick.
    """

    def __init__(self, choose: Callable[[int], WireProtocol], limits: ConnectionLimits) -> None:
        self._choose = choose
        self._protocol: WireProtocol | None = None
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._needed = 0
        """Minimum length, in bytes, of the request at the start of `_received`."""
        self._is_paused = False
        """Whether responses are paused until the client has read the previous ones."""
        self._loop = asyncio.get_running_loop()
        self._deadline = 0.0
        """Time, on the loop's clock, at which the connection is closed if the client has not sent anything."""
        self._timer: asyncio.TimerHandle | None = None
        """Fires at or before the deadline: a response moves the deadline but does not reset the timer."""
        self._withdraw: Callable[[], None] | None = None
        """`Reply.withdraw` for the newest response."""
        self._answered_at = 0.0
        self._ended_unread = False
        """Whether the client closed the connection before receiving the response."""
        self._is_incomplete = False
        """Whether a request has begun but is not complete."""
        self._later: set[Later] = set()
        """Responses that will be sent later."""
        self._is_blocked = False
        """Whether other requests must wait until one of these responses is sent."""

    @property
    def client(self) -> Client | None:
        """The client's host and port; None once the connection is closed."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return (normal_host(peer[0]), peer[1]) if peer else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._limits.enter(self)
        self._wait(QUESTION_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection.

        If a client closes the connection without reading a response, the connection is reset.
        """
        self._limits.leave(self)
        self._received.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._leave_queue()
        is_recent = self._loop.time() - self._answered_at < _WITHDRAWN
        if self._withdraw is not None and (self._ended_unread or (exc is not None and is_recent)):
            self._withdraw()

    def eof_received(self) -> None:
        """Record whether the client got the response, because clients also close connections that they do not need."""
        self._leave_queue()
        self._ended_unread = self._transport is not None and _is_unread(self._transport)

    def get_buffer(self, _: int) -> memoryview:
        """Return the buffer for the next bytes from the client."""
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        """Respond to every complete request."""
        self._received += self._chunk[:nbytes]
        self._answer()
        if self._received and not self._is_incomplete:
            self._is_incomplete = True
            self._wait(QUESTION_TIMEOUT)
        self._limits.note_held(self, len(self._received))

    def pause_writing(self) -> None:
        """Stop reading and responding, because the client is not reading its responses."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading and responding."""
        self._is_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._answer()

    def close(self) -> None:
        """Close the connection."""
        self._leave_queue()
        if self._transport is not None:
            self._transport.abort()

    def _answer(self) -> None:
        if self._protocol is None:
            if not self._received:
                return
            self._protocol = self._choose(self._received[0])
        try:
            while self._received and not self._is_paused and len(self._received) >= self._needed:
                if self._is_blocked:
                    raise MalformedError("another request is already waiting on this connection")
                reply = self._protocol.respond(self._received)
                if isinstance(reply, int):
                    self._needed = reply
                    return
                self._needed = 0
                if isinstance(reply, Later):
                    self._defer(reply)
                    continue
                self._send(reply)
                if not reply.keep:
                    self._received.clear()
                    return
                del self._received[: reply.length]
                self._is_incomplete = False
                self._limits.note_answer(self)
                self._wait(IDLE_TIMEOUT)
        except MalformedError as error:
            self._received.clear()
            self._send(Reply(self._protocol.rejection(error), 0, keep=False))

    def _defer(self, later: Later) -> None:
        """Keep the connection open until the response to its first request is sent."""
        self._later.add(later)
        self._is_blocked = later.blocks
        later.send = lambda reply: self._send_later(later, reply)
        del self._received[: later.length]
        self._is_incomplete = False
        self._limits.note_waiting(self, is_waiting=True)

    def _leave_queue(self) -> None:
        """Withdraw the waiting requests, because the connection has ended."""
        waiting, self._later = self._later, set()
        for later in waiting:
            later.send = _ignore
            later.withdraw()

    def _send_later(self, later: Later, reply: Reply) -> None:
        assert self._transport is not None
        self._later.discard(later)
        self._is_blocked = False
        if self._transport.is_closing():
            self._loop.call_soon(later.withdraw)  # the proxy will not get the response
            return
        self._send(reply)
        self._limits.note_waiting(self, is_waiting=bool(self._later))
        if reply.keep:
            self._wait(IDLE_TIMEOUT)

    def _send(self, reply: Reply) -> None:
        assert self._transport is not None
        self._transport.write(reply.data)
        self._withdraw, self._answered_at = reply.withdraw, self._loop.time()
        if not reply.keep:
            self._transport.close()

    def _wait(self, timeout: float) -> None:
        self._deadline = self._loop.time() + timeout
        if self._timer is not None:
            if self._timer.when() <= self._deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._close_if_due)

    def _close_if_due(self) -> None:
        if self._later and not self._is_incomplete:
            self._deadline = self._loop.time() + IDLE_TIMEOUT
        if self._loop.time() >= self._deadline:
            self.close()
        else:
            self._timer = self._loop.call_at(self._deadline, self._close_if_due)


def _is_unread(transport: asyncio.Transport) -> bool:
    """Return whether any of the bytes sent to the peer have not been acknowledged yet."""
    connection = transport.get_extra_info("socket")
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        return True
    (unconfirmed,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    return bool(unconfirmed or transport.get_write_buffer_size())
