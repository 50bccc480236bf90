"""A balancer before the listener says in the PROXY protocol who the client is."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, bind, fleet_of, running
from tests.support.processes.replicas import Replica, replicas

_CLIENT, _CLIENT6 = "203.0.113.9", "2001:db8::9"
_V2 = b"\r\n\r\n\0\r\nQUIT\n"
_V1 = f"PROXY TCP4 {_CLIENT} 198.51.100.1 40000 443\r\n".encode()
_V1_6 = f"PROXY TCP6 {_CLIENT6} 2001:db8::1 40000 443\r\n".encode()
_PORTS = (40000).to_bytes(2) + (443).to_bytes(2)


def _v2(family: int, client: str, here: str, kind: int) -> bytes:
    addresses = socket.inet_pton(family, client) + socket.inet_pton(family, here) + _PORTS
    return _V2 + bytes((0x21, kind)) + len(addresses).to_bytes(2) + addresses


_HEADERS = {
    "v1": (_V1, _CLIENT),
    "v1, IPv6": (_V1_6, _CLIENT6),
    "v2": (_v2(socket.AF_INET, _CLIENT, "198.51.100.1", 0x11), _CLIENT),
    "v2, IPv6": (_v2(socket.AF_INET6, _CLIENT6, "2001:db8::1", 0x21), _CLIENT6),
}


def _fleet(pool: list[Replica], **listener: Any) -> Fleet:
    return fleet_of(pool, listener={"proxy_protocol": True, **listener})


def _behind(gateway: Gateway, preamble: bytes) -> Client:
    return Client(gateway.port, preamble=preamble)


@pytest.mark.parametrize("version", _HEADERS)
def test_proxy_header_sets_the_client_address(kind: Kind, version: str) -> None:
    header, client = _HEADERS[version]
    with replicas("a") as (a,), running(kind, _fleet([a])) as gateway:
        assert _behind(gateway, header).post("/v1/chat").ok
        (line,) = gateway.access_log(1)
    assert line["client"] == client
    assert a.seen[-1].header("x-forwarded-for") == client


def test_one_connection_carries_many_requests(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a])) as gateway:
        load = _behind(gateway, _V1).load(20, 2)
        lines = gateway.access_log(20)
    load.assert_no_failure()
    assert load.connections == 2
    assert {line["client"] for line in lines} == {_CLIENT}


def test_connection_without_the_header_is_closed(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet([a])) as gateway:
        assert not gateway.get(timeout=5).ok
        assert not _behind(gateway, b"PROXY nonsense\r\n").get(timeout=5).ok
        assert _behind(gateway, _V1).get().ok
    assert a.requests == 1


def test_health_check_of_a_balancer_is_served(kind: Kind) -> None:
    """It speaks for nobody: LOCAL in v2."""
    with replicas("a") as (a,), running(kind, _fleet([a])) as gateway:
        assert _behind(gateway, _V2 + b"\x20\x00\x00\x00").get().ok
        (line,) = gateway.access_log(1)
    assert line["client"] == "127.0.0.1"


def test_other_listener_rejects_the_proxy_header(kind: Kind) -> None:
    with replicas("a") as (a,):
        fleet = _fleet([a])
        fleet["listeners"]["plain"] = {"bind": bind()}
        with running(kind, fleet) as gateway:
            answer = Client(gateway.ports["plain"], preamble=_V1).get(timeout=5)
            assert not answer.ok
            assert gateway.connect("plain").get().ok
    assert [seen.header("x-forwarded-for") == _CLIENT for seen in a.seen] == [False]


def test_client_headers_stay_untrusted(kind: Kind) -> None:
    """The PROXY protocol names the client; as such it is not trusted to name others."""
    listener = {"client_address": {"trusted": ["10.0.0.0/8"]}}
    with replicas("a") as (a,), running(kind, _fleet([a], **listener)) as gateway:
        claimed = {"x-forwarded-for": "198.51.100.77", "x-forwarded-host": "evil.example.com"}
        assert _behind(gateway, _V1).get(headers=claimed).ok
    seen = a.seen[-1]
    assert "198.51.100.77" not in (seen.header("x-forwarded-for") or "")
    assert seen.header("x-forwarded-host") is None
