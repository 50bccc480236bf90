"""A minimal HTTP/1 server protocol for queries from proxies.

It supports only the requests that proxies send: headers of at most 64 KiB, a body with a known length, and requests
sent one after another on a connection. Any other input gets a 500 response, and the connection is closed. The proxy
then falls back to `otherwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple

from lbctl.picker.connection import Later, MalformedError, Reply

MAX_HEAD_BYTES = 64 << 10
"""Upper bound on the request line and the headers, in bytes."""
MAX_BODY_BYTES = 1 << 20
"""Upper bound on a body, in bytes."""
_STATUS_LINES = {int(status): f"HTTP/1.1 {status} {status.phrase}\r\n" for status in HTTPStatus}


class HttpRequest(NamedTuple):
    """A request."""

    method: str
    target: str
    """Path and query string, as sent."""
    headers: Mapping[str, list[str]]
    """Maps each lowercase name to that header's values."""
    body: bytes


class HttpAnswer(NamedTuple):
    """A response."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    """Additional headers; their values must be printable ASCII."""
    withdraw: Callable[[], None] | None = None
    """Called if the connection ends before the response is read, because the proxy gave up on the query. None if there
    is nothing to call."""

    def encoded(self, *, keep: bool) -> bytes:
        """Return the response as bytes. `keep`: whether the connection stays open."""
        lines = [_STATUS_LINES[self.status], *[f"{name}: {value}\r\n" for name, value in self.headers.items()]]
        if self.status != HTTPStatus.NO_CONTENT:
            lines.append(f"content-length: {len(self.body)}\r\n")
        lines.append("connection: keep-alive\r\n\r\n" if keep else "connection: close\r\n\r\n")
        return "".join(lines).encode("ascii") + self.body


class HttpWait(NamedTuple):
    """A response that is sent later."""

    begin: Callable[[Callable[[HttpAnswer], None]], Callable[[], None]]
    """Called with a callback for the response. It returns a function that withdraws the request."""


class HttpProtocol:
    """HTTP/1 on one connection; `handle` returns the response to a request."""

    def __init__(self, handle: Callable[[HttpRequest], HttpAnswer | HttpWait]) -> None:
        self._handle = handle

    def respond(self, received: bytearray) -> Reply | Later | int:
        """Return the response to the first request in the buffer.

        If the request is incomplete, return its minimum length in bytes. Raises MalformedError.
        """
        parsed = parse(received)
        if isinstance(parsed, int):
            return parsed
        request, keep, length = parsed
        answer = self._handle(request)
        if isinstance(answer, HttpAnswer):
            return Reply(answer.encoded(keep=keep), length, keep, answer.withdraw)
        later = Later(length, blocks=True)
        later.withdraw = answer.begin(
            lambda answer: later.send(Reply(answer.encoded(keep=keep), length, keep, answer.withdraw))
        )
        return later

    def rejection(self, error: MalformedError) -> bytes:
        """Return a response that states the reason.

        The status is 500, because Envoy forwards responses with a lower status to its client.
        """
        return HttpAnswer(500, f"{error}\n".encode()).encoded(keep=False)


def parse(received: bytearray) -> tuple[HttpRequest, bool, int] | int:
    """Return the first request, whether its connection stays open, and the length of the request in bytes.

    If the request is incomplete, return its minimum length in bytes. Raises MalformedError.
    """
    end = received.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0:
        if len(received) >= MAX_HEAD_BYTES:
            raise MalformedError("the request head is too large")
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
        raise MalformedError("a body requires a content-length header")
    values = headers.get("content-length", ["0"])
    if len(set(values)) > 1 or not values[0].isascii() or not values[0].isdecimal() or len(values[0]) > 15:
        raise MalformedError("not a length")
    length = int(values[0])
    if length > MAX_BODY_BYTES:
        raise MalformedError("the body is too large")
    return length
