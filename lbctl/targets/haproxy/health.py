"""Active and passive checks of a pool's replicas."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.pools import GrpcCheck, HttpCheck, Pool
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import duration, line
from lbctl.targets.token import Token

_SERVING = b"\x08\x01"
"""HealthCheckResponse{status: SERVING}."""
_INTERVAL = 10_000
"""ms between the TCP checks that passive ejection needs where no active check is asked for."""


def lines(pool: Pool) -> Iterator[Token]:
    """The backend's part: how a check is done."""
    if pool.active is None:
        if pool.passive:
            yield line("timeout check", duration(3_000))
        return
    path = ("pools", pool.name, "health", "active")
    yield line("timeout check", duration(pool.active.timeout), source=(*path, "timeout"))
    if isinstance(pool.active.probe, HttpCheck):
        yield from _http(pool, pool.active.probe)
    elif isinstance(pool.active.probe, GrpcCheck):
        yield from _grpc(pool, pool.active.probe)


def server_words(pool: Pool) -> Iterator[str]:
    """The servers' part: when, how often, what counts. After an ejection a replica comes back by good checks; without
    active ones the checks are timed so that two of them take the ejection time."""
    active, passive = pool.active, pool.passive
    if active:
        fall, rise = active.unhealthy_threshold, active.healthy_threshold
        yield f"check inter {active.interval}ms fall {fall} rise {rise}"
        if active.port is not None:
            yield f"port {active.port}"
    elif passive:
        half = max(1, passive.ejection_time // 2)
        yield f"check inter {_INTERVAL}ms fastinter {half}ms downinter {half}ms fall 3 rise 2"
    if passive:
        yield f"observe layer7 error-limit {passive.consecutive_5xx} on-error mark-down"


def own_words(pool: Pool) -> Iterator[str]:
    """What stands with each server, since no `default-server` hands it on: a port of its own for checks speaks
    HTTP/1.1, as model servers' do."""
    active = pool.active
    if active and active.port is not None and isinstance(active.probe, HttpCheck) and pool.protocol != "http1":
        yield "check-proto h1"


def _http(pool: Pool, probe: HttpCheck) -> Iterator[Token]:
    path = ("pools", pool.name, "health", "active", "http")
    yield line("option httpchk", source=path)
    host = quote.formatted(probe.host or _host(pool))
    uri = quote.word(probe.path, (*path, "path"))
    yield line("http-check send meth GET uri", uri, "ver HTTP/1.1 hdr host", host)
    yield line("http-check expect status", ",".join(map(str, probe.statuses)), source=(*path, "statuses"))
    if probe.body_contains:
        body = quote.word(probe.body_contains, (*path, "body_contains"))
        yield line("http-check expect string", body)


def _host(pool: Pool) -> str:
    """HTTP/1.1 wants a name, and a check has no access to the replica's own address."""
    first = pool.replicas[0].address if pool.replicas else None
    return str(first) if first and first.host else "localhost"


def _grpc(pool: Pool, probe: GrpcCheck) -> Iterator[Token]:
    """The standard health service, asked in HTTP/2's own frames: HAProxy's HTTP checks send no body with a zero byte in
    it, and find none, and every message of gRPC begins with one. An answer other than SERVING is waited out."""
    path = ("pools", pool.name, "health", "active", "grpc")
    yield line("option tcp-check", source=path)
    yield line("tcp-check send-binary", _question(probe.service, "https" if pool.tls else "http").hex())
    yield line("tcp-check expect binary", _message(_SERVING).hex())


def _question(service: str, scheme: str) -> bytes:
    """A whole HTTP/2 conversation of one request, `HealthCheckRequest{service}`; headers as literals of HPACK."""
    encoded = service.encode()
    asked = (b"\x0a" + _varint(len(encoded)) + encoded) if encoded else b""
    headers = b"".join(
        (
            b"\x83",  # :method POST
            b"\x86" if scheme == "http" else b"\x87",
            b"\x04" + _text("/grpc.health.v1.Health/Check"),
            b"\x01" + _text("localhost"),
            b"\x0f\x10" + _text("application/grpc"),
            b"\x00" + _text("te") + _text("trailers"),
        )
    )
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return preface + _frame(4, 0, 0, b"") + _frame(1, 4, 1, headers) + _frame(0, 1, 1, _message(asked))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _message(body: bytes) -> bytes:
    """gRPC's five bytes of length before it."""
    return b"\x00" + len(body).to_bytes(4) + body


def _text(word: str) -> bytes:
    return bytes((len(word),)) + word.encode()


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
