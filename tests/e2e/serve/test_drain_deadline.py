"""A replica is drained by the file, and its remaining request does not end: HAProxy ends it at the deadline."""

from __future__ import annotations

import time

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.control import controlling
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually


def _fleet(a: Replica, b: Replica, site: edges.Edge, *, drain: bool = False) -> Fleet:
    fleet = fleet_of([a, b])
    del fleet["listeners"]["gateway"]
    members = [entry(a, drain=drain), entry(b)]
    pool = {"replicas": members, "balance": {"algorithm": "round_robin"}, "drain_deadline": "3s"}
    return {**fleet, "pools": {"pool": pool}, **site.sections}


def test_haproxy_ends_drained_requests_at_the_deadline() -> None:
    with (
        replicas("a", "b") as (a, b),
        edges.haproxy() as ha,
        edges.started_edge(ha, fleet := _fleet(a, b, ha)),
        controlling(fleet) as control,
    ):
        eventually(lambda: control.proxies[ha.name]["state"] == "SYNCED")
        a.paused = b.paused = True
        streams = [ha.send("GET", "/sse", timeout=150) for _ in range(4)]
        eventually(lambda: (a.in_flight, b.in_flight) == (2, 2))
        drained = time.monotonic()
        control.write(_fleet(a, b, ha, drain=True))
        eventually(lambda: a.in_flight < 2)
        assert time.monotonic() - drained > 2.9, "before the deadline nothing is ended"
        eventually(lambda: a.in_flight == 0)
        assert b.in_flight == 2
        for stream in streams:
            stream.cancel()
