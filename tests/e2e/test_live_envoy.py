"""What live signals do to the traffic of a real Envoy, with engines that say of themselves what vLLM says."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.e2e.support.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.e2e.support.engines import Engine, engines
from tests.e2e.support.fleet import Fleet, fleet_of, pool_of
from tests.e2e.support.http1 import Request
from tests.e2e.support.waiting import eventually

_GENERATE = Request("POST", "/v1/completions?n=10", timeout=20.0)
_QUICK: dict[str, Any] = {"interval": "500ms", "timeout": "400ms", "stale_after": "2s"}
"""Ten times as fast as the defaults."""


def _fleet(members: list[Engine], telemetry: dict[str, Any] | None = None, **keys: Any) -> Fleet:
    sources = [{"kind": "vllm", "url": "http://{address}/metrics"}]
    pool = pool_of(members, telemetry={**_QUICK, "sources": sources, **(telemetry or {})}, **keys)
    return fleet_of(pool, **driven("edge"))


def _weights(envoy: XdsEnvoy, members: list[Engine]) -> list[int]:
    found = envoy.weights("pool")
    return [found[item.address] for item in members]


def _health(envoy: XdsEnvoy, engine: Engine) -> str:
    return str(envoy.hosts("pool")[engine.address]["health_status"].get("eds_health_status", "HEALTHY"))


def _known(control: ControlPlane) -> bool:
    return control.metric("lbctl_sample_to_decision_seconds_count") > 0


def test_a_replica_that_is_throttled_to_half_is_given_half_as_much() -> None:
    weighting = {"adaptive": {"smoothing": "2s"}}
    with engines("a", "b", "c", "d") as members:
        fleet = _fleet(members, weighting=weighting)
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            with envoy.client().steady(60, _GENERATE) as load:
                eventually(lambda: _known(control))
                time.sleep(2)
                assert len(set(_weights(envoy, members))) == 1
                members[0].speed = 0.5
                throttled = time.monotonic()
                eventually(
                    lambda: _weights(envoy, members)[0] < 0.4 * _weights(envoy, members)[1]
                )  # least request: squared
                assert time.monotonic() - throttled < 8
                moved = time.monotonic()
                time.sleep(3)
                assert load.since(moved).shares()["a"] == pytest.approx(0.5 / 3.5, abs=0.05)
            load.load.assert_no_failure()


def test_a_wedged_engine_gets_nothing_new_and_comes_back_when_it_moves() -> None:
    """It answers its health check; its own word that it has requests and makes no step is what tells."""
    health = {"active": {"http": {"path": "/health"}, "interval": "1s"}, "deep": {"stalled_after": "2s"}}
    passive = {"passive": {"ejection_time": "1s"}}
    with engines("a", "b", "c") as members:
        fleet = _fleet(members, health={**health, **passive})
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            with envoy.client().steady(30, _GENERATE) as load:
                eventually(lambda: _known(control))
                time.sleep(1)
                members[0].wedged = True
                wedged = time.monotonic()
                eventually(lambda: _health(envoy, members[0]) == "UNHEALTHY")
                assert time.monotonic() - wedged < 2 + 2 * 0.5 + 0.5
                held = members[0].requests
                assert "stalled" in control.log
                out = next(item for item in control.metrics() if item.startswith("lbctl_replica_out{"))
                assert 'replica="a"' in out
                time.sleep(1)
                assert members[0].requests == held
                members[0].wedged = False
                eventually(lambda: _health(envoy, members[0]) == "HEALTHY")
                eventually(lambda: members[0].requests > held + 10)
            load.load.assert_no_failure()


def test_without_exporters_nobody_loses_its_weight_and_no_request_fails() -> None:
    with engines("a", "b", "c") as members:
        members[0].speed = 0.4
        fleet = _fleet(members, weighting={"adaptive": {"smoothing": "1s"}, "max_step": {"up": "30%"}})
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            with envoy.client().steady(40, _GENERATE) as load:
                eventually(lambda: _weights(envoy, members)[0] < _weights(envoy, members)[1])
                for engine in members:
                    engine.silent = True
                silent = time.monotonic()
                least = 1 << 30
                while len(set(_weights(envoy, members))) > 1:
                    assert time.monotonic() - silent < 12, control.tail()
                    least = min(least, *_weights(envoy, members))
                    time.sleep(0.05)
                assert least > 0
                time.sleep(1)
                assert len(set(_weights(envoy, members))) == 1
            load.load.assert_no_failure()


def test_a_saturated_engine_that_makes_progress_stays_in() -> None:
    deep = {"deep": {"stalled_after": "1s"}}
    with engines("a", "b", slots=2) as members:
        with controlling(_fleet(members, health=deep)) as control, control.envoy("edge", ["edge"]) as envoy:
            with envoy.client().steady(40, Request("POST", "/v1/completions?n=30", timeout=60.0)) as load:
                eventually(lambda: min(item.in_flight for item in members) > 20)
                time.sleep(4)
                assert [_health(envoy, item) for item in members] == ["HEALTHY", "HEALTHY"]
                assert len(set(_weights(envoy, members))) == 1
            assert not control.metric("lbctl_replica_out")
            load.load.assert_no_failure()
