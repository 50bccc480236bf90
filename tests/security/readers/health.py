"""Active health checks."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable

from lbctl.ir.address import Address
from lbctl.ir.pools import ActiveCheck, GrpcCheck, HttpCheck
from lbctl.runtime.net import http_client
from lbctl.serve.health import fetch, http2
from tests.support.bounds import Reader, Script, against, inputs, sends, trickles

_SECONDS = 0.4


def _reader(probe: HttpCheck | GrpcCheck, h2: bool) -> Callable[[int], Awaitable[bool]]:
    check = ActiveCheck(probe, timeout=int(_SECONDS * 1000))

    async def read(port: int) -> bool:
        target = fetch.HealthCheck(check, Address("127.0.0.1", port), h2, None, "localhost")
        async with http_client.session() as session:
            result = await fetch.fetch(target, session)
        assert result is not None
        return result.good

    return read


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + struct.pack(">I", stream) + payload


_DATA, _HEADERS, _PUSH, _PING, _SETTINGS, _CONTINUATION = 0, 1, 5, 6, 4, 9
_END, _END_HEADERS, _PADDED = 1, 4, 8
_OK = b"\x88"
"""`:status 200` in HPACK."""
_START = frame(_SETTINGS, 0, 0)
_HEAD = _START + frame(_HEADERS, _END_HEADERS, 1, _OK)
_SERVING = frame(_DATA, _END, 1, b"\0\0\0\0\x02\x08\x01")
_PREFACE = b"SM\r\n\r\n"


def _h2(first: bytes, repeated: bytes = b"") -> Script:
    return sends(first, repeated, after=_PREFACE)


_H2_PEERS = {
    "malformed table size": _h2(_START + frame(_HEADERS, _END | _END_HEADERS, 1, b"\x3f" + b"\xff" * 10)),
    "malformed padding of data": _h2(_HEAD + frame(_DATA, _END | _PADDED, 1)),
    "endless data without headers": _h2(_START, frame(_DATA, 0, 1, b"x" * 16_384)),
    "endless data of another stream": _h2(_HEAD, frame(_DATA, 0, 3, b"x" * 16_384)),
    "endless empty data": _h2(_HEAD, frame(_DATA, 0, 1)),
    "endless padding": _h2(_HEAD, frame(_DATA, _PADDED, 1, b"\xff" + bytes(255))),
    "endless pings": _h2(_HEAD, frame(_PING, 0, 0, b"12345678")),
    "endless settings": _h2(_START, _START),
    "endless interim answers": _h2(_START, frame(_HEADERS, _END_HEADERS, 1, b"\x08\x03103")),
    "endless headers": _h2(_START + frame(_HEADERS, 0, 1, _OK), frame(_CONTINUATION, 0, 1, b"\0\x01a\x01b" * 3000)),
    "endless expansion of headers": _h2(
        _START + frame(_HEADERS, 0, 1, _OK + b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000),
        frame(_CONTINUATION, 0, 1, b"\xbe" * 16_384),
    ),
    "endless unknown frames": _h2(_HEAD, frame(200, 0, 0)),
    "endless garbage": _h2(b"", b"\xff"),
    "endless answer of HTTP/1": _h2(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "slow": trickles(_HEAD, after=_PREFACE),
    "slow body": sends(_HEAD, after=_PREFACE),
    "malformed push": _h2(_START + frame(_PUSH, _END_HEADERS, 1, b"\0\0\0\x02\x82")),
    "malformed padding of headers": _h2(_START + frame(_HEADERS, _END | _END_HEADERS | _PADDED, 1)),
    "malformed index": _h2(_START + frame(_HEADERS, _END | _END_HEADERS, 1, b"\xff")),
    "malformed status": _h2(_START + frame(_HEADERS, _END | _END_HEADERS, 1, b"\x08\x03abc")),
    "malformed first frame": _h2(frame(_DATA, 0, 0, b"x")),
}
_OK_1 = b"HTTP/1.1 200 OK\r\n"
_HTTP_PEERS = {
    "endless interim answers": sends(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "endless trailers": sends(_OK_1 + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"a: b\r\n"),
    "endless headers": sends(_OK_1, b"a: b\r\n"),
    "endless header": sends(_OK_1 + b"a: ", b"x"),
    "endless status line": sends(b"HTTP/1.1 200 ", b"x"),
    "endless body": sends(_OK_1 + b"\r\n", b"x"),
    "endless chunks": sends(_OK_1 + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "endless extension of a chunk": sends(_OK_1 + b"Transfer-Encoding: chunked\r\n\r\n1;a=", b"x"),
    "endless size of a chunk": sends(_OK_1 + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "endless protocol of another kind": sends(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", b"x"),
    "slow": trickles(_OK_1),
    "slow body": trickles(_OK_1 + b"\r\n", pause=0.01),
    "malformed": sends(b"\x00\x01\x02\r\n\r\n"),
    "malformed length": sends(_OK_1 + b"Content-Length: x\r\n\r\n"),
    "malformed chunk": sends(_OK_1 + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
    "malformed header": sends(_OK_1 + b"\xff\xfe\r\n\r\n"),
}
_GRPC_PEERS = {name: _H2_PEERS[name] for name in ("endless pings", "slow", "malformed padding of data")}
_h2_check = _reader(HttpCheck(body_contains="fine"), True)
_grpc_check = _reader(GrpcCheck(), True)
_http_check = _reader(HttpCheck(body_contains="fine"), False)
_FINE = b"Content-Length: 4\r\n\r\nfine"
_TIME = "`health.active.timeout` in total"
_H2_BOUND = f"{http2.MAX_BODY_BYTES} B per body, {http2.MAX_OTHER_BYTES >> 10} KiB of everything else, {_TIME}"
READERS = (
    Reader(
        "health check, HTTP/1.1",
        f"{fetch.MAX_BODY_BYTES} B per body, {http_client.MAX_HEADERS} headers of "
        f"{http_client.MAX_HEADER_BYTES} B, {_TIME}",
        against(sends(_OK_1 + _FINE), _http_check),
        inputs(_http_check, _HTTP_PEERS),
        _SECONDS,
    ),
    Reader(
        "health check, HTTP/2",
        _H2_BOUND,
        against(_h2(_HEAD + frame(_DATA, _END, 1, b"all is fine")), _h2_check),
        inputs(_h2_check, _H2_PEERS),
        _SECONDS,
    ),
    Reader(
        "health check, gRPC",
        _H2_BOUND,
        against(_h2(_HEAD + _SERVING), _grpc_check),
        inputs(_grpc_check, _GRPC_PEERS),
        _SECONDS,
    ),
)
