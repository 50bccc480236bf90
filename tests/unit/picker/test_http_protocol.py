"""The picker's HTTP server answers requests of proxies, and rejects other requests with a reason."""

from __future__ import annotations

import pytest

from lbctl.picker.connection import MalformedError
from lbctl.picker.http_protocol import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    HttpAnswer,
    parse,
)


def test_request_is_parsed_once_it_is_complete() -> None:
    head = b"POST /pick/chat HTTP/1.1\r\nHost: x\r\nX-Session-Id: s1\r\nx-session-id: s2\r\nContent-Length: 3\r\n\r\n"
    data = head + b"abcGET"
    needed = [parse(bytearray(data[:size])) for size in range(len(data) - 3)]
    assert needed == [*range(1, len(head) + 1), *[len(head) + 3] * 3]
    parsed = parse(bytearray(data))
    assert isinstance(parsed, tuple)
    request, keep, length = parsed
    assert (request.method, request.target, request.body) == ("POST", "/pick/chat", b"abc")
    assert request.headers["x-session-id"] == ["s1", "s2"]
    assert (keep, data[length:]) == (True, b"GET")


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [("1.0", "", False), ("1.0", "Connection: keep-alive\r\n", True), ("1.1", "Connection: close\r\n", False)],
)
def test_keep_alive_follows_the_http_version(version: str, connection: str, kept: bool) -> None:
    parsed = parse(bytearray(f"GET /health HTTP/{version}\r\n{connection}\r\n".encode()))
    assert isinstance(parsed, tuple)
    assert parsed[1] is kept


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET /\r\n\r\n", "not a request line"),
        (b"\x16\x03\x01 / HTTP/9\r\n\r\n", "not a request line"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", "not a header"),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", "not a header"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "a body requires a content-length header"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "not a length"),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "not a length"),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "not a length"),
        (f"POST / HTTP/1.1\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode(), "the body is too large"),
        (b"GET / HTTP/1.1\r\nx-session-id: " + b"k" * MAX_HEAD_BYTES, "the request head is too large"),
    ],
)
def test_malformed_request_is_rejected_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedError, match=f"^{reason}$"):
        parse(bytearray(data))


def test_response_is_encoded_with_and_without_a_body() -> None:
    assert HttpAnswer(204).encoded(keep=True) == b"HTTP/1.1 204 No Content\r\nconnection: keep-alive\r\n\r\n"
    assert HttpAnswer(200, b"a 1\n", {"x-lbctl-pick": "a"}).encoded(keep=False) == (
        b"HTTP/1.1 200 OK\r\nx-lbctl-pick: a\r\ncontent-length: 4\r\nconnection: close\r\n\r\na 1\n"
    )
