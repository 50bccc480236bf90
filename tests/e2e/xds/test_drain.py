"""A replica drained in the fleet file gets no new requests, and its running requests finish."""

from __future__ import annotations

import time
from typing import Any

from tests.support.processes.driven_envoys import DrivenEnvoys
from tests.support.processes.driving import change, loaded
from tests.support.processes.fleet import entry
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually


def _pools(a: Replica, b: Replica, **keys: Any) -> dict[str, Any]:
    return {"pools": {"pool": {"replicas": [entry(a, **keys), entry(b)], "balance": {"algorithm": "round_robin"}}}}


def test_drained_replica_finishes_and_gets_no_requests(driven_envoys: DrivenEnvoys) -> None:
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("a", "b") as (a, b):
        fleet = {**driven_envoys.fleet_of([a, b]), **_pools(a, b)}
        driven_envoys.serve(fleet)
        with loaded(envoys, 100) as loads:
            streams = [envoy.client().send("GET", "/sse?n=10&gap=0.25") for envoy in envoys for _ in range(4)]
            a.behave(delay=1.0)
            eventually(lambda: a.in_flight > 4)
            a.behave(delay=0.0)

            change(control, {**fleet, **_pools(a, b, drain=True)})
            requests, drained = at_rest(lambda: a.requests), time.monotonic()
            time.sleep(0.7)
            assert a.requests == requests, "it still gets new requests"
            assert [set(load.since(drained).by_replica) for load in loads] == [{"b"}, {"b"}]
            assert [len(stream.result(60).events()) for stream in streams] == [10] * 8
            assert {stream.result().replica for stream in streams} == {"a", "b"}

            change(control, {**fleet, **_pools(a, b)})
            returned = time.monotonic()
            assert [set(load.since(returned).by_replica) for load in loads] == [{"a", "b"}] * 2
    assert (a.abandoned, b.abandoned) == (0, 0)
