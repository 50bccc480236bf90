"""The digest of a loaded configuration stays the same while replicas come and go, so that HAProxy is not reloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets.haproxy import TARGET, config_digest
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica

_HEALTH = {"active": {"http": {"path": "/health"}}, "load_shedding": {"min_healthy": "40%"}}
_BREAKER = {"per_replica": {"max_requests": 100}, "max_requests": 600}


def digest(first: int, last: int, algorithm: str, keys: Mapping[str, Any]) -> str:
    """Return the digest for the replicas from number `first` to number `last` of a pool with these keys."""
    replicas = (replica(f"r{number:02}", f"10.0.0.{number}:8000") for number in range(first, last + 1))
    common = {"balance": {"algorithm": algorithm}, "health": _HEALTH, "circuit_breaker": _BREAKER}
    chat = pool(*replicas, **(common | keys))
    text = fleet_text(chat, proxies={"edge": {"kind": "haproxy", "runtime_api": "/run/admin.sock"}})
    topology = compiled(text).topology
    return config_digest.of(TARGET.render(view(Snapshot(topology), topology.proxies[0])))


def test_another_port_of_an_agent_changes_the_digest() -> None:
    def of(**keys: int) -> str:
        agents = pool(replica("a"), replica("b", "127.0.0.1:10", **keys), health={"agent": {"port": 9500}})
        text = fleet_text(agents, proxies={"edge": {"kind": "haproxy", "runtime_api": "/run/admin.sock"}})
        topology = compiled(text).topology
        return config_digest.of(TARGET.render(view(Snapshot(topology), topology.proxies[0])))

    assert of() == of(agent_port=9500)
    assert len({of(), of(agent_port=9502), of(agent_port=9504)}) == 3


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"affinity": {"cookie": "lb"}},
        {"slow_start": {"window": "10s"}},
        {"circuit_breaker": {"per_replica": {"max_requests": 1}}},
    ],
)
@pytest.mark.parametrize("algorithm", ["pick", "least_request"])
def test_digest_is_independent_of_the_replicas(algorithm: str, keys: Mapping[str, Any]) -> None:
    assert digest(7, 9, algorithm, keys) == digest(1, 12, algorithm, keys)
    assert digest(7, 9, algorithm, keys) != digest(7, 9, "random", keys)
