from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbctl.serve.health import http2


class _Sink:
    """A connection that takes everything."""

    def write(self, data: bytes) -> None:
        pass


def _frame(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _response(sent: bytes) -> http2.Http2Response:
    async def read() -> http2.Http2Response:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        sink: Any = _Sink()
        headers = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/health")]
        return await http2.send_request(reader, sink, headers)

    return asyncio.run(read())


_SETTINGS = _frame(4, 0, b"", 0)


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"\x88", 200),
        (b"\x8e", 500),
        (b"\x3f\xe1\x1f\x88", 200),
        (b"\x20\x48\x03503", 503),
        (b"\x08\x03204", 204),
        (b"\x48\x82\x64\x02", 302),
        (b"\x48\x83\x6d\xf7\xff", 599),
    ],
)
def test_status_is_decoded_in_every_encoding(block: bytes, status: int) -> None:
    assert _response(_SETTINGS + _frame(1, 5, block)) == http2.Http2Response(status, b"")


def test_body_ends_with_the_stream_or_the_window() -> None:
    head = _SETTINGS + _frame(1, 4, b"\x88")
    assert _response(head + _frame(0, 0, b"fi") + _frame(0, 1, b"ne")).body == b"fine"
    pieces = _frame(0, 0, b"x" * 16_384) * 3 + _frame(0, 0, b"x" * 16_383)
    assert len(_response(head + pieces).body) == http2.MAX_BODY_BYTES


def test_final_response_follows_an_interim_one() -> None:
    assert _response(_SETTINGS + _frame(1, 4, b"\x08\x03103") + _frame(1, 5, b"\x89")).status == 204


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it supports only HTTP/1.1"),
        (_SETTINGS + _frame(1, 5, b"\x00\x01a\x01b"), "its response has no status"),
        (_SETTINGS + _frame(1, 5, b"\xc5"), "its response is not valid HTTP/2: Error decoding header block"),
        (_SETTINGS + _frame(7, 0, bytes(8), 0), "it aborted the request"),
        (_SETTINGS + _frame(3, 0, bytes(4)), "it aborted the request"),
    ],
    ids=["http1", "no status", "hpack", "goaway", "reset"],
)
def test_invalid_response_is_an_error(sent: bytes, problem: str) -> None:
    with pytest.raises(http2.BrokenAnswerError, match=problem):
        _response(sent)


def test_response_that_ends_early_is_incomplete() -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        _response(_SETTINGS[:-2])
