"""A balancer in front of the listener names the client in the PROXY protocol."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.processes.binaries import KINDS
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of, running, side_by_side
from tests.support.processes.log_lines import Line, lines_of
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
    "v1-ipv6": (_V1_6, _CLIENT6),
    "v2": (_v2(socket.AF_INET, _CLIENT, "198.51.100.1", 0x11), _CLIENT),
    "v2-ipv6": (_v2(socket.AF_INET6, _CLIENT6, "2001:db8::1", 0x21), _CLIENT6),
}


@dataclass(frozen=True, slots=True)
class _Site:
    """A proxy with a listener for each test, and the replica of all of them."""

    gateway: Gateway
    replica: Replica

    def behind(self, listener: str, preamble: bytes) -> Client:
        """Return a client whose connections begin with these bytes."""
        return Client(self.gateway.ports[listener], preamble=preamble)

    def lines(self, listener: str, count: int) -> list[Line]:
        return lines_of(self.gateway.proxy, count, listener=listener)


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest) -> Iterator[_Site]:
    with replicas("a") as (a,):
        listeners = {
            name: fleet_of([a], listener={"proxy_protocol": True})
            for name in ("v1", "v1-ipv6", "v2", "v2-ipv6", "many", "missing", "local")
        }
        listeners["plain"] = fleet_of([a])
        untrusted = {"client_address": {"trusted": ["10.0.0.0/8"]}}
        listeners["untrusted"] = fleet_of([a], listener={"proxy_protocol": True, **untrusted})
        with running(request.param, side_by_side(listeners)) as gateway:
            yield _Site(gateway, a)


@pytest.mark.parametrize("version", _HEADERS)
def test_proxy_header_sets_the_client_address(site: _Site, version: str) -> None:
    header, client = _HEADERS[version]
    assert site.behind(version, header).post("/v1/chat").ok
    (line,) = site.lines(version, 1)
    assert line["client"] == client
    assert site.replica.seen[-1].header("x-forwarded-for") == client


def test_one_connection_carries_many_requests(site: _Site) -> None:
    load = site.behind("many", _V1).load(20, 2)
    lines = site.lines("many", 20)
    load.assert_no_failure()
    assert load.connections == 2
    assert {line["client"] for line in lines} == {_CLIENT}


def test_connection_without_the_header_is_closed(site: _Site) -> None:
    site.replica.forget()
    assert not site.gateway.connect("missing").get(timeout=5).ok
    assert not site.behind("missing", b"PROXY nonsense\r\n").get(timeout=5).ok
    assert site.behind("missing", _V1).get().ok
    assert site.replica.requests == 1


def test_health_check_of_a_balancer_is_served(site: _Site) -> None:
    """The balancer connects on behalf of no client: LOCAL in version 2."""
    assert site.behind("local", _V2 + b"\x20\x00\x00\x00").get().ok
    (line,) = site.lines("local", 1)
    assert line["client"] == "127.0.0.1"


def test_other_listener_rejects_the_proxy_header(site: _Site) -> None:
    site.replica.forget()
    assert not site.behind("plain", _V1).get(timeout=5).ok
    assert site.gateway.connect("plain").get().ok
    assert [seen.header("x-forwarded-for") == _CLIENT for seen in site.replica.seen] == [False]


def test_client_headers_stay_untrusted(site: _Site) -> None:
    """The PROXY protocol names the client, whose own headers are still not trusted."""
    claimed = {"x-forwarded-for": "198.51.100.77", "x-forwarded-host": "evil.example.com"}
    assert site.behind("untrusted", _V1).get(headers=claimed).ok
    seen = site.replica.seen[-1]
    assert "198.51.100.77" not in (seen.header("x-forwarded-for") or "")
    assert seen.header("x-forwarded-host") is None
