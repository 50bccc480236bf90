"""HTTP/1.1 at wire level: one request, one response, and the exact failure if there is one.

Libraries hide details: they repeat a request on a broken connection, and do not report where a body ended. This client
never sends anything twice, records the time of every piece, and returns what was received when the connection broke.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Error = Literal["", "refused", "tls", "reset", "closed", "short", "timeout", "malformed"]
"""refused: no connection · tls: no handshake · reset, closed: ended before the answer's headers had come ·
short: ended within the body · timeout: not done in time · malformed: no HTTP/1.1."""

_LIMIT = 4 << 20
_PIECE = 64 << 10


@dataclass(frozen=True, slots=True)
class Target:
    """The server to connect to. With `tls`, `server_name` is sent as SNI and must match the certificate.

    `source`: the local address. `preamble`: bytes before the first request of each connection (not with TLS).
    """

    port: int
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    source: str | None = None
    preamble: bytes = b""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is sent unchanged: `path` with its query.

    Host and Content-Length are added if `headers` lack them.

    `chunked` sends the body in two chunks without a length; `timeout` is for the whole exchange, in seconds.
    """

    method: str = "GET"
    path: str = "/"
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    body: bytes = b""
    chunked: bool = False
    timeout: float = 30.0

    def encode(self, host: str) -> bytes:
        """Return the bytes of the request."""
        pairs = list(self.headers.items()) if isinstance(self.headers, Mapping) else list(self.headers)
        names = {name.lower() for name, _ in pairs}
        if "host" not in names:
            pairs.insert(0, ("Host", host))
        if self.chunked:
            pairs.append(("Transfer-Encoding", "chunked"))
        elif (self.body or self.method in ("POST", "PUT", "PATCH")) and "content-length" not in names:
            pairs.append(("Content-Length", str(len(self.body))))
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs), "", ""]
        return "\r\n".join(lines).encode("latin-1") + self._payload()

    def _payload(self) -> bytes:
        if not self.chunked:
            return self.body
        half = len(self.body) // 2
        parts = [part for part in (self.body[:half], self.body[half:]) if part]
        return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a body and its arrival (`time.monotonic()`)."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event of the test replicas: its number, its arrival, and its delay in seconds after it was sent."""

    number: int
    at: float
    lag: float


@dataclass(frozen=True, slots=True)
class Peer:
    """The server's side of a TLS connection: names in its certificate, its serial number, the ALPN result."""

    names: tuple[str, ...]
    serial: str
    alpn: str | None


@dataclass(slots=True)
class Response:
    """The received response. `status` is 0 if there was none.

    Times are `time.monotonic()`, or 0.0 if the event did not occur.
    """

    started: float
    status: int = 0
    reason: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    headers_at: float = 0.0
    finished: float = 0.0
    error: Error = ""
    detail: str = ""
    peer: Peer | None = None

    @property
    def ok(self) -> bool:
        """Whether the response is a complete 2xx."""
        return not self.error and 200 <= self.status < 300

    @property
    def body(self) -> bytes:
        """Return the received part of the body."""
        return b"".join(chunk.data for chunk in self.chunks)

    @property
    def text(self) -> str:
        """Return the body as UTF-8."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """Return the body as JSON. A replica's echo has `replica`, `method`, `path`, `headers`, `body`."""
        return json.loads(self.body)

    @property
    def replica(self) -> str | None:
        """Return the name of the replica that answered; None if a proxy did."""
        return self.header("x-replica")

    @property
    def seconds(self) -> float:
        """Return the duration from before the connection to the end."""
        return self.finished - self.started

    def header(self, name: str) -> str | None:
        """Return the first value of the header, in any case; None if there is none."""
        return next(iter(self.header_list(name)), None)

    def header_list(self, name: str) -> list[str]:
        """Return all values of the header, in the order of the wire."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def events(self) -> list[Event]:
        """Return the server-sent events of a replica's `/sse`, each with the arrival of its last byte."""
        events, text = [], ""
        for chunk in self.chunks:
            *whole, text = (text + chunk.data.decode()).split("\n\n")
            for event in whole:
                data = json.loads(event.removeprefix("data: "))
                events.append(Event(data["n"], chunk.at, chunk.at - data["sent"]))
        return events

    def __str__(self) -> str:
        outcome = self.error or f"{self.status} {self.reason}"
        source = self.replica or "the proxy"
        return f"{outcome} after {self.seconds:.3f} s from {source}: {self.detail or self.body[:200]!r}"


class _BrokenError(Exception):
    def __init__(self, error: Error, detail: str) -> None:
        super().__init__(detail)
        self.error: Error = error


class Connection:
    """One connection to `target`, opened by the first request, and reopened only if it is closed before the next."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._host = f"{target.server_name or target.host}:{target.port}"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.opened = 0

    async def exchange(self, request: Request) -> Response:
        """Send the request once. Never raises for the server's behaviour: see `Response.error`."""
        response = Response(started=time.monotonic())
        try:
            async with asyncio.timeout(request.timeout):
                await self._exchange(request, response)
        except TimeoutError as error:
            response.error, response.detail = "timeout", str(error)
        except _BrokenError as broken:
            response.error, response.detail = broken.error, str(broken)
        except OSError as error:
            response.error, response.detail = "short" if response.headers_at else "reset", str(error)
        response.finished = time.monotonic()
        if response.error or (response.header("connection") or "").lower() == "close":
            await self.close()
        return response

    async def close(self) -> None:
        """Close the connection; pending data is dropped."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is None:
            return
        writer.transport.abort()
        try:
            await writer.wait_closed()
        except (OSError, asyncio.CancelledError):
            return

    async def _exchange(self, request: Request, response: Response) -> None:
        reader, writer = await self._open()
        response.peer = _peer(writer)
        writer.write(request.encode(self._host))
        try:
            await writer.drain()
        except OSError:  # an early response, such as 413, may have interrupted the body: it is read below
            response.detail = "the request was not taken as a whole"
        await _read_head(reader, response)
        while 100 <= response.status < 200 and response.status != 101:
            response.headers.clear()
            await _read_head(reader, response)
        await _read_body(reader, response, request.method)
        if response.header("content-length") is None and response.header("transfer-encoding") is None:
            await self.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and self._writer is not None:
            if not self._reader.at_eof() and self._reader.exception() is None:
                return self._reader, self._writer
            await self.close()
        target = self._target
        name = (target.server_name or target.host) if target.tls else None
        try:
            self._reader, self._writer = await asyncio.open_connection(
                target.host,
                target.port,
                ssl=target.tls,
                server_hostname=name,
                limit=_LIMIT,
                local_addr=(target.source, 0) if target.source else None,
            )
        except ssl.SSLError as error:
            raise _BrokenError("tls", str(error)) from error
        except ConnectionRefusedError as error:
            raise _BrokenError("refused", str(error)) from error
        except ConnectionResetError as error:
            raise _BrokenError("tls" if target.tls else "reset", str(error)) from error
        self.opened += 1
        self._writer.write(target.preamble)
        return self._reader, self._writer


async def _read_head(reader: asyncio.StreamReader, response: Response) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise _BrokenError("closed", f"within the headers: {error.partial!r}") from error
    except asyncio.LimitOverrunError as error:
        raise _BrokenError("malformed", "headers without end") from error
    status, *lines = head.decode("latin-1").split("\r\n")[:-2]
    version, _, rest = status.partition(" ")
    code, _, response.reason = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not code.isdigit():
        raise _BrokenError("malformed", status)
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise _BrokenError("malformed", line)
        response.headers.append((name, value.strip(" \t")))
    response.status = int(code)
    response.headers_at = time.monotonic()


async def _read_body(reader: asyncio.StreamReader, response: Response, method: str) -> None:
    if method == "HEAD" or response.status in (101, 204, 304):
        return
    length = response.header("content-length")
    if (response.header("transfer-encoding") or "").lower() == "chunked":
        await _read_chunks(reader, response)
    elif length is not None:
        await _read_length(reader, response, int(length))
    else:
        while data := await reader.read(_PIECE):
            response.chunks.append(Chunk(time.monotonic(), data))


async def _read_length(reader: asyncio.StreamReader, response: Response, length: int) -> None:
    while length > 0:
        data = await reader.read(min(length, _PIECE))
        if not data:
            raise _BrokenError("short", f"{length} bytes are missing")
        length -= len(data)
        response.chunks.append(Chunk(time.monotonic(), data))


async def _read_chunks(reader: asyncio.StreamReader, response: Response) -> None:
    try:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            data = await reader.readexactly(size)
            response.chunks.append(Chunk(time.monotonic(), data))
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            continue
    except asyncio.IncompleteReadError as error:
        raise _BrokenError("short", f"within a chunk, after {len(response.body)} bytes") from error
    except ValueError as error:
        raise _BrokenError("malformed", str(error)) from error


def _peer(writer: asyncio.StreamWriter) -> Peer | None:
    tls = writer.get_extra_info("ssl_object")
    if tls is None:
        return None
    certificate = tls.getpeercert() or {}
    names = tuple(value for _, value in certificate.get("subjectAltName", ()))
    return Peer(names, certificate.get("serialNumber", ""), tls.selected_alpn_protocol())
