"""With least_request, the default, new requests go to an idle replica."""

from __future__ import annotations

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_OCCUPIED = 4


@pytest.mark.parametrize(
    ("kind", "weights", "least"),
    [
        ("nginx", (), 1.0),
        ("haproxy", (), 1.0),
        ("envoy", (), 0.65),  # the less busy one of two draws; both may fall on the same replica, 1 in 4
        ("nginx", (3, 1), 1.0),
        ("haproxy", (3, 1), 1.0),
        ("envoy", (3, 1), 0.4),  # by weight ÷ (active + 1): the busy one is larger here; round robin would give 0.25
    ],
)
def test_idle_replica_is_preferred(kind: Kind, weights: tuple[int, ...], least: float) -> None:
    with replicas("busy", "idle") as (busy, idle), running(kind, fleet_of(pool_of([busy, idle], weights))) as gateway:
        _occupy(gateway, busy, idle)
        load = gateway.load(200)
        assert busy.in_flight >= _OCCUPIED
    load.assert_no_failure()
    assert load.shares()["idle"] >= least


def _occupy(gateway: Gateway, busy: Replica, idle: Replica) -> None:
    """Start long requests on `busy` and none on `idle`; later ones are answered immediately."""
    busy.behave(delay=100)
    idle.held = True
    for _ in range(3 * _OCCUPIED):
        gateway.send("GET", "/long", timeout=100)
    eventually(lambda: busy.requests + idle.requests == 3 * _OCCUPIED)
    busy.behave(delay=0)
    ended = idle.in_flight
    idle.held = False
    gateway.access_log(ended)  # the proxy counts a request until it is logged
