"""Forwarding headers of a trusted balancer are used; a stranger's on the same listener are not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind, is_rendered_for
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of, running
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica, Seen, replicas
from tests.support.processes.shared import shared, shared_replicas

_BALANCER, _STRANGER = "127.0.0.2", "127.0.0.3"
_CLIENT = "203.0.113.7"
_CLAIMS = {
    "x-forwarded-for": _CLIENT,
    "x-forwarded-proto": "https",
    "x-forwarded-host": "shop.example.com",
    "x-forwarded-port": "8443",
    "x-request-id": "chosen-by-the-client",
}


def _trusting_fleet(pool: list[Replica], header: str | None = None, *more: str) -> Fleet:
    client_address: dict[str, Any] = {"trusted": [f"{_BALANCER}/32", "198.51.100.0/24", *more]}
    return fleet_of(pool, listener={"client_address": client_address | ({"header": header} if header else {})})


def _from(gateway: Gateway, source: str, headers: dict[str, str]) -> Response:
    return Client(gateway.port, source=source).get("/", headers)


def _forwarded(seen: Seen) -> list[str]:
    return re.split(r"\s*,\s*", seen.header("x-forwarded-for") or "")


def test_headers_of_a_trusted_balancer_count(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, _trusting_fleet([a])) as gateway:
        answer = _from(gateway, _BALANCER, _CLAIMS)
        (line,) = gateway.access_log(1)
    seen = a.seen[-1]
    kept = ("x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-request-id")
    assert {name: seen.header(name) for name in kept} == {name: _CLAIMS[name] for name in kept}
    assert (line["client"], answer.header("x-request-id")) == (_CLIENT, "chosen-by-the-client")
    assert _forwarded(seen) == [_CLIENT, _BALANCER]


def test_headers_of_a_stranger_are_ignored(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, _trusting_fleet([a])) as gateway:
        answer = _from(gateway, _STRANGER, _CLAIMS)
        (line,) = gateway.access_log(1)
    seen = a.seen[-1]
    assert line["client"] == _STRANGER
    assert _CLIENT not in _forwarded(seen)
    assert (seen.header("x-forwarded-host"), seen.header("x-forwarded-port")) == (None, None)
    assert seen.header("x-forwarded-proto") == "http"
    assert len(answer.header("x-request-id") or "") >= 16
    assert "chosen" not in str(answer.header("x-request-id")) + str(seen.header("x-request-id"))


def test_nearest_untrusted_address_is_the_client(kind: Kind) -> None:
    """Addresses before it were written by that client and are ignored."""
    with shared_replicas("a") as pool, shared(kind, _trusting_fleet(pool)) as gateway:
        _from(gateway, _BALANCER, {"x-forwarded-for": f"192.0.2.66, {_CLIENT}, 198.51.100.2"})
        (line,) = gateway.access_log(1)
    assert line["client"] == _CLIENT


def test_balancer_without_header_is_the_client(kind: Kind) -> None:
    with shared_replicas("a") as pool, shared(kind, _trusting_fleet(pool)) as gateway:
        assert _from(gateway, _BALANCER, {}).ok
        (line,) = gateway.access_log(1)
    assert line["client"] == _BALANCER


def test_another_header_may_name_the_client(kind: Kind) -> None:
    reads_first_line = kind == "nginx" and not is_rendered_for(kind, "1.23")
    with shared_replicas("a") as (a,), shared(kind, _trusting_fleet([a], "x-client-ip")) as gateway:
        assert _from(gateway, _BALANCER, {"x-client-ip": _CLIENT}).ok
        assert _from(gateway, _STRANGER, {"x-client-ip": _CLIENT}).ok
        first, second = gateway.access_log(2)
        messages = gateway.messages
    assert (first["client"], second["client"]) == (_BALANCER if reads_first_line else _CLIENT, _STRANGER)
    assert ("LB406" in messages) == reads_first_line
    assert a.seen[-1].header("x-client-ip") is None


@pytest.mark.parametrize("network", ["127.0.0.0/8", "127.0.0.3/32", "10.0.0.0/8", "::1/128"])
def test_trusted_networks_are_ranges(kind: Kind, network: str) -> None:
    with shared_replicas("a") as pool, shared(kind, _trusting_fleet(pool, None, network)) as gateway:
        assert _from(gateway, _STRANGER, {"x-forwarded-for": _CLIENT}).ok
        (line,) = gateway.access_log(1)
    assert line["client"] == (_CLIENT if network.startswith("127.") else _STRANGER)


def test_client_may_be_in_a_trusted_network(kind: Kind) -> None:
    with shared_replicas("a") as pool, shared(kind, _trusting_fleet(pool)) as gateway:
        _from(gateway, _BALANCER, {"x-forwarded-for": "198.51.100.9"})
        (line,) = gateway.access_log(1)
    assert line["client"] == "198.51.100.9"


@pytest.mark.parametrize("header", [None, "x-real-ip", "x-client-ip"])
def test_forged_header_line_does_not_evade_the_limit(kind: Kind, header: str | None) -> None:
    """A limit by client applies, whatever a client's line before the balancer's own contains."""
    name = header or "x-forwarded-for"
    with replicas("a") as (a,):
        fleet = _trusting_fleet([a], header)
        fleet["routes"]["everything"]["rate_limit"] = [{"by": "client_ip", "rate": "2/m"}]
        with running(kind, fleet) as gateway:
            client = Client(gateway.port, source=_BALANCER)
            spoofed = [[(name, f"192.0.2.{n}"), (name.title(), _CLIENT)] for n in range(8)]
            statuses = [client.get("/", lines).status for lines in spoofed]
    assert statuses.count(200) == a.requests <= 2
    assert set(statuses) <= {200, 400, 429}


def test_x_real_ip_is_the_client_and_cannot_be_forged(kind: Kind) -> None:
    forged = {"x-forwarded-for": _CLIENT, "x-real-ip": "192.0.2.66", "x_real_ip": "192.0.2.66"}
    with shared_replicas("a") as (a,), shared(kind, _trusting_fleet([a])) as gateway:
        assert _from(gateway, _BALANCER, forged).ok
        assert _from(gateway, _STRANGER, forged).ok
    assert [_values(seen, "x-real-ip") for seen in a.seen] == [[_CLIENT], [_STRANGER]]
    assert "192.0.2.66" not in str([seen.headers for seen in a.seen])


def test_x_real_ip_is_the_peer_by_default(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a])) as gateway:
        assert _from(gateway, _STRANGER, {"X-Real-IP": "192.0.2.66"}).ok
    assert _values(a.seen[0], "x-real-ip") == [_STRANGER]


def test_fleet_names_the_headers_of_the_client_address(kind: Kind) -> None:
    client_address = {"trusted": [f"{_BALANCER}/32"], "forward": ["x-client", "x-peer"]}
    forged = {"x-forwarded-for": _CLIENT, "x-client": "192.0.2.66", "x-peer": "192.0.2.66", "x-real-ip": "own"}
    with (
        shared_replicas("a") as (a,),
        shared(kind, fleet_of([a], listener={"client_address": client_address})) as gateway,
    ):
        assert _from(gateway, _BALANCER, forged).ok
        assert _from(gateway, _STRANGER, forged).ok
    sent = [(_values(seen, "x-client"), _values(seen, "x-peer"), seen.header("x-real-ip")) for seen in a.seen]
    assert sent == [([_CLIENT], [_CLIENT], "own"), ([_STRANGER], [_STRANGER], None)]


def test_route_may_set_or_remove_x_real_ip(kind: Kind) -> None:
    with shared_replicas("a") as (a,):
        fleet = fleet_of([a])
        rules = {"set": {"request": {"set": {"x-real-ip": "hidden"}}}, "remove": {"request": {"remove": ["x-real-ip"]}}}
        (pool,) = fleet["pools"]
        fleet["routes"] = {
            name: {"match": {"path_prefix": f"/{name}"}, "pool": pool, "headers": headers}
            for name, headers in rules.items()
        }
        with shared(kind, fleet) as gateway:
            assert gateway.get("/set").ok
            assert gateway.get("/remove").ok
    assert [_values(seen, "x-real-ip") for seen in a.seen] == [["hidden"], []]


def _values(seen: Seen, name: str) -> list[str]:
    """Return the values of all lines of a header, with dashes or underscores."""
    return [value for header, value in seen.headers if header.lower().replace("_", "-") == name]
