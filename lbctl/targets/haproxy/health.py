"""Active and passive health checks of a pool's replicas."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.hosts import is_ip
from lbctl.ir.pools import GrpcCheck, HttpCheck, PassiveCheck, Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import duration, line
from lbctl.targets.haproxy.sections import CHECK_ROW, looked_up
from lbctl.targets.hosted import check_key
from lbctl.targets.token import Token

_SERVING = b"\x08\x01"
"""Message HealthCheckResponse{status: SERVING}."""
_MIN_FAILURES = 2
"""Minimum number of failed connections before a replica is ejected. A single failure may be caused by a lost packet."""
_RISE = 2
"""Number of checks that an ejected replica must pass if the pool does not have an active check."""
_INTERVAL = 10_000
"""Interval, in milliseconds, of the TCP checks needed for passive ejection if the pool does not have an active
check."""


def lines(pool: Pool, view: View) -> Iterator[Token]:
    """Yield the lines of the backend that define its check."""
    if pool.active is None:
        if pool.passive:
            yield line("timeout check", duration(3_000))
        return
    path = ("pools", pool.name, "health", "active")
    yield line("timeout check", duration(pool.active.timeout), source=(*path, "timeout"))
    if isinstance(pool.active.probe, HttpCheck):
        yield from _http(pool, pool.active.probe, view)
    elif isinstance(pool.active.probe, GrpcCheck):
        yield from _grpc(pool, pool.active.probe, view)


def default_server_arguments(pool: Pool, size: int, retries: int) -> Iterator[str]:
    """Yield the `default-server` arguments for check timing and for the failures to count in a pool of this `size`.

    `retries` is the number of retries of the pool's requests. After an ejection, a replica is readmitted when it passes
    checks. Without active checks, the interval is half the ejection time, so that two checks take that time.
    """
    active, passive = pool.active, pool.passive
    if active:
        fall, rise = active.unhealthy_threshold, active.healthy_threshold
        yield f"check inter {active.interval}ms fall {fall} rise {rise}"
        if active.port is not None:
            yield f"port {active.port}"
    elif passive:
        half = _half(passive)
        yield f"check inter {_INTERVAL}ms fastinter {half}ms downinter {half}ms fall 3 rise {_RISE}"
    if passive:
        yield f"observe {_observed(pool, passive, size, retries)} on-error mark-down"


def _half(passive: PassiveCheck) -> int:
    """Return the interval, in milliseconds, of the checks on an ejected replica in a pool without an active check."""
    return max(1, passive.ejection_time // 2)


def readmission(pool: Pool) -> str:
    """Describe when an ejected replica is readmitted; empty if HAProxy does not eject replicas."""
    if pool.passive is None:
        return ""
    checks, interval = _RISE, _half(pool.passive)
    if pool.active is not None:
        checks, interval = pool.active.healthy_threshold, pool.active.interval
    return (
        f"it receives requests again after {checks} passed check{'' if checks == 1 else 's'}, with one check every "
        f"{interval / 1000:g} s"
    )


def _observed(pool: Pool, passive: PassiveCheck, size: int, retries: int) -> str:
    """Return the events that eject a replica: responses, or failed connections, which a request cannot cause.

    HAProxy cannot limit the number of ejected replicas. For this reason, responses are taken into account only if the
    fleet sets `consecutive_5xx` or allows ejection of the entire pool, and never for a pool's only replica.

    With a bounded hash, all attempts of a request may go to the same dead replica, which looks idle while the others
    have reached their bound. Such a replica is therefore ejected before the last attempt, but never after a single
    failure.
    """
    if passive.ejects_without_bound and not _is_only(passive, size):
        return f"layer7 error-limit {passive.consecutive_5xx}"
    limit = passive.consecutive_connect_failures
    if pool.balance.bounded_load is not None:
        limit = min(limit, max(_MIN_FAILURES, retries))
    return f"layer4 error-limit {limit}"


def _is_only(passive: PassiveCheck, size: int) -> bool:
    """Return whether the pool has a single replica that must not be ejected.

    With a fallback pool, `max_ejection` is 100 % by default, so the replica may be ejected.
    """
    return size == 1 and passive.max_ejection < 100


def diagnostics(pool: Pool, size: int) -> Iterator[Diagnostic]:
    """Yield HAProxy's limitations when responses cause ejections.

    Such ejections are unbounded and share a counter with failed connections.
    """
    passive, path = pool.passive, ("pools", pool.name, "health", "passive")
    if passive is None or not passive.ejects_without_bound or _is_only(passive, size):
        return
    if passive.consecutive_connect_failures not in (
        passive.consecutive_5xx,
        PassiveCheck().consecutive_connect_failures,
    ):
        message = (
            "HAProxy has a single counter for connect failures and 5xx responses: consecutive_5xx limits both together"
        )
        code = BY_ID["pool.health.passive.connect_failures"].code
        yield Diagnostic(code, message, path=(*path, "consecutive_connect_failures"), severity="warning")
    if passive.max_ejection < 100:
        yield Diagnostic(
            BY_ID["pool.health.passive.max_ejection"].code,
            "HAProxy does not limit the number of ejected replicas: a single client's failing requests can eject the "
            "whole pool",
            path=(*path, "consecutive_5xx"),
            hint="remove consecutive_5xx, or set max_ejection: 100% if this is intended",
            severity="warning",
        )


def server_arguments(pool: Pool, replica: Replica | None = None) -> Iterator[str]:
    """Yield the arguments that must be repeated for each server, because `default-server` does not support them.

    A separate check port uses HTTP/1.1, as model servers do. `replica`: the server's replica, if known.
    """
    active = pool.active
    if active and replica is not None and pool.check_port(replica) != active.port:
        yield f"port {pool.check_port(replica)}"
    if active and active.port is not None and isinstance(active.probe, HttpCheck) and pool.protocol != "http1":
        yield "check-proto h1"


def agent_arguments(pool: Pool, proxy: Proxy, replica: Replica | None = None) -> Iterator[str]:
    """Yield the arguments of the agent check that queries the agent next to the replica.

    `replica`: the server's replica, if known. HAProxy connects to the server's own address. A server has at most one
    agent check, and the proxy's `agent_check` takes precedence.
    """
    if pool.agent is None or pool.active is None or proxy.agent_check is not None:
        return
    port = pool.agent.port if replica is None or replica.agent_port is None else replica.agent_port
    yield f"agent-check agent-port {port + 1} agent-inter {pool.active.interval}ms agent-send"
    yield quote.text(f"{_answers_of_agent(pool, proxy)}\n").text


def _answers_of_agent(pool: Pool, proxy: Proxy) -> str:
    """Return the word that HAProxy sends to an agent to request the responses that the servers need.

    `full` requests weights, drains and health. With the Runtime API, `serve` sets weights and drains, and a response
    would overwrite them: `health` only marks servers as up or down. Affinity and the picker can still select a server
    in drain mode, so it must be in maintenance mode instead.
    """
    if proxy.runtime_api:
        return "health"
    return "full maint" if pool.affinity or pool.session or pool.balance.pick else "full"


def _http(pool: Pool, probe: HttpCheck, view: View) -> Iterator[Token]:
    path = ("pools", pool.name, "health", "active", "http")
    yield line("option httpchk", source=path)
    host = quote.formatted(probe.host or _host(pool))
    uri = quote.word(probe.path, (*path, "path"))
    key = check_key(view, pool)
    credentials = ("hdr", key[0], quote.word(looked_up(pool, key[0], view.proxy))) if key else ()
    yield line("http-check send meth GET uri", uri, "ver HTTP/1.1 hdr host", host, *credentials)
    yield line("http-check expect status", ",".join(map(str, probe.statuses)), source=(*path, "statuses"))
    if probe.body_contains:
        body = quote.word(probe.body_contains, (*path, "body_contains"))
        yield line("http-check expect string", body)


def _host(pool: Pool) -> str:
    """Return the Host header of an HTTP check.

    HTTP/1.1 requires one, and a check does not have access to the address of the replica that it checks. If all
    replicas share a host name, the header is this name. Otherwise, it does not depend on the replicas, so that they can
    change without a reload.
    """
    names = {str(item.address) for item in pool.replicas if item.address.host and not is_ip(item.address.host)}
    return names.pop() if len(names) == 1 else "localhost"


def _grpc(pool: Pool, probe: GrpcCheck, view: View) -> Iterator[Token]:
    """Yield the lines that call the standard gRPC health service by sending HTTP/2 frames.

    HAProxy's HTTP checks can neither send nor match a zero byte, but every gRPC message begins with one. Any response
    other than SERVING is detected when the check times out. If the check sends a key, the frames are in the secrets
    file.
    """
    path = ("pools", pool.name, "health", "active", "grpc")
    yield line("option tcp-check", source=path)
    if check_key(view, pool):
        yield line("tcp-check send-binary-lf", quote.word(looked_up(pool, CHECK_ROW, view.proxy)))
    else:
        yield line("tcp-check send-binary", _request_bytes(pool, probe).hex())
    yield line("tcp-check expect binary", _message(_SERVING).hex())


def grpc_check_with_key(pool: Pool, view: View) -> str:
    """Return the bytes of a pool's gRPC check in hexadecimal if the pool has credentials; otherwise an empty string."""
    key = check_key(view, pool)
    if key is None or pool.active is None or not isinstance(pool.active.probe, GrpcCheck):
        return ""
    return _request_bytes(pool, pool.active.probe, *key).hex()


def _request_bytes(pool: Pool, probe: GrpcCheck, header: str = "", value: str = "") -> bytes:
    """Return an HTTP/2 connection with one request, `HealthCheckRequest{service}`, and optionally an additional header.

    The headers are HPACK literals; the last one is marked as never indexed.
    """
    service_bytes = probe.service.encode()
    request = (b"\x0a" + _varint(len(service_bytes)) + service_bytes) if service_bytes else b""
    headers = b"".join(
        (
            b"\x83",  # :method POST
            b"\x87" if pool.tls else b"\x86",
            b"\x04" + _string("/grpc.health.v1.Health/Check"),
            b"\x01" + _string("localhost"),
            b"\x0f\x10" + _string("application/grpc"),
            b"\x00" + _string("te") + _string("trailers"),
            b"\x10" + _string(header) + _string(value) if header else b"",
        )
    )
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return preface + _frame(4, 0, 0, b"") + _frame(1, 4, 1, headers) + _frame(0, 1, 1, _message(request))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _message(body: bytes) -> bytes:
    """Return a gRPC message: a five-byte prefix with the length, and the body."""
    return b"\x00" + len(body).to_bytes(4) + body


def _string(text: str) -> bytes:
    size = len(text)
    return (bytes((size,)) if size < 0x7F else b"\x7f" + _varint(size - 0x7F)) + text.encode()


def _varint(number: int) -> bytes:
    low_bytes = bytearray()
    while number >= 0x80:
        low_bytes.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*low_bytes, number])
