"""Only the gateway sets the tenant header, and credentials reach the replica only if they are forwarded."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, bind, fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, Seen, replicas
from tests.support.processes.shared import shared, shared_replicas
from tests.support.processes.tokens import ISSUER, Issuer, bearer
from tests.support.processes.waiting import eventually

_ISSUER = Issuer()
_KEYS = {"file": "keys", "header": "x-key"}
_JWT = {"issuer": ISSUER, "jwks_file": "jwks.json", "tenant_claim": "org"}
_FORGED: Sequence[tuple[str, str]] = (
    ("X-Tenant", "forged"),
    ("x-tenant", "again"),
    ("X_TENANT", "so"),
    ("x_tenant", ""),
)
"""CGI and WSGI servers read `x_tenant` and `x-tenant` as the same header."""
_OPEN = {"match": {"path_prefix": "/open"}, "pool": "pool"}


@contextmanager
def _protected(kind: Kind, auth: dict[str, Any], **sections: Any) -> Iterator[tuple[Gateway, Replica]]:
    route = {"auth": {"forward_tenant": "x-tenant", **auth}, **sections.pop("route", {})}
    files = {"keys": "sk-abc: acme\n", "jwks.json": _ISSUER.jwks()}
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], route=route, **sections), files=files) as gateway:
        yield gateway, a


def _tenants(seen: Seen) -> list[str]:
    return [value for name, value in seen.headers if name.lower().replace("_", "-") == "x-tenant"]


def test_only_the_gateway_names_the_tenant(kind: Kind) -> None:
    with _protected(kind, {"api_keys": _KEYS}, routes={"open": _OPEN}) as (gateway, a):
        gateway.get(headers=[*_FORGED, ("x-key", "sk-abc")])
        gateway.post("/v1/chat", b"{}", [("x-key", "sk-abc")])
        gateway.get("/open", [*_FORGED, ("x-key", "sk-abc")])
        gateway.get("/open", [("x-key", "sk-abc")])
        lines = gateway.access_log(4)
    assert [_tenants(seen) for seen in a.seen] == [["acme"], ["acme"], [], []]
    assert [line["tenant"] for line in lines] == ["acme", "acme", None, None]


def test_http1_trailer_names_no_tenant(kind: Kind) -> None:
    """Servers such as uvicorn with httptools read trailers as headers; HAProxy requires a length instead of chunks."""
    chunks = b"2\r\nab\r\n0\r\nx-tenant: forged\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: h\r\nx-key: sk-abc\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    received: list[bytes] = []
    with (
        _recorder(received) as replica,
        running(kind, _tenant_fleet(replica), files={"keys": "sk-abc: acme\n"}) as gateway,
    ):
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as connection:
            connection.sendall(head + chunks)
            status = connection.recv(65536)[9:12]
        sent = b"POST / HTTP/1.1\r\nHost: h\r\nx-key: sk-abc\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab"
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as connection:
            connection.sendall(sent)
            assert connection.recv(65536)[9:12] == b"200"
    assert status == (b"411" if kind == "haproxy" else b"200")
    assert b"forged" not in b"".join(received)
    assert b"x-tenant: acme" in b"".join(received)


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_http2_trailer_names_no_tenant(kind: Kind) -> None:
    """nginx 1.22 ends the connection."""
    received: list[bytes] = []
    with (
        _recorder(received) as replica,
        running(kind, _tenant_fleet(replica), files={"keys": "sk-abc: acme\n"}) as gateway,
    ):
        bodies: tuple[bytes | None, ...] = (None, b"", b"ab")
        with ThreadPoolExecutor() as pool:
            sent = [pool.submit(_h2, gateway.port, body, trailers) for body in bodies for trailers in (False, True)]
            sent += [
                pool.submit(_h2, gateway.port, body, True, ("content-length", str(len(body)))) for body in (b"", b"ab")
            ]
        statuses = [each.result() for each in sent[:6]]
        with_length = [each.result() for each in sent[6:]]
    assert statuses == ["200", *(["411"] * 5 if kind == "haproxy" else ["200"] * 5)]
    assert with_length == ["200"] * 2
    assert b"forged" not in b"".join(received)


def _tenant_fleet(address: str) -> Fleet:
    auth = {"api_keys": _KEYS, "forward_tenant": "x-tenant"}
    return fleet_of({"replicas": [{"name": "a", "address": address}]}, route={"auth": auth})


def _h2(port: int, body: bytes | None, trailers: bool, *more: tuple[str, str]) -> str:
    """Return the status of a POST with `more` headers; "" if the connection ends. `body`: None sends no DATA frame."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    client.initiate_connection()
    head = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "h"), ("x-key", "sk-abc"), *more]
    client.send_headers(1, head, end_stream=body is None and not trailers)
    if body is not None:
        client.send_data(1, body, end_stream=not trailers)
    if trailers:
        client.send_headers(1, [("x-tenant", "forged")], end_stream=True)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(client.data_to_send())
        while data := connection.recv(65536):
            for event in client.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    return str(dict(event.headers)[":status"])
    return ""


class _Recording(socketserver.BaseRequestHandler):
    """Stores all bytes of a request until the peer is silent, and returns 200."""

    received: list[bytes]

    def handle(self) -> None:
        self.request.settimeout(0.3)
        with suppress(TimeoutError):
            while data := self.request.recv(65536):
                self.received.append(data)
        with suppress(OSError):
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@contextmanager
def _recorder(received: list[bytes]) -> Iterator[str]:
    """Yield the address of a server that stores the bytes of requests, including trailers."""
    handler = type("Handler", (_Recording,), {"received": received})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_only_the_gateway_names_the_tenant_of_a_token(kind: Kind) -> None:
    with _protected(kind, {"jwt": _JWT}, routes={"open": _OPEN}) as (gateway, a):
        gateway.get(headers=[*_FORGED, *bearer(_ISSUER.rs256()).items()])
        gateway.get(headers=[*_FORGED, *bearer(_ISSUER.rs256(org=None)).items()])
        gateway.get("/open", [*_FORGED, *bearer(_ISSUER.rs256()).items()])
    assert [_tenants(seen) for seen in a.seen] == [["acme"], [], []]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("nginx", {"auth": {"jwt": _JWT, "forward_tenant": "x-tenant"}}),
        ("envoy", {"rate_limit": [{"by": "all", "concurrent": 5}]}),
    ],
)
def test_tenant_cannot_be_forged_next_to_a_closed_route(kind: Kind, keys: dict[str, Any]) -> None:
    with _protected(kind, {"api_keys": _KEYS}, route=keys, routes={"open": _OPEN}) as (gateway, a):
        assert gateway.get(headers=[("x-key", "sk-abc")]).status == 503
        assert gateway.get("/open", _FORGED).ok
    assert _tenants(a.seen[0]) == []


def test_two_tenant_headers_are_protected_on_every_route(kind: Kind) -> None:
    other = {"match": {"path_prefix": "/other"}, "pool": "pool", "auth": {"api_keys": _KEYS, "forward_tenant": "X-Org"}}
    silent = {"match": {"path_prefix": "/silent"}, "pool": "pool", "auth": {"api_keys": _KEYS}}
    with _protected(kind, {"api_keys": _KEYS}, routes={"other": other, "silent": silent}) as (gateway, a):
        for path in ("/", "/other", "/silent"):
            gateway.get(path, [*_FORGED, ("x-org", "forged"), ("X_Org", "so"), ("x-key", "sk-abc")])
        lines = gateway.access_log(3)
    assert {seen.header(name) for seen in a.seen for name in ("x_tenant", "x_org")} == {None}
    assert [(seen.header("x-tenant"), seen.header("x-org")) for seen in a.seen] == [
        ("acme", None),
        (None, "acme"),
        (None, None),
    ]
    assert [line["tenant"] for line in lines] == ["acme"] * 3


def test_tenant_cannot_be_forged_on_a_second_listener(kind: Kind) -> None:
    with _protected(kind, {"api_keys": _KEYS}, listeners={"b": {"bind": bind()}}, routes={"open": _OPEN}) as (
        gateway,
        a,
    ):
        second = gateway.connect("b")
        second.get(headers=[*_FORGED, ("x-key", "sk-abc")])
        second.get("/open", _FORGED)
    assert [_tenants(seen) for seen in a.seen] == [["acme"], []]


def test_trusted_peers_cannot_forge_the_tenant(kind: Kind) -> None:
    trusting = {"client_address": {"trusted": ["127.0.0.0/8"]}}
    with _protected(kind, {"api_keys": _KEYS}, listener=trusting, routes={"open": _OPEN}) as (gateway, a):
        gateway.get("/open", [*_FORGED, ("x-forwarded-for", "203.0.113.1")])
    assert _tenants(a.seen[0]) == []


@pytest.mark.parametrize("forwarded", [False, True])
def test_key_reaches_the_replica_only_if_forwarded(kind: Kind, forwarded: bool) -> None:
    for header, value in (("authorization", "Bearer sk-abc"), ("x-key", "sk-abc")):
        auth = {"api_keys": {"file": "keys", "header": header}, "forward_credentials": forwarded}
        with _protected(kind, auth, routes={"open": _OPEN}) as (gateway, a):
            assert gateway.get(headers={header.title(): value}).ok
            assert gateway.get("/open", {header: value}).ok
        assert [seen.header(header) for seen in a.seen] == [value if forwarded else None, value]


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
@pytest.mark.parametrize("forwarded", [False, True])
def test_token_reaches_the_replica_only_if_forwarded(kind: Kind, forwarded: bool) -> None:
    token = bearer(_ISSUER.rs256())
    with _protected(kind, {"jwt": _JWT, "forward_credentials": forwarded}) as (gateway, a):
        assert gateway.get(headers=token).ok
    assert a.seen[0].header("authorization") == (token["Authorization"] if forwarded else None)


def test_pin_and_fallback_get_the_same_tenant(kind: Kind) -> None:
    """The pool of the route refuses connections, so that the fallback gets the request; the pin leads elsewhere."""
    with replicas("a", "spare", "pinned") as (a, spare, pinned):
        a.refuse()
        pools = {"pool": pool_of([a]), "spare": pool_of([spare]), "pinned": pool_of([pinned])}
        pools["pool"]["health"] = {
            "active": {"tcp": {}, "interval": "100ms", "timeout": "100ms", "unhealthy_threshold": 1}
        }
        pin = [{"header": "x-pin", "equals": "1", "pool": "pinned"}]
        route = {"fallback": "spare", "pin": pin, "auth": {"api_keys": _KEYS, "forward_tenant": "x-tenant"}}
        with running(
            kind, fleet_of(pools["pool"], route=route, pools=pools), files={"keys": "sk-abc: acme\n"}
        ) as gateway:
            eventually(lambda: gateway.get(headers=[*_FORGED, ("x-key", "sk-abc")]).ok)
            assert gateway.get(headers=[*_FORGED, ("x-key", "sk-abc"), ("x-pin", "1")]).ok
            assert gateway.get(headers=[*_FORGED, ("x-pin", "1")]).status == 401
    for seen in (*spare.seen, *pinned.seen):
        assert (_tenants(seen), seen.header("x-key")) == (["acme"], None)
    assert (len(spare.seen), len(pinned.seen)) == (1, 1)


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_mirror_gets_the_tenant_and_no_key(kind: Kind) -> None:
    with replicas("a", "shadow") as (a, shadow):
        pools = {"pool": pool_of([a]), "shadow": pool_of([shadow])}
        auth = {"api_keys": _KEYS, "forward_tenant": "x-tenant"}
        route = {"mirror": {"pool": "shadow", "percent": "100%"}, "auth": auth}
        with running(
            kind, fleet_of(pools["pool"], route=route, pools=pools), files={"keys": "sk-abc: acme\n"}
        ) as gateway:
            assert gateway.get(headers=[*_FORGED, ("x-key", "sk-abc")]).ok
            assert gateway.get(headers=[*_FORGED, ("x-key", "wrong")]).status == 401
            eventually(lambda: len(shadow.seen) > 0)
    assert [(_tenants(seen), seen.header("x-key")) for seen in shadow.seen] == [(["acme"], None)]
