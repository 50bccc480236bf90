"""An upgrade passes only on routes that enable WebSockets, and only to WebSocket."""

from __future__ import annotations

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import Replica, replicas


def _fleet(replica: Replica) -> Fleet:
    """Return a fleet with routes by header, because the replica serves WebSocket at one path."""
    sockets = {"match": {"path_prefix": "/", "hosts": ["127.0.0.1"]}, "pool": "pool", "websocket": True}
    plain = {"match": {"path_prefix": "/", "hosts": ["localhost"]}, "pool": "pool"}
    return {**fleet_of([replica]), "routes": {"sockets": sockets, "plain": plain}}


_HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def test_only_the_websocket_route_upgrades(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet(a)) as gateway:
        echo = gateway.websocket("/ws", ["one"])
        refused = gateway.get("/ws", {**_HANDSHAKE, "host": "localhost"}, timeout=5)
        after = gateway.get("/x", {"host": "localhost"})
    assert (echo.status, echo.replies) == (101, ("one",))
    assert refused.status != 101
    assert [seen for seen in a.seen if seen.header("host") == "localhost" and seen.header("upgrade")] == []
    assert after.ok


def test_other_protocols_are_not_upgraded(kind: Kind) -> None:
    """h2c would carry requests that bypass every rule."""
    headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
    with replicas("a") as (a,), running(kind, _fleet(a)) as gateway:
        answers = [gateway.get("/x", {**headers, "host": host}, timeout=5) for host in ("127.0.0.1", "localhost")]
    assert 101 not in [answer.status for answer in answers]
    assert [seen.header("upgrade") for seen in a.seen if seen.header("upgrade")] == []


def test_connection_headers_are_not_forwarded(kind: Kind) -> None:
    sent = {"http2-settings": "AAMAAABkAAQAAP__", "keep-alive": "timeout=5", "proxy-connection": "keep-alive"}
    with replicas("a") as (a,), running(kind, _fleet(a)) as gateway:
        assert all(gateway.get("/x", {**sent, "host": host}).ok for host in ("127.0.0.1", "localhost"))
    assert [name for seen in a.seen for name, _ in seen.headers if name.lower() in sent] == []


def test_no_other_protocol_is_offered_with_websocket(kind: Kind) -> None:
    both = [("upgrade", "h2c"), *((name, value) for name, value in _HANDSHAKE.items()), ("host", "127.0.0.1")]
    with replicas("a") as (a,), running(kind, _fleet(a)) as gateway:
        gateway.get("/ws", both, timeout=5)
    assert [value for seen in a.seen for name, value in seen.headers if name.lower() == "upgrade"] in (
        [],
        ["websocket"],
    )


def _assert_no_tunnel(kind: Kind, protocol: str) -> None:
    headers = {**_HANDSHAKE, "upgrade": protocol, "host": "localhost"}
    with replicas("a") as (a,), running(kind, _fleet(a)) as gateway:
        a.behave(status=101)
        answer = gateway.get("/x", headers, timeout=5)
    assert answer.status != 101


def test_replica_opens_no_websocket_by_itself(kind: Kind) -> None:
    _assert_no_tunnel(kind, "websocket")


@pytest.mark.parametrize("protocol", ["TLS/1.2", "other"])
def test_replica_of_haproxy_opens_no_tunnel_by_itself(protocol: str) -> None:
    """Envoy forwards the 101 and still parses requests; nginx opens a tunnel (docs/reference/capabilities.md)."""
    _assert_no_tunnel("haproxy", protocol)
