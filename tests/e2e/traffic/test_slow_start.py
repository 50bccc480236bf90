"""A replica that recovers gets its share step by step.

The tests judge its share by the time at which each request was sent: on a busy machine, requests are later and fewer,
and each has its place on the ramp.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.checks import OFTEN
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_RAMPING = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_WINDOW = 4.0
_RATE = 80
"""Requests per second while a replica ramps."""


def _pool(members: list[Replica], **slow_start: Any) -> dict[str, Any]:
    return pool_of(
        members,
        balance={"algorithm": "round_robin"},
        slow_start={"window": f"{_WINDOW:.0f}s", **slow_start},
        health={"active": {**OFTEN, "http": {"path": "/health"}}},
    )


def _share(client: Client, path: str) -> float:
    """Return the share of some requests that `b` answers."""
    load = client.load(12, 2, Request(path=path))
    load.assert_no_failure()
    return load.shares().get("b", 0.0)


@dataclass(frozen=True, slots=True)
class _Ramp:
    """The requests after replica `b` recovered. `checked` and `served` are the times of the first check that it passed
    and of its first request: the proxy restored it between the two."""

    responses: Sequence[Response]
    checked: float
    served: float

    def between(self, first: float, last: float) -> list[Response]:
        """Return the requests that were sent from `first` to `last` windows after `b` was checked."""
        start, end = (self.checked + windows * _WINDOW for windows in (first, last))
        return [response for response in self.responses if start <= response.started < end]

    def share(self, first: float, last: float) -> float:
        """Return the share of them that `b` answered."""
        responses = self.between(first, last)
        assert len(responses) >= 20, "too few requests to judge by"
        return sum(response.replica == "b" for response in responses) / len(responses)

    def assert_follows(self, factor: Callable[[float], float], first: float, last: float) -> None:
        """Fail unless `b` answered the share of them that the weight `factor(windows since its return)` gives it."""
        moments = [response.started for response in self.between(first, last)]
        least, most = (
            sum(_part(factor((moment - start) / _WINDOW)) for moment in moments) / len(moments)
            for start in (self.served, self.checked)
        )
        assert least - 0.04 <= self.share(first, last) <= most + 0.04


def _part(factor: float) -> float:
    """Return the share of a replica with this weight next to one with weight 1."""
    return factor / (1 + factor)


def _envoy_factor(minimum: float = 0.1, aggression: float = 1.0) -> Callable[[float], float]:
    """Return Envoy's formula, by the part of the window that has passed."""
    return lambda passed: 1.0 if passed >= 1 else max(minimum, max(0.0, passed) ** (1 / aggression))


def _ramp(gateway: Gateway, path: str, b: Replica, windows: float) -> _Ramp:
    """Eject `b`, let it return, and send requests for `windows` windows.

    The ramp of all replicas after the start of the proxy must be over.
    """
    b.behave(health=503)
    eventually(lambda: _share(gateway, path) == 0, pause=0.2)
    with gateway.steady(_RATE, Request(path=path)) as steady:
        b.forget()
        recovered = time.monotonic()
        b.behave(health=200)
        eventually(lambda: b.requests > 0)
        time.sleep(windows * _WINDOW)
    steady.load.assert_no_failure()
    checked = next(check.at for check in b.checked if check.at >= recovered)
    return _Ramp(steady.load.responses, checked, b.seen[0].at)


_CASES: dict[str, tuple[Kind, dict[str, Any], float]] = {
    "haproxy": ("haproxy", {}, 2.3),
    "envoy": ("envoy", {}, 2.3),
    "envoy-min-weight": ("envoy", {"min_weight": "60%"}, 0.6),
    "envoy-aggression": ("envoy", {"aggression": 5}, 0.4),
}
"""Case → proxy, keys of `slow_start`, and the number of windows that its ramp is observed."""


def _ramps() -> Mapping[str, _Ramp]:
    """Return the ramp of each case. All happen at the same time, because each takes many seconds."""
    with ExitStack() as stack:
        members = {case: stack.enter_context(replicas("a", "b")) for case in _CASES}
        gateways: dict[Kind, Gateway] = {}
        for kind in ("haproxy", "envoy"):
            pools = {case: _pool(members[case], **keys) for case, (of, keys, _) in _CASES.items() if of == kind}
            routes = {case: {"match": {"path_prefix": f"/{case}"}, "pool": case} for case in pools}
            fleet = {**fleet_of(members[kind]), "routes": routes, "pools": pools}
            gateways[kind] = stack.enter_context(running(kind, fleet))
        for case, (kind, _, _) in _CASES.items():
            eventually(lambda case=case, kind=kind: _share(gateways[kind], f"/{case}") > 0, pause=0.2)  # type: ignore[misc]
        time.sleep(_WINDOW * 1.1)
        with ThreadPoolExecutor(len(_CASES)) as threads:
            ramps = {
                case: threads.submit(_ramp, gateways[kind], f"/{case}", members[case][1], windows)
                for case, (kind, _, windows) in _CASES.items()
            }
        return {case: ramp.result() for case, ramp in ramps.items()}


def test_recovered_replica_ramps() -> None:
    """HAProxy takes a step per second, and each is late if the machine is busy: the end is judged much later.

    Envoy stays at `min_weight` until the ramp, which begins at 0, has passed it. An aggression of 5 gives the fifth
    root of the time: two thirds of the weight after a sixth of the window.
    """
    ramps = _ramps()
    for case in ("haproxy", "envoy"):
        early, later, end = (ramps[case].share(*part) for part in ((0, 0.3), (0.45, 0.75), (2, 3)))
        assert early < 0.3, case
        assert early < later < 0.47, case
        assert end == pytest.approx(0.5, abs=0.04), case
    ramps["envoy-min-weight"].assert_follows(_envoy_factor(minimum=0.6), 0, 0.55)
    ramps["envoy-aggression"].assert_follows(_envoy_factor(aggression=5), 0.05, 0.35)


@_RAMPING
def test_replicas_that_start_together_share_equally(kind: Kind) -> None:
    """HAProxy's replicas do not ramp when it starts. Envoy's do, each from its first check, which may be late."""
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
def test_unsupported_ramps_are_reported(kind: Kind, keys: dict[str, Any]) -> None:
    with replicas("a", "b") as pool, running(kind, fleet_of({**_pool(pool), **keys})) as gateway:
        assert "warning LB474" in gateway.messages
        gateway.load(10).assert_no_failure()
