"""Active and passive checks of a pool's replicas."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from lbctl.ir.pools import GrpcCheck, HttpCheck, Pool
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import duration, line
from lbctl.targets.token import Token

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
        yield from _grpc(pool.active.probe, pool.name)


def server_words(pool: Pool) -> Iterator[str]:
    """The servers' part: when, how often, what counts. After an ejection a replica comes back by good checks; without
    active ones the checks are timed so that two of them take the ejection time."""
    active, passive = pool.active, pool.passive
    if active:
        fall, rise = active.unhealthy_threshold, active.healthy_threshold
        yield f"check inter {active.interval}ms fall {fall} rise {rise}"
        if active.port is not None:
            yield f"port {active.port}"
            if isinstance(active.probe, HttpCheck) and pool.protocol != "http1":
                yield "check-proto h1"
    elif passive:
        half = max(1, passive.ejection_time // 2)
        yield f"check inter {_INTERVAL}ms fastinter {half}ms downinter {half}ms fall 3 rise 2"
    if passive:
        yield f"observe layer7 error-limit {passive.consecutive_5xx} on-error mark-down"


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


def _grpc(probe: GrpcCheck, pool: str) -> Iterator[Token]:
    """The standard health request: does the replica speak gRPC. Its answer lies in a body that HAProxy cannot read."""
    path = ("pools", pool, "health", "active", "grpc")
    yield line("option httpchk", source=path)
    yield line(
        "http-check send meth POST uri /grpc.health.v1.Health/Check ver HTTP/2 hdr host localhost",
        "hdr content-type application/grpc hdr te trailers",
        quote.line("body-lf", quote.word(f"%[{_message(probe.service)}]")),
    )
    yield Token("http-check expect status 200")


def _message(service: str) -> str:
    """HealthCheckRequest{service} behind gRPC's five bytes of length, in base64."""
    encoded = service.encode()
    size = len(encoded)
    message = (b"\x0a" + _varint(size) + encoded) if encoded else b""
    frame = b"\x00" + len(message).to_bytes(4) + message
    return f"str({base64.b64encode(frame).decode()}),b64dec"


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
