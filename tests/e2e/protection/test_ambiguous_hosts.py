"""Every proxy rejects a host or a method that two servers could read differently, and a request without a host.

The host that the proxy compares with `match.hosts` and the host that the replica gets must be the same.
"""

from __future__ import annotations

import socket

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, fleet_of
from tests.support.processes.shared import shared, shared_replicas

_ROUTES = {
    "secret": {
        "match": {"path_prefix": "/", "hosts": ["secret"]},
        "pool": "pool",
        "auth": {"api_keys": {"file": "keys"}},
    },
    "wild": {
        "match": {"path_prefix": "/", "hosts": ["*.wild"]},
        "pool": "pool",
        "auth": {"api_keys": {"file": "keys"}},
    },
    "get": {
        "match": {"path_prefix": "/get", "methods": ["GET"]},
        "pool": "pool",
        "auth": {"api_keys": {"file": "keys"}},
    },
}
_FILES = {"keys": "sk-abc: acme\n"}
_MALFORMED = (
    *("", "h/x", "h h", "h, secret", "h,secret", "u@h", "h\\x", "h?x", "h#x", "h;x", "h%61", "*", "'h'", "h\xe9"),
    *("[::1].evil.com", "[::1", "::1", "[]", "[::g]", "[v1.x]", "[fe80::1%25eth0]", "[::1]x"),
    *("h:", "h:x", "h:8x", "h:65536", "h:99999999", "h:80:80", "secret:80:80", "secret:x", ":80"),
    *("h..x", ".h", "..", ".", ".wild", "a..wild", "secret.."),
)
_HOSTS = ("h", "a_b", "_x.y-z", "1.2.3.4", "127.1", "h.", "h:0", "h:65535", "[::1]", "[::1]:80", "[::ffff:1.2.3.4]")
_SECRET = ("secret", "SECRET", "secret.", "secret:80", "Secret.:80", "a.wild", "A.b.WILD:1")
_NONE = ((), ("Host: h", "Host: secret"), ("Host: secret", "Host: h"))
_TARGETS = ("http://secret/", "http://h:80:80/", "http://")
_METHODS = ("TRACE", "get", "Get", "GET1", "G.T", "post")


def test_malformed_host_is_refused(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as gateway:
        statuses = {host: gateway.get("/", {"host": host}).status for host in _MALFORMED}
        assert {host: status for host, status in statuses.items() if status != 400} == {}
        assert a.requests == 0


def test_valid_host_is_forwarded_and_bypasses_no_route(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as gateway:
        assert {host: gateway.get("/", {"host": host}).status for host in _SECRET} == dict.fromkeys(_SECRET, 401)
        assert {host: gateway.get("/", {"host": host}).status for host in _HOSTS} == dict.fromkeys(_HOSTS, 200)
        assert [(seen.header("host") or "").rstrip(".") for seen in a.seen] == [host.rstrip(".") for host in _HOSTS]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_request_has_exactly_one_host(kind: Kind, version: str) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as gateway:
        for lines in _NONE:
            assert _status(gateway, f"GET / HTTP/{version}", *lines) == b"400", lines
        assert a.requests == 0


def test_http_0_9_request_reaches_no_replica(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as gateway:
        _status(gateway, "GET /")
        assert a.requests == 0


def test_target_with_a_different_host_is_refused(kind: Kind) -> None:
    """Envoy replaces the Host by the target's before it chooses a route: the replica gets that host."""
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as gateway:
        for target in _TARGETS:
            assert _status(gateway, f"GET {target} HTTP/1.1", "Host: h") in (b"400", b"401"), target
        assert a.requests == 0
        status = _status(gateway, "GET http://h/ HTTP/1.1", "Host: secret")
        seen = [each.header("host") for each in a.seen]
        assert (status, seen) == ((b"200", ["h"]) if kind == "envoy" else (b"400", []))


@pytest.mark.parametrize("target", ["*", "h:443"])
def test_target_without_a_path_reaches_no_replica(kind: Kind, target: str) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as gateway:
        for method in ("GET", "OPTIONS", "CONNECT"):
            assert _status(gateway, f"{method} {target} HTTP/1.1", "Host: h") in (b"400", b"404", b"405")
        assert a.requests == 0


def test_lowercase_methods_trace_and_connect_are_refused(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as gateway:
        statuses = {method: gateway.request(method, "/get/x", {"host": "h"}).status for method in _METHODS}
        assert set(statuses.values()) <= {400, 405}, statuses
        assert gateway.request("CONNECT", "h:443", {"host": "h:443"}).status in (400, 404, 405)
        assert a.requests == 0
        assert gateway.request("PROPFIND", "/", {"host": "h"}).ok


def _status(gateway: Gateway, *lines: str) -> bytes:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as connection:
        connection.sendall("\r\n".join((*lines, "", "")).encode())
        return connection.recv(65536)[9:12]
