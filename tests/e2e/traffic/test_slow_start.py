"""A replica that comes back gets its share little by little.

How much it gets is judged by when each request was sent: on a busy machine requests are sent later and are fewer, and
each still belongs to its place on the ramp.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_RAMPING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_OFTEN = {"interval": "500ms", "timeout": "500ms", "unhealthy_threshold": 4, "healthy_threshold": 1}
_WINDOW = 4.0
_RATE = 80
"""Requests a second while a replica ramps."""


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


@dataclass(frozen=True, slots=True)
class _Ramp:
    """The requests after replica `b` came back. `checked` and `served` are the moments of the first check that found it
    well and of its first request: the proxy put it in between the two."""

    responses: Sequence[Response]
    checked: float
    served: float

    def between(self, first: float, last: float) -> list[Response]:
        """The requests that were sent so many windows after `b` was checked."""
        start, end = (self.checked + windows * _WINDOW for windows in (first, last))
        return [response for response in self.responses if start <= response.started < end]

    def share(self, first: float, last: float) -> float:
        """The part of them that `b` answered."""
        responses = self.between(first, last)
        assert len(responses) >= 20, "too few requests to judge by"
        return sum(response.replica == "b" for response in responses) / len(responses)

    def assert_follows(self, factor: Callable[[float], float], first: float, last: float) -> None:
        """Fails unless `b` answered as many of them as the weight `factor(windows since its return)` gives it."""
        moments = [response.started for response in self.between(first, last)]
        least, most = (
            sum(_part(factor((moment - start) / _WINDOW)) for moment in moments) / len(moments)
            for start in (self.served, self.checked)
        )
        assert least - 0.04 <= self.share(first, last) <= most + 0.04


def _part(factor: float) -> float:
    """The share of a replica with this weight beside one with the weight 1."""
    return factor / (1 + factor)


def _envoy_factor(minimum: float = 0.1, aggression: float = 1.0) -> Callable[[float], float]:
    """Envoy's formula, by the part of the window that has passed."""
    return lambda passed: 1.0 if passed >= 1 else max(minimum, max(0.0, passed) ** (1 / aggression))


def _ramp(gateway: Gateway, b: Replica, windows: float) -> _Ramp:
    """Takes `b` out, lets it return, and sends requests for so many windows. All replicas are new when the proxy starts
    and ramp together: that is past before."""
    eventually(lambda: _share(gateway, 12) > 0)
    time.sleep(_WINDOW * 1.1)
    b.behave(health=503)
    eventually(lambda: _share(gateway, 12) == 0)
    with gateway.steady(_RATE) as steady:
        b.forget()
        back = time.monotonic()
        b.behave(health=200)
        eventually(lambda: b.requests > 0)
        time.sleep(windows * _WINDOW)
    steady.load.assert_no_failure()
    checked = next(check.at for check in b.checked if check.at >= back)
    return _Ramp(steady.load.responses, checked, b.seen[0].at)


@_RAMPING
def test_a_replica_that_comes_back_ramps(kind: Kind) -> None:
    """HAProxy takes a step a second, and is late with each where the machine is busy: the end is judged long after."""
    with replicas("a", "b") as (a, b), running(kind, fleet_of(_pool([a, b]))) as gateway:
        ramp = _ramp(gateway, b, 2.6)
        early, later = ramp.share(0, 0.3), ramp.share(0.45, 0.75)
        assert early < 0.3
        assert early < later < 0.47
        assert ramp.share(2, 3) == pytest.approx(0.5, abs=0.04)


def test_envoy_begins_where_it_is_told() -> None:
    """At 60% it stays there until the ramp, which begins at nothing, has passed it."""
    with replicas("a", "b") as (a, b), running("envoy", fleet_of(_pool([a, b], min_weight="60%"))) as gateway:
        ramp = _ramp(gateway, b, 0.6)
    ramp.assert_follows(_envoy_factor(minimum=0.6), 0, 0.55)


def test_envoy_ramps_as_steeply_as_it_is_told() -> None:
    """An aggression of 5 gives the fifth root of the time: two thirds of the weight after a sixth of the window."""
    with replicas("a", "b") as (a, b), running("envoy", fleet_of(_pool([a, b], aggression=5))) as gateway:
        ramp = _ramp(gateway, b, 0.4)
    ramp.assert_follows(_envoy_factor(aggression=5), 0.05, 0.35)


@_RAMPING
def test_replicas_that_start_together_share_at_once(kind: Kind) -> None:
    """HAProxy's do not ramp when it starts. Envoy's do, each from its first check; a busy machine delays one."""
    with replicas("a", "b") as pool, running(kind, fleet_of(_pool(pool, min_weight="1%"))) as gateway:
        eventually(lambda: gateway.get().ok)
        load = gateway.load(100, 2)
    load.assert_no_failure()
    expected = 0.5
    if kind == "envoy":
        factor, (a, b) = _envoy_factor(minimum=0.01), (member.checked[0].at for member in pool)
        weights = [[factor((item.started - check) / _WINDOW) for check in (a, b)] for item in load.responses]
        expected = sum(of_b / (of_a + of_b) for of_a, of_b in weights) / len(weights)
    assert load.shares().get("b", 0.0) == pytest.approx(expected, abs=0.06)


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
