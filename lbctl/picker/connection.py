"""One TCP connection of a proxy to the picker, whatever protocol it uses: reading, time limits, and backpressure.

The first byte identifies the protocol: a SPOP frame begins with the high byte of its length, which is 0, and HTTP
begins with a letter. Therefore, both protocols share one port. `connection_limits` limits the number of connections and
the bytes that they hold.
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
"""Seconds after a response during which a reset of its connection means that the proxy did not read it."""
QUESTION_TIMEOUT = 10.0
"""Seconds allowed from the connection to its first request, and from the first byte of a request to its last."""
IDLE_TIMEOUT = 60.0
"""Seconds between requests on a connection."""
_CHUNK_BYTES = 64 << 10
"""Maximum number of bytes to read at once."""


class Reply(NamedTuple):
    """Response to the first request in a buffer."""

    data: bytes
    """The bytes to send."""
    length: int
    """The bytes of the request."""
    keep: bool = True
    """Whether the connection stays open."""
    withdraw: Callable[[], None] | None = None
    """Called if the connection ends with the response unread, because the proxy gave up on the query. None: nothing."""


class Later:
    """Deferred response to the first request in a buffer.

    `length`: the bytes of the request. `blocks`: whether the connection serves no other request until then. `withdraw`
    is called if the connection ends before the response.
    """

    __slots__ = ("blocks", "length", "send", "withdraw")

    def __init__(self, length: int, *, blocks: bool) -> None:
        self.length = length
        self.blocks = blocks
        self.withdraw: Callable[[], None] = _ignore
        self.send: Callable[[Reply], None] = _ignore
        """Sends the response. The connection sets it once the request waits."""


def _ignore(*_: object) -> None:
    """Do nothing."""


class MalformedError(Exception):
    """A request cannot be read. The message gives the reason."""


class WireProtocol(Protocol):
    """The protocol of one connection."""

    def respond(self, received: bytearray) -> Reply | Later | int:
        """Return the response to the first request.

        While the request is incomplete, return its minimum length in bytes. Raises MalformedError.
        """

    def rejection(self, error: MalformedError) -> bytes:
        """Return the bytes to send to a client before its connection is closed."""


class PickerConnection(asyncio.BufferedProtocol):
    """One connection. `limits` is shared by all connections of a listener.

    `choose` returns the protocol for the first byte that a client sends.
    """

    _chunk = memoryview(bytearray(_CHUNK_BYTES))
    """Buffer for the event loop's reads. All connections share it, because each copies its part immediately.

    For an ordinary protocol, the loop allocates 256 KiB for each read, which may cost more than a pick.
    """

    def __init__(self, choose: Callable[[int], WireProtocol], limits: ConnectionLimits) -> None:
        self._choose = choose
        self._protocol: WireProtocol | None = None
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._needed = 0
        """Minimum length, in bytes, of the request that begins in `_received`."""
        self._is_paused = False
        """Whether responses are suspended until the client has read the previous ones."""
        self._loop = asyncio.get_running_loop()
        self._deadline = 0.0
        """Time, on the loop's clock, at which the connection is closed if the client sends nothing."""
        self._timer: asyncio.TimerHandle | None = None
        """Fires at or before the deadline: a response moves the deadline but not the timer."""
        self._withdraw: Callable[[], None] | None = None
        """`Reply.withdraw` of the newest response."""
        self._answered_at = 0.0
        self._ended_unread = False
        """Whether the client closed the connection before it received the response."""
        self._is_incomplete = False
        """Whether a request has begun and is not complete."""
        self._later: set[Later] = set()
        """Responses that follow later."""
        self._is_blocked = False
        """Whether no other request is served until one of them is sent."""

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
        """Forget the connection. A client that closes the connection with an unread response resets it."""
        self._limits.leave(self)
        self._received.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._leave_queue()
        is_recent = self._loop.time() - self._answered_at < _WITHDRAWN
        if self._withdraw is not None and (self._ended_unread or (exc is not None and is_recent)):
            self._withdraw()

    def eof_received(self) -> None:
        """Record whether the client received the response: it may also close a connection that it no longer needs."""
        self._leave_queue()
        self._ended_unread = self._transport is not None and _is_unread(self._transport)

    def get_buffer(self, _: int) -> memoryview:
        """Return the buffer for the client's next bytes."""
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
        """Stop reading and responding, because the client does not read its responses."""
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
        """Keep the connection open until the response to its first request follows."""
        self._later.add(later)
        self._is_blocked = later.blocks
        later.send = lambda reply: self._send_later(later, reply)
        del self._received[: later.length]
        self._is_incomplete = False
        self._limits.note_waiting(self, is_waiting=True)

    def _leave_queue(self) -> None:
        """Withdraw the waiting requests, because the connection ends."""
        waiting, self._later = self._later, set()
        for later in waiting:
            later.send = _ignore
            later.withdraw()

    def _send_later(self, later: Later, reply: Reply) -> None:
        assert self._transport is not None
        self._later.discard(later)
        self._is_blocked = False
        if self._transport.is_closing():
            self._loop.call_soon(later.withdraw)  # the proxy does not get the response
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
    """Return whether the peer has not acknowledged all bytes that were sent to it."""
    connection = transport.get_extra_info("socket")
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        return True
    (unconfirmed,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    return bool(unconfirmed or transport.get_write_buffer_size())
