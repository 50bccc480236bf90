"""Replicas of priority 1 serve only while no replica of priority 0 is healthy."""

from __future__ import annotations

from typing import Any

from tests.support.processes.binaries import Kind
from tests.support.processes.checks import TCP
from tests.support.processes.client import Client
from tests.support.processes.fleet import entry, fleet_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually


def test_priority_1_serves_while_priority_0_is_down(kind: Kind) -> None:
    with replicas("a", "b", "spare") as (a, b, spare), running(kind, fleet_of(_pool(a, b, spare))) as gateway:
        before = gateway.load(60, concurrency=4)
        a.refuse()
        b.refuse()
        eventually(lambda: gateway.load(20, concurrency=4).by_replica == {"spare": 20})
        down = gateway.load(60, concurrency=4)
        a.accept()
        b.accept()
        eventually(lambda: set(gateway.load(10).by_replica) == {"a", "b"})
        after = gateway.load(60, concurrency=4)
    assert (set(before.by_replica), before.failures) == ({"a", "b"}, [])
    assert down.by_replica == {"spare": 60}
    assert (set(after.by_replica), after.failures) == ({"a", "b"}, [])


def test_spare_gets_nothing_while_one_of_four_is_down(kind: Kind) -> None:
    """75 % are healthy: a proxy that spills gradually begins below 70 %."""
    with replicas("a", "b", "c", "d", "spare") as pool, running(kind, fleet_of(_pool(*pool))) as gateway:
        pool[0].refuse()
        eventually(lambda: _all_fit(gateway))
        load = gateway.load(120, concurrency=4)
    load.assert_no_failure()
    assert set(load.by_replica) == {"b", "c", "d"}


def _pool(*members: Replica) -> dict[str, Any]:
    listed = [entry(replica, priority=1 if replica.name == "spare" else 0) for replica in members]
    return {"replicas": listed, "balance": {"algorithm": "round_robin"}, "health": TCP}


def _all_fit(client: Client) -> bool:
    load = client.load(20)
    return not load.failures and "spare" not in load.by_replica
