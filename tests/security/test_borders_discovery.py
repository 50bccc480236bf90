"""A source of replicas cannot direct client requests to the control plane itself."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from lbctl.base.registry import Registry
from lbctl.ir.address import Address
from lbctl.ir.pools import Replica
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.serve.discovery.interface import PoolAnswer
from lbctl.serve.discovery.own_listeners import OwnBinds, at_own_listener, own_listeners
from lbctl.serve.discovery.service import DiscoveryService
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text


def _topology(**sections: Any) -> Topology:
    return compiled(fleet_text(**sections)).topology


def _problem(address: str, topology: Topology, binds: OwnBinds | None = None) -> str:
    host, _, port = address.rpartition(":")
    replica = Replica("a", Address(host.strip("[]"), int(port)))
    return at_own_listener((replica,), own_listeners(binds or OwnBinds(), topology))


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("127.0.0.1:18080", "the API of lbctl serve"),
        ("127.9.9.9:18080", "the API of lbctl serve"),
        ("[::1]:18080", "the API of lbctl serve"),
        ("127.0.0.1:18000", "the xDS server of lbctl serve"),
        ("127.0.0.1:18001", "the picker"),
        ("127.0.0.1:18002", "the picker"),
        ("127.0.0.1:9901", "the admin interface of e"),
    ],
)
def test_replica_at_a_listener_of_serve_is_refused(address: str, owner: str) -> None:
    topology = _topology(proxies={"e": {"kind": "envoy", "admin": "127.0.0.1:9901"}})
    assert _problem(address, topology) == f"the replica 'a' has the address {address}, which belongs to {owner}"


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "10.0.0.1:18080", "10.0.0.1:18001"])
def test_replica_at_another_address_is_accepted(address: str) -> None:
    assert _problem(address, _topology()) == ""


def test_options_decide_where_serve_listens() -> None:
    binds = OwnBinds(api=Address("127.0.0.1", 7000), xds=Address(path="/run/x.sock"), picker=Address("127.0.0.1", 7001))
    assert [bool(_problem(f"127.0.0.1:{port}", _topology(), binds)) for port in (7000, 7001, 7002)] == [True] * 3
    assert [bool(_problem(f"127.0.0.1:{port}", _topology(), binds)) for port in (18080, 18000, 18001)] == [False] * 3


def test_wildcard_covers_own_addresses_of_the_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address beyond loopback")
        own = probe.getsockname()[0]
    binds = OwnBinds(api=Address("0.0.0.0", 7000))
    assert _problem(f"{own}:7000", _topology(), binds)
    assert not _problem("192.0.2.1:7000", _topology(), binds)


class _Source:
    """Answers with one replica at the address of the API."""

    def use_topology(self, _: Topology) -> None:
        """Do nothing: the answer is always the same."""

    def answers(self) -> dict[str, PoolAnswer]:
        return {"pool": PoolAnswer((Replica("a", Address("127.0.0.1", 18080)),))}

    async def first(self, _: float) -> None:
        """Return at once."""

    def names(self) -> tuple[()]:
        return ()

    async def stop(self) -> None:
        """Do nothing."""


def test_answer_with_the_api_is_refused_by_name() -> None:
    topology = _topology(pools={"pool": {"discovery": {"dns": {"name": "x.example", "port": 18080}}}})

    async def run() -> tuple[bool, str]:
        service = DiscoveryService(Guard(), Registry({"dns": lambda *_: _Source()}))
        service.use_topology(topology)
        found = await service.first(0.1)
        await service.stop()
        return "pool" in found.pools, " ".join(item.message for item in found.problems)

    accepted, problem = asyncio.run(run())
    assert not accepted
    assert "which belongs to the API of lbctl serve; the pool has no replicas yet" in problem
