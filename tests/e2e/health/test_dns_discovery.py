"""A pool behind a DNS name: asked of the resolvers that are named, and followed when its addresses change."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.checks import OFTEN
from tests.support.processes.dns import DnsServer, serving_dns
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_NAME = "embedder.ml.internal"
_RESOLVING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])


def _fleet(port: int, dns: DnsServer, **keys: Any) -> Fleet:
    found = {"name": _NAME, "port": port, "refresh": "500ms", "resolvers": [dns.address]}
    return fleet_of({"discovery": {"dns": found}, "balance": {"algorithm": "round_robin"}, **keys})


def _beside(first: Replica, name: str, host: str) -> Replica:
    """Another replica on the same port, as replicas behind one name are."""
    return Replica(name, host=host, port=first.port)


@_RESOLVING
def test_every_address_of_the_name_is_a_replica(kind: Kind) -> None:
    with (
        replicas("a") as (a,),
        _beside(a, "b", "127.0.0.2") as b,
        serving_dns(**{_NAME: [a.host, b.host]}) as dns,
        running(kind, _fleet(a.port, dns)) as gateway,
    ):
        eventually(lambda: gateway.load(12).by_replica == {"a": 6, "b": 6})
    assert set(dns.asked) == {_NAME}


@_RESOLVING
def test_a_new_address_gets_its_share_and_one_that_is_gone_gets_nothing(kind: Kind) -> None:
    """Not one request is lost on the way."""
    with (
        replicas("a") as (a,),
        _beside(a, "b", "127.0.0.2") as b,
        _beside(a, "c", "127.0.0.3") as c,
        serving_dns(**{_NAME: [a.host]}) as dns,
        running(kind, _fleet(a.port, dns)) as gateway,
    ):
        eventually(lambda: gateway.load(6).by_replica == {"a": 6})
        dns.names[_NAME] = [a.host, b.host]
        eventually(lambda: _whole(gateway.load(12)) == {"a", "b"})
        dns.names[_NAME] = [b.host, c.host]
        eventually(lambda: _whole(gateway.load(12)) == {"b", "c"})
        a.forget()
        gateway.load(40, 2).assert_no_failure()
        assert a.requests == 0


def _whole(load: Any) -> set[str]:
    load.assert_no_failure()
    return set(load.by_replica)


@_RESOLVING
def test_a_name_that_is_unknown_is_a_503_until_it_is_known(kind: Kind) -> None:
    with replicas("a") as (a,), serving_dns() as dns, running(kind, _fleet(a.port, dns)) as gateway:
        eventually(lambda: dns.asked[_NAME] > 0)
        answer = gateway.get()
        assert (answer.status, answer.json["error"]["type"]) == (503, "unavailable")
        dns.names[_NAME] = [a.host]
        eventually(lambda: gateway.get().ok)


@_RESOLVING
def test_a_resolver_that_fails_for_a_while_takes_nobody_out(kind: Kind) -> None:
    with (
        replicas("a") as (a,),
        serving_dns(**{_NAME: [a.host]}) as dns,
        running(kind, _fleet(a.port, dns)) as gateway,
    ):
        eventually(lambda: gateway.get().ok)
        dns.silent = True
        asked = dns.asked.total()
        eventually(lambda: dns.asked.total() >= asked + 2)
        gateway.load(20, 2).assert_no_failure()


@_RESOLVING
def test_discovered_replicas_are_checked(kind: Kind) -> None:
    check = {**OFTEN, "http": {"path": "/health"}}
    with (
        replicas("a") as (a,),
        _beside(a, "b", "127.0.0.2") as b,
        serving_dns(**{_NAME: [a.host, b.host]}) as dns,
        running(kind, _fleet(a.port, dns, health={"active": check})) as gateway,
    ):
        eventually(lambda: set(gateway.load(12).by_replica) == {"a", "b"})
        b.behave(health=503)
        eventually(lambda: gateway.load(12).by_replica == {"a": 12})


@_RESOLVING
def test_a_name_may_have_more_addresses_than_fit_into_512_bytes(kind: Kind) -> None:
    """A resolver cuts an answer that is longer than what it was told that it may be."""
    with (
        replicas("a") as (a,),
        ExitStack() as stack,
        serving_dns(**{_NAME: [f"127.0.0.{last}" for last in range(1, 41)]}) as dns,
    ):
        for last in range(2, 41):
            stack.enter_context(_beside(a, f"r{last}", f"127.0.0.{last}"))
        fleet = _fleet(a.port, dns)
        fleet["pools"]["pool"]["discovery"]["dns"]["max_replicas"] = 64
        with running(kind, fleet) as gateway:
            eventually(lambda: len(gateway.load(80).by_replica) == 40)


def test_haproxy_takes_no_more_than_max_replicas() -> None:
    with (
        replicas("a") as (a,),
        _beside(a, "b", "127.0.0.2") as b,
        serving_dns(**{_NAME: [a.host, b.host]}) as dns,
    ):
        fleet = _fleet(a.port, dns)
        fleet["pools"]["pool"]["discovery"]["dns"]["max_replicas"] = 1
        with running("haproxy", fleet) as gateway:
            eventually(lambda: gateway.load(12).statuses == {200: 12})
            assert len(gateway.load(12).by_replica) == 1


def test_nginx_resolves_at_its_start_and_says_so() -> None:
    found = {"discovery": {"dns": {"name": "localhost", "port": 0}}}
    with replicas("a") as (a,):
        found["discovery"]["dns"]["port"] = a.port
        with running("nginx", fleet_of(found)) as gateway:
            assert "warning LB487" in gateway.messages
            gateway.load(10).assert_no_failure()
    assert a.requests == 10
