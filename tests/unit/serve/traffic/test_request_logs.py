"""Envoys' request logs in the ledger: times and errors of the fleet's pools alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.traffic.ledger import ReplicaKey, TrafficLedger
from lbctl.serve.traffic.request_logs import RequestLogs
from lbctl.xds.protocol.request_logs import OwnError, RequestLatency
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text


def test_reports_about_unknown_pools_are_not_kept() -> None:
    ledger = TrafficLedger()
    logs = RequestLogs(ledger, lambda: 0.0)
    composed = SimpleNamespace(whole=SimpleNamespace(topology=compiled(fleet_text()).topology))
    logs.follow(cast(PublishedFleet, SimpleNamespace(composed=composed)))
    logs.observed("edge-1", iter([RequestLatency("pool", 12.0, 42.0), RequestLatency("other", 12.0, 42.0)]))
    logs.observed("edge-1", iter([OwnError("other")]))
    assert ledger.first_bytes(0.0).keys() == {ReplicaKey("pool", "")}
    assert ledger.own_errors() == {}
