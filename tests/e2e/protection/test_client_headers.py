"""Forged forwarding headers and lbctl's internal headers do not reach a replica."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of
from tests.support.processes.replicas import Seen
from tests.support.processes.shared import shared, shared_replicas

_BALANCER, _STRANGER = "127.0.0.2", "127.0.0.3"
_TRUSTING = {"client_address": {"trusted": [f"{_BALANCER}/32"]}}
_CLAIMS = (
    *(
        "Forwarded",
        "X-Forwarded-Host",
        "X-Forwarded-Port",
        "X-Forwarded-Prefix",
        "X-Forwarded-Client-Cert",
        "X-Real-IP",
    ),
    *("X-Client-IP", "True-Client-IP", "CF-Connecting-IP", "X-Cluster-Client-IP", "X-Original-Forwarded-For", "Proxy"),
    *("X-Original-URL", "X-Rewrite-URL", "X-Original-Host", "X-Host", "X-HTTP-Method-Override", "X-SSL-Client-Cert"),
)
_UNDERSCORED = ("X_Forwarded_For", "X_Forwarded_Proto", "X_Real_IP", "x_forwarded-host", "X_Original_URL")
_INTERNAL = ("x-lbctl-internal-tenant", "X-Lbctl-Internal-Token", "x_lbctl_internal_tenant", "x-lbctl-internal-anyone")


def _sent(seen: Seen) -> list[tuple[str, str]]:
    """Return the headers with the value that only the client of these tests sends."""
    return [(name, value) for name, value in seen.headers if "forged" in value]


@pytest.mark.parametrize("listener", [None, _TRUSTING])
def test_forwarding_headers_of_a_stranger_are_removed(kind: Kind, listener: dict[str, Any] | None) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=listener)) as gateway:
        lines = [(name, "forged") for name in (*_CLAIMS, *_UNDERSCORED)]
        lines += [
            ("X-Forwarded-For", "forged"),
            ("x-forwarded-for", "192.0.2.1, forged"),
            ("x-forwarded-proto", "forged"),
        ]
        assert Client(gateway.port, source=_STRANGER).get("/", lines).ok
    assert _sent(a.seen[0]) == []
    assert "192.0.2.1" not in str(a.seen[0].header("x-forwarded-for"))
    assert a.seen[0].header("x-forwarded-proto") == "http"


def test_forwarding_headers_of_a_trusted_peer_are_kept(kind: Kind) -> None:
    kept = [name for name in _CLAIMS if name not in ("Proxy", "X-Real-IP")]
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_TRUSTING)) as gateway:
        assert Client(gateway.port, source=_BALANCER).get("/", [(name, "forged") for name in kept]).ok
    assert {name.lower() for name, _ in _sent(a.seen[0])} == {name.lower() for name in kept}


@pytest.mark.parametrize("source", [_BALANCER, _STRANGER])
def test_internal_headers_are_always_removed(kind: Kind, source: str) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_TRUSTING)) as gateway:
        lines = [(name, "forged") for name in (*_INTERNAL, "Content_Length", "Transfer_Encoding")]
        assert Client(gateway.port, source=source).get("/", lines).ok
    assert _sent(a.seen[0]) == []


@pytest.mark.parametrize(
    "header",
    [
        b"X-A: a\0b",
        b"Transfer-Encoding: chunked,",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    ],
)
def test_ambiguous_framing_is_refused(kind: Kind, header: bytes) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a])) as gateway:
        answer = _raw(gateway, b"POST / HTTP/1.1\r\nHost: h\r\n" + header + b"\r\n\r\n2\r\nab\r\n0\r\n\r\n")
        assert answer.split(b" ")[1] in (b"400", b"501")
        assert a.requests == 0


def test_http_1_0_with_chunks_is_refused(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a])) as gateway:
        lines = b"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
        assert _raw(gateway, lines).split(b" ")[1] == b"400"
        assert a.requests == 0


def test_http_1_0_is_served(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a])) as gateway:
        assert _raw(gateway, b"GET / HTTP/1.0\r\nHost: h\r\n\r\n").split(b" ")[1] == b"200"
    assert a.seen[0].header("x-envoy-framing") is None


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_malformed_request_is_a_400_of_json(kind: Kind) -> None:
    """HAProxy has no setting for this answer."""
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a])) as gateway:
        answer = _raw(gateway, b"GET / HTTP/1.1\r\nhost\r\n\r\n", b"}}")
    assert answer.split(b" ")[1] == b"400"
    assert b'{"error":{"message":"the request is not valid HTTP"' in answer


@pytest.mark.parametrize("offer", ["TLS/1.2", "h2c", "websockets", "TLS/1.0, HTTP/1.1"])
def test_offered_upgrade_is_ignored(kind: Kind, offer: str) -> None:
    """Apache HttpClient 5.4 offers TLS with every cleartext request."""
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a])) as gateway:
        answer = gateway.post("/", b"x", {"Connection": "Upgrade", "Upgrade": offer})
    assert (answer.status, a.seen[0].body, a.seen[0].header("upgrade")) == (200, b"x", None)


def test_connection_header_removes_no_proxy_header(kind: Kind) -> None:
    """A proxy that obeys `Connection: x-forwarded-for` would remove the header before the server reads it."""
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a])) as gateway:
        gateway.get("/", {"Connection": "close, x-forwarded-for, x-request-id"})
    assert all("x-" not in (seen.header("connection") or "") for seen in a.seen)


def _raw(gateway: Gateway, request: bytes, last: bytes = b"") -> bytes:
    """Return the answer up to its bytes `last`; without them, its first piece."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as connection:
        connection.sendall(request)
        answer = connection.recv(65536)
        while last not in answer and (piece := connection.recv(65536)):
            answer += piece
        return answer
