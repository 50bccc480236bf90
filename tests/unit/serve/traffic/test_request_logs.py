"""Envoys' request logs in the ledger: times of the fleet's replicas, and errors of its pools."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.traffic.ledger import ReplicaKey, TrafficLedger
from lbctl.serve.traffic.request_logs import RequestLogs
from lbctl.xds.protocol.request_logs import OwnError, RequestLatency
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text


def test_reports_cover_only_the_fleet() -> None:
    ledger = TrafficLedger()
    logs = RequestLogs(ledger, lambda: 0.0)
    topology = compiled(fleet_text()).topology
    (replica,) = topology.pools[0].replicas
    whole = SimpleNamespace(topology=topology, addresses={})
    logs.use_fleet(cast(PublishedFleet, SimpleNamespace(composed=SimpleNamespace(whole=whole))))
    known, unknown = (replica.address.host, replica.address.port), ("10.9.9.9", 1)
    for cluster, place in (("pool", known), ("pool", unknown), ("other", known)):
        logs.observed("edge-1", iter([RequestLatency(cluster, place, 12.0, 42.0)]))
    logs.observed("edge-1", iter([OwnError("other")]))
    first_bytes = {key: item.requests for key, item in ledger.first_bytes(0.0).items()}
    assert first_bytes == {ReplicaKey("pool", replica.name): 1, ReplicaKey("pool", ""): 2}
    assert ledger.own_errors() == {}
