"""A pool behind a DNS name follows the addresses that the configured resolvers return."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.checks import OFTEN
from tests.support.processes.dns import DnsServer, serving_dns
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas, replicas_on_one_port
from tests.support.processes.waiting import eventually

_NAME = "embedder.ml.internal"
_RESOLVING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])


def _fleet_with_dns(port: int, dns: DnsServer, **keys: Any) -> Fleet:
    dns_keys = {"name": _NAME, "port": port, "refresh": "500ms", "resolvers": [dns.address]}
    return fleet_of({"discovery": {"dns": dns_keys}, "balance": {"algorithm": "round_robin"}, **keys})


@_RESOLVING
def test_each_address_of_the_name_is_a_replica(kind: Kind) -> None:
    with (
        replicas_on_one_port("a", "b") as (a, b),
        serving_dns(**{_NAME: [a.host, b.host]}) as dns,
        running(kind, _fleet_with_dns(a.port, dns)) as gateway,
    ):
        eventually(lambda: gateway.load(12).by_replica == {"a": 6, "b": 6})
    assert set(dns.asked) == {_NAME}


@_RESOLVING
def test_pool_follows_added_and_removed_addresses(kind: Kind) -> None:
    """No request fails meanwhile."""
    with (
        replicas_on_one_port("a", "b", "c") as (a, b, c),
        serving_dns(**{_NAME: [a.host]}) as dns,
        running(kind, _fleet_with_dns(a.port, dns)) as gateway,
    ):
        eventually(lambda: gateway.load(6).by_replica == {"a": 6})
        dns.names[_NAME] = [a.host, b.host]
        eventually(lambda: _serving_replicas(gateway.load(12)) == {"a", "b"})
        dns.names[_NAME] = [b.host, c.host]
        eventually(lambda: _serving_replicas(gateway.load(12)) == {"b", "c"})
        a.forget()
        gateway.load(40, 2).assert_no_failure()
        assert a.requests == 0


def _serving_replicas(load: Any) -> set[str]:
    load.assert_no_failure()
    return set(load.by_replica)


@_RESOLVING
def test_unknown_name_answers_503_until_it_resolves(kind: Kind) -> None:
    with replicas("a") as (a,), serving_dns() as dns, running(kind, _fleet_with_dns(a.port, dns)) as gateway:
        eventually(lambda: dns.asked[_NAME] > 0)
        answer = gateway.get()
        assert (answer.status, answer.json["error"]["type"]) == (503, "unavailable")
        dns.names[_NAME] = [a.host]
        eventually(lambda: gateway.get().ok)


@_RESOLVING
def test_silent_resolver_removes_no_replica(kind: Kind) -> None:
    with (
        replicas("a") as (a,),
        serving_dns(**{_NAME: [a.host]}) as dns,
        running(kind, _fleet_with_dns(a.port, dns)) as gateway,
    ):
        eventually(lambda: gateway.get().ok)
        dns.silent = True
        before = dns.asked.total()
        eventually(lambda: dns.asked.total() >= before + 2)
        gateway.load(20, 2).assert_no_failure()


@_RESOLVING
def test_discovered_replicas_are_checked(kind: Kind) -> None:
    check = {**OFTEN, "http": {"path": "/health"}}
    with (
        replicas_on_one_port("a", "b") as (a, b),
        serving_dns(**{_NAME: [a.host, b.host]}) as dns,
        running(kind, _fleet_with_dns(a.port, dns, health={"active": check})) as gateway,
    ):
        eventually(lambda: set(gateway.load(12).by_replica) == {"a", "b"})
        b.behave(health=503)
        eventually(lambda: gateway.load(12).by_replica == {"a": 12}, pause=0.2)


@_RESOLVING
def test_answers_longer_than_512_bytes_are_read(kind: Kind) -> None:
    """A resolver truncates an answer that is longer than the size in the query."""
    with (
        replicas_on_one_port(*(f"r{number}" for number in range(40))) as all_replicas,
        serving_dns(**{_NAME: [replica.host for replica in all_replicas]}) as dns,
    ):
        fleet = _fleet_with_dns(all_replicas[0].port, dns)
        fleet["pools"]["pool"]["discovery"]["dns"]["max_replicas"] = 64
        with running(kind, fleet) as gateway:
            eventually(lambda: len(gateway.load(80).by_replica) == 40)


def test_haproxy_uses_at_most_max_replicas() -> None:
    with (
        replicas_on_one_port("a", "b") as (a, b),
        serving_dns(**{_NAME: [a.host, b.host]}) as dns,
    ):
        fleet = _fleet_with_dns(a.port, dns)
        fleet["pools"]["pool"]["discovery"]["dns"]["max_replicas"] = 1
        with running("haproxy", fleet) as gateway:
            eventually(lambda: gateway.load(12).statuses == {200: 12})
            assert len(gateway.load(12).by_replica) == 1


def test_nginx_resolves_at_start_and_reports_it() -> None:
    with replicas("a") as (a,):
        pool = {"discovery": {"dns": {"name": "localhost", "port": a.port}}}
        with running("nginx", fleet_of(pool)) as gateway:
            assert "warning LB487" in gateway.messages
            gateway.load(10).assert_no_failure()
    assert a.requests == 10
