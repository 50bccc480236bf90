"""One replica is throttled to half, with Envoy, HAProxy and nginx, and the default settings of a fleet."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import fmean, pstdev

import pytest

from tests.support.processes.all_proxies import MIN_INTERVAL, STRETCH, Got, got, pool_by_default, three, until
from tests.support.processes.client import Steady
from tests.support.processes.engines import engines
from tests.support.processes.exporters import Exporter

_EIGHT, _FIVE = "abcdefgh", "abcde"
_SLOTS = 48
_RATE = 24.0
"""Requests per second at each proxy: together about 0.55 of the capacity of five engines."""
_RATE_OF_EIGHT, _LONGER = 30.0, 1.25
"""The same for eight engines, with longer requests."""
_FAIR = 0.5 / 7.5
_SETTLED = 10.0
_LATE = 30.0


@pytest.mark.timeout(300)
def test_throttled_replica_gets_a_fair_share_soon() -> None:
    """There are eight replicas.

    Even at its fair share, every fifteenth request is at a replica that takes twice as long.
    """
    with engines(*_EIGHT, slots=_SLOTS) as members, three(pool_by_default(members)) as site:
        with site.load(_RATE_OF_EIGHT, scale=_LONGER) as loads:
            until(time.monotonic() + _SETTLED + STRETCH)
            members[0].speed = 0.5
            fault = time.monotonic()
            soon = {"envoy": fault + 30, "haproxy": fault + 30, "nginx": fault + MIN_INTERVAL + 30}
            end = max(soon.values()) + STRETCH
            until(end)
            weights = site.weights(members)
        _no_failure(loads)
        for name, load in loads.items():
            assert weights[name]["a"] < 0.9 * weights[name]["b"], weights
            share = got(load.load, soon[name], soon[name] + STRETCH).share("a")
            assert share == pytest.approx(_FAIR, abs=0.03), name
        before, last = _all(loads, fault - STRETCH), _all(loads, end - STRETCH)
        assert last.whole() <= 1.3 * before.whole()
        assert last.first() <= 1.3 * before.first()


@pytest.mark.timeout(360)
def test_late_samples_make_no_share_swing() -> None:
    with ExitStack() as stack:
        members = stack.enter_context(engines(*_FIVE, slots=_SLOTS))
        exporters = [stack.enter_context(Exporter(item, late=_LATE)) for item in members]
        site = stack.enter_context(three(pool_by_default(members, exporters, telemetry={"stale_after": "60s"})))
        with site.load(_RATE) as loads:
            until(time.monotonic() + _SETTLED + _LATE)
            steady, decisions = time.monotonic(), []
            while time.monotonic() < steady + 2 * STRETCH:
                decisions.append(site.decided())
                time.sleep(1)
            members[0].speed = 0.5
            until(time.monotonic() + _LATE + 30)
            assert all(each["a"] < 0.9 * each["b"] for name, each in site.weights(members).items() if name != "nginx")
            until(time.monotonic() + 2 * MIN_INTERVAL)  # changes that make nginx reload have lasted for one interval
            late = time.monotonic()
            assert all(each["a"] < 0.9 * each["b"] for each in site.weights(members).values())
            until(late + STRETCH)
        _no_failure(loads)
        assert _variation([[each[name] / sum(each.values()) for each in decisions] for name in _FIVE]) <= 0.05
        stretches = [_all(loads, steady), _all(loads, steady + STRETCH)]
        assert _variation([[each.share(name) for each in stretches] for name in _FIVE]) <= 0.05
        assert _all(loads, late).share("a") < 0.8 * min(each.share("a") for each in stretches)


def _all(loads: Mapping[str, Steady], since: float) -> Got:
    """Return the results of all proxies in a period."""
    return sum((got(load.load, since, since + STRETCH) for load in loads.values()), Got(()))


def _no_failure(loads: Mapping[str, Steady]) -> None:
    for load in loads.values():
        load.load.assert_no_failure()


def _variation(shares: Sequence[Sequence[float]]) -> float:
    """Return the mean coefficient of variation of each replica's share over time."""
    return fmean(pstdev(each) / fmean(each) for each in shares)
