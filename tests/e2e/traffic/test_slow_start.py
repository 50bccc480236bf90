"""A replica that comes back gets its share little by little."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.e2e.support.binaries import Kind
from tests.e2e.support.client import Client
from tests.e2e.support.fleet import fleet_of, pool_of, running
from tests.e2e.support.replicas import Replica, replicas
from tests.e2e.support.waiting import eventually

_RAMPING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_OFTEN = {"interval": "200ms", "timeout": "200ms", "unhealthy_threshold": 1, "healthy_threshold": 1}
_WINDOW = 4.0


def _pool(members: list[Replica], **slow_start: Any) -> dict[str, Any]:
    return pool_of(
        members,
        balance={"algorithm": "round_robin"},
        slow_start={"window": f"{_WINDOW:.0f}s", **slow_start},
        health={"active": {**_OFTEN, "http": {"path": "/health"}}},
    )


def _share(client: Client, count: int = 80) -> float:
    load = client.load(count, 2)
    load.assert_no_failure()
    return load.shares().get("b", 0.0)


def _leave_and_return(client: Client, b: Replica) -> float:
    """When it was back (`time.monotonic()`). All are new when the proxy starts and ramp together: that is past."""
    eventually(lambda: _share(client, 12) > 0)
    time.sleep(_WINDOW * 1.1)
    b.behave(health=503)
    eventually(lambda: _share(client, 12) == 0)
    b.behave(health=200)
    eventually(lambda: _share(client, 24) > 0, pause=0.0)
    return time.monotonic()


@_RAMPING
def test_a_replica_that_comes_back_ramps(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b]))) as gateway:
        back = _leave_and_return(gateway, b)
        early = _share(gateway)
        time.sleep(max(0.0, back + 0.5 * _WINDOW - time.monotonic()))
        later = _share(gateway)
        time.sleep(max(0.0, back + 1.2 * _WINDOW - time.monotonic()))
        whole = _share(gateway, 200)
    assert 0 < early < 0.3
    assert early < later < 0.47
    assert whole == pytest.approx(0.5, abs=0.04)


def test_envoy_begins_where_it_is_told() -> None:
    with replicas("a", "b") as (a, b), running("envoy", fleet_of(_pool([a, b], min_weight="60%"))) as gateway:
        _leave_and_return(gateway, b)
        assert 0.33 < _share(gateway, 120) < 0.45


def test_envoy_ramps_as_steeply_as_it_is_told() -> None:
    """An aggression of 5 gives the fifth root of the time: two thirds of the weight after a sixth of the window."""
    with replicas("a", "b") as (a, b), running("envoy", fleet_of(_pool([a, b], aggression=5))) as gateway:
        back = _leave_and_return(gateway, b)
        time.sleep(max(0.0, back + _WINDOW / 6 - time.monotonic()))
        assert 0.36 < _share(gateway, 120) < 0.48


@_RAMPING
def test_replicas_that_start_together_share_at_once(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, fleet_of(_pool(pool, min_weight="1%"))) as gateway:
        eventually(lambda: gateway.get().ok)
        assert _share(gateway, 100) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("nginx", {}),
        ("haproxy", {"slow_start": {"min_weight": "30%"}}),
        ("haproxy", {"slow_start": {"aggression": 2}}),
    ],
    ids=["nginx", "haproxy: min_weight", "haproxy: aggression"],
)
def test_what_does_not_ramp_as_written_is_said(kind: Kind, keys: dict[str, Any]) -> None:
    with replicas("a", "b") as pool, running(kind, fleet_of({**_pool(pool), **keys})) as gateway:
        assert "warning LB474" in gateway.messages
        gateway.load(10).assert_no_failure()
