"""A replica is drained by the file: it gets nothing new from then on, and all that it has runs to its end."""

from __future__ import annotations

import time
from typing import Any

from tests.support.processes.control import controlling, driven
from tests.support.processes.driving import BOTH, both, change, loaded
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually


def _pools(a: Replica, b: Replica, **keys: Any) -> dict[str, Any]:
    pool = {"replicas": [entry(a, **keys), entry(b)], "balance": {"algorithm": "round_robin"}}
    return {"pools": {"pool": pool}}


def test_a_drained_replica_gets_nothing_new_and_finishes_what_it_has() -> None:
    with (
        replicas("a", "b") as (a, b),
        controlling(fleet := {**fleet_of([a, b], **driven(*BOTH)), **_pools(a, b)}) as control,
        both(control) as envoys,
        loaded(envoys) as loads,
    ):
        running = [envoy.client().send("GET", "/sse?n=10&gap=0.4") for envoy in envoys for _ in range(4)]
        a.behave(delay=1.5)
        eventually(lambda: a.in_flight > 4)
        a.behave(delay=0.0)

        change(control, {**fleet, **_pools(a, b, drain=True)})
        asked, now = at_rest(lambda: a.requests), time.monotonic()
        time.sleep(1.5)
        assert a.requests == asked, "it still gets new requests"
        assert [set(load.since(now).by_replica) for load in loads] == [{"b"}, {"b"}]
        assert [len(stream.result(60).events()) for stream in running] == [10] * 8
        assert {stream.result().replica for stream in running} == {"a", "b"}

        change(control, {**fleet, **_pools(a, b)})
        now = time.monotonic()
        time.sleep(0.5)
        assert [set(load.since(now).by_replica) for load in loads] == [{"a", "b"}] * 2
    assert (a.abandoned, b.abandoned) == (0, 0)
