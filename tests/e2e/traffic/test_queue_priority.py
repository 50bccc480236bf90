"""If replicas are full, requests of a route with a high priority overtake waiting requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.haproxy_queue import waiting, with_runtime_api
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually


def _fleet(replica: Replica) -> Fleet:
    """Return a fleet with one request at a time, and a queue."""
    limits = {"per_replica": {"max_requests": 1}, "max_pending_requests": 100, "max_requests": 100}
    routes: dict[str, Any] = {
        f"{name}-route": {"match": {"path_prefix": f"/{name}"}, "pool": "pool", "queue_priority": name}
        for name in ("high", "normal", "low")
    }
    pool = pool_of([replica], circuit_breaker=limits, timeouts={"queue": "100s"})
    return {**fleet_of(pool), "routes": routes}


def _order(client: Client, replica: Replica, socket: str, paths: list[str]) -> list[str]:
    """Return the paths in the order in which they reach the replica, if all wait behind a first request."""
    replica.held = True
    sent = [client.send("POST", "/normal/first", timeout=100)]
    eventually(lambda: replica.in_flight == 1)
    for number, path in enumerate(paths):
        sent.append(client.send("POST", path, timeout=100))
        eventually(lambda number=number: waiting(socket) == number + 1)  # type: ignore[misc]
    replica.held = False
    assert all(each.result(100).ok for each in sent)
    return [seen.path for seen in replica.seen][1:]


def test_queue_serves_higher_priorities_first(tmp_path: Path) -> None:
    socket = str(tmp_path / "admin.sock")
    sent = [f"/{name}/{number}" for number in range(3) for name in ("low", "normal", "high")]
    with replicas("a") as (a,), running("haproxy", with_runtime_api(_fleet(a), socket)) as gateway:
        order = _order(gateway, a, socket, sent)
        assert gateway.messages.count("LB433") == 0
    assert order == [f"/{name}/{number}" for name in ("high", "normal", "low") for number in range(3)]


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_proxy_without_priorities_reports_it_and_serves(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _fleet(a)) as gateway:
        assert "LB433" in gateway.messages
        assert [gateway.post(f"/{name}").status for name in ("high", "normal", "low")] == [200] * 3
