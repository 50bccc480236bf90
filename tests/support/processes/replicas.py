"""HTTP replicas that count their requests and misbehave on demand.

Paths: `/health` (its own status, counted separately) · `/sse?n=&gap=&first=&pad=&early=` (events, seconds, additional
bytes in each, text before the first event, at which a paused stream stops) · `/ws?replies=` (WebSocket echo, of at most
this number of messages) · everything else is echoed as JSON: replica, method, path (raw, with query), headers (list of
pairs), body (as latin-1). Every response has the header `x-replica`. `Expect: 100-continue` is supported.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from aiohttp import WSMsgType, web
from aiohttp.web import BaseRequest

from lbctl.apply.reserved_ports import port_of, reserve
from tests.support.processes import background
from tests.support.processes.ports import HOST

T = TypeVar("T")
_REMEMBERED = 2000
_AT_ONCE = 0.01  # seconds; a shutdown with 0 would wait for idle connections forever
_TURNS_OF_AN_ACCEPT = 3
"""Turns of the event loop from the accept of a connection until the server has it.

A shutdown before would miss it, and Python 3.11 gives a listener that is closed before no transport, but leaves the
connection open.
"""
_GONE = struct.pack("ii", 1, 0)  # SO_LINGER without time: closing sends RST


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a replica treats requests from now on; times are in seconds.

    `fault`, after the whole request was read: `reset` sends RST and no byte, `close` FIN and no byte, `truncate` half
    of the announced body, then RST. `sse` and WebSockets support `delay` and `fault` too; `/health` only `health`.
    """

    delay: float = 0.0
    status: int = 200
    fault: Literal["", "reset", "close", "truncate"] = ""
    health: int = 200
    health_body: str = "ok"
    statuses: tuple[int, ...] = ()
    """Used in turn, instead of `status`."""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as received by the replica; `path` is raw, `connection` numbers the replica's connections from 1."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    at: float
    connection: int

    def header(self, name: str) -> str | None:
        """Return the first value of the header, in any case; None if there is none."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class Log(deque[T]):
    """Requests that a server has received. A test may iterate over them while others arrive: a `deque` would raise."""

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(super().__iter__()))


class Replica:
    """One HTTP/1.1 server; listens within `with`; closes connections that are idle for `keep_alive`.

    It uses a free port, or `port` on another loopback address (`host`): replicas behind one DNS name share it.
    """

    def __init__(
        self,
        name: str,
        *,
        keep_alive: float = 75.0,
        tls: ssl.SSLContext | None = None,
        host: str = HOST,
        port: int = 0,
    ) -> None:
        self.name = name
        self.host = host
        self.keep_alive = keep_alive
        self.behaviour = Behaviour()
        self.held = False
        """While true, only checks are answered."""
        self.paused = False
        """While true, each stream of events stops after its first event."""
        self.requests = 0
        self.checks = 0
        self.in_flight = 0
        self.max_in_flight = 0
        self.abandoned = 0
        """Number of requests whose client disconnected before the response was complete."""
        self.connections = 0
        self.seen: Log[Seen] = Log(maxlen=_REMEMBERED)
        self.checked: Log[Seen] = Log(maxlen=_REMEMBERED)
        """Requests for `/health`."""
        self._tls = tls
        self._held = reserve(port, host)
        self.port = port_of(self._held)
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._numbers: dict[asyncio.BaseTransport, int] = {}

    @property
    def address(self) -> str:
        """Address for a fleet file: host:port."""
        return f"{self.host}:{self.port}"

    def behave(self, **changes: Any) -> None:
        """Change the named fields of `Behaviour`, for requests that arrive from now on."""
        self.behaviour = dataclasses.replace(self.behaviour, **changes)

    def forget(self) -> None:
        """Reset the counters; requests in flight are not affected."""
        self.requests = self.checks = self.abandoned = self.connections = 0
        self.max_in_flight = self.in_flight
        self.seen.clear()

    def refuse(self) -> None:
        """Stop listening and drop all connections: new ones are refused. The port stays reserved."""
        background.wait(self._stop())

    def accept(self) -> None:
        """Listen again on the same port."""
        background.wait(self._start())

    def __enter__(self) -> Replica:
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._held.close()

    async def _start(self) -> None:
        self._server = web.Server(
            self._handle, handler_cancellation=True, keepalive_timeout=self.keep_alive, access_log=None
        )
        listener = reserve(self.port, self.host)
        self._listener = await asyncio.get_running_loop().create_server(
            self._server, sock=listener, ssl=self._tls, backlog=1024
        )

    async def _stop(self) -> None:
        if self._listener is None or self._server is None:
            return
        for listening in self._listener.sockets:
            asyncio.get_running_loop().remove_reader(listening)
        for _ in range(_TURNS_OF_AN_ACCEPT):
            await asyncio.sleep(0)
        self._listener.close()
        await self._server.shutdown(_AT_ONCE)
        background.abort_connections(self.host, self.port)
        self._listener = self._server = None

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        if request.path == "/health":
            self.checks += 1
            self.checked.append(_seen(request, b"", 0))
            behaviour = self.behaviour
            return web.Response(status=behaviour.health, text=behaviour.health_body, headers={"x-replica": self.name})
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            return await self._serve(request)
        except (asyncio.CancelledError, ConnectionResetError):
            self.abandoned += 1
            raise
        finally:
            self.in_flight -= 1

    async def _serve(self, request: BaseRequest) -> web.StreamResponse:
        behaviour = self.behaviour
        self.requests += 1
        if (request.headers.get("expect") or "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b"".join([piece async for piece in request.content.iter_any()])  # `read` stops at 1 MiB
        seen = self._remember(request, body)
        while self.held:
            await asyncio.sleep(_AT_ONCE)
        if behaviour.delay:
            await asyncio.sleep(behaviour.delay)
        if behaviour.fault in ("reset", "close"):
            return await self._break(request, behaviour.fault)
        if request.path == "/ws":
            return await self._websocket(request)
        if request.path == "/sse":
            return await self._events(request, behaviour)
        echo = self._echo(seen)
        if behaviour.fault == "truncate":
            return await self._truncate(request, echo)
        status = behaviour.statuses[self.requests % len(behaviour.statuses)] if behaviour.statuses else behaviour.status
        response = web.Response(status=status, body=echo, content_type="application/json")
        response.headers["x-replica"] = self.name
        for name, value in behaviour.headers:
            response.headers.add(name, value)
        return response

    def _remember(self, request: BaseRequest, body: bytes) -> Seen:
        seen = _seen(request, body, self._number(request))
        self.seen.append(seen)
        return seen

    def _number(self, request: BaseRequest) -> int:
        transport = request.transport
        if transport is None:
            return 0
        if transport not in self._numbers:
            self._numbers = {item: number for item, number in self._numbers.items() if not item.is_closing()}
            self.connections += 1
            self._numbers[transport] = self.connections
        return self._numbers[transport]

    def _echo(self, seen: Seen) -> bytes:
        echo = {
            "replica": self.name,
            "method": seen.method,
            "path": seen.path,
            "headers": seen.headers,
            "body": seen.body.decode("latin-1"),
        }
        return json.dumps(echo).encode()

    async def _break(self, request: BaseRequest, fault: str) -> web.StreamResponse:
        transport = request.transport
        if transport is not None:
            if fault == "reset":
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _GONE)
            transport.abort()
        await asyncio.sleep(10)  # ends as soon as the lost connection cancels this handler
        raise ConnectionResetError

    async def _truncate(self, request: BaseRequest, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"x-replica": self.name, "content-length": str(len(body))})
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        await asyncio.sleep(0.05)  # data that RST overtakes is lost
        return await self._break(request, "reset")

    async def _events(self, request: BaseRequest, behaviour: Behaviour) -> web.StreamResponse:
        query = request.query
        headers = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-replica": self.name}
        response = web.StreamResponse(status=behaviour.status, headers=headers)
        await asyncio.sleep(float(query.get("first", 0)))
        await response.prepare(request)
        pad = "x" * int(query.get("pad", 0))
        for text in query.getall("early", ()):
            await response.write(text.encode() + b"\n\n")
            while self.paused:
                await asyncio.sleep(_AT_ONCE)
        for number in range(int(query.get("n", 3))):
            if number:
                await asyncio.sleep(float(query.get("gap", 0)))
            while number and self.paused:
                await asyncio.sleep(_AT_ONCE)
            event = {"n": number, "replica": self.name, "pad": pad, "sent": time.monotonic()}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write_eof()
        return response

    async def _websocket(self, request: BaseRequest) -> web.StreamResponse:
        conversation = web.WebSocketResponse()
        conversation.headers["x-replica"] = self.name
        await conversation.prepare(request)
        replies = int(request.query.get("replies", sys.maxsize))
        async for message in conversation:
            if message.type is WSMsgType.TEXT and replies:
                replies -= 1
                await conversation.send_str(message.data)
        return conversation


def _seen(request: BaseRequest, body: bytes, connection: int) -> Seen:
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers)
    return Seen(request.method, request.raw_path, headers, body, time.monotonic(), connection)


@contextmanager
def replicas(*names: str, keep_alive: float = 75.0, tls: ssl.SSLContext | None = None) -> Iterator[list[Replica]]:
    """Start one replica for each name: `with replicas("a", "b") as (a, b):`."""
    with ExitStack() as stack:
        yield [stack.enter_context(Replica(name, keep_alive=keep_alive, tls=tls)) for name in names]


@contextmanager
def replicas_on_one_port(*names: str) -> Iterator[list[Replica]]:
    """Start one replica for each name, all on the same port of 127.0.0.1, 127.0.0.2 and so on.

    The port is reserved on all addresses at once. Otherwise, a connection of another process can have it on one.
    """
    with reserve(host="0.0.0.0") as held, ExitStack() as stack:
        hosts = (f"127.0.0.{last}" for last in range(1, len(names) + 1))
        yield [
            stack.enter_context(Replica(name, host=host, port=port_of(held)))
            for name, host in zip(names, hosts, strict=True)
        ]
