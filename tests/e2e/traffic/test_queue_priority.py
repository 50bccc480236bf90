"""Where replicas are full, requests of a route with a high priority go before those that wait already."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.support.binaries import Kind
from tests.e2e.support.client import Client
from tests.e2e.support.fleet import Fleet, fleet_of, pool_of, running
from tests.e2e.support.replicas import Replica, replicas
from tests.e2e.support.waiting import eventually


def _fleet(replica: Replica) -> Fleet:
    """One request at a time, and a queue."""
    limits = {"per_replica": {"max_requests": 1}, "max_pending_requests": 100, "max_requests": 100}
    routes: dict[str, Any] = {
        f"{name}-route": {"match": {"path_prefix": f"/{name}"}, "pool": "pool", "queue_priority": name}
        for name in ("high", "normal", "low")
    }
    pool = pool_of([replica], circuit_breaker=limits, timeouts={"queue": "30s"})
    return {**fleet_of(pool), "routes": routes}


def _order(client: Client, replica: Replica, paths: list[str]) -> list[str]:
    """The paths as they reach the replica, where all wait behind a first request."""
    replica.behave(delay=1.5)
    waiting = [client.send("POST", "/normal/first")]
    eventually(lambda: replica.in_flight == 1)
    for path in paths:
        waiting.append(client.send("POST", path))
        eventually(lambda: True, pause=0.05)
    replica.behave(delay=0.02)
    assert all(each.result(20).ok for each in waiting)
    return [seen.path for seen in replica.seen][1:]


def test_high_goes_before_normal_and_normal_before_low() -> None:
    sent = [f"/{name}/{number}" for number in range(3) for name in ("low", "normal", "high")]
    with replicas("a") as (a,), running("haproxy", _fleet(a)) as gateway:
        order = _order(gateway, a, sent)
        assert gateway.messages.count("LB433") == 0
    assert [path.split("/")[1] for path in order] == ["high"] * 3 + ["normal"] * 3 + ["low"] * 3


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_a_proxy_without_classes_says_so_and_serves(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet(a)) as gateway:
        assert "LB433" in gateway.messages
        assert [gateway.post(f"/{name}").status for name in ("high", "normal", "low")] == [200] * 3
