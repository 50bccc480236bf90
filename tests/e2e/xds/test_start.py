"""`lbctl serve` and Envoys start in any order: the first request is answered soon after both have started."""

from __future__ import annotations

import time

import pytest
import requests

from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import BOTH, bootstrap_of_command, loaded
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_MAX_SECONDS = 15.0
"""Enough for a busy machine. With Envoy's default, a failed connection is retried after up to half a minute."""


def _started(envoy: XdsEnvoy) -> bool:
    """Return whether the Envoy answers on its admin port, with or without a configuration."""
    try:
        return requests.get(f"http://{HOST}:{envoy.admin}/server_info", timeout=10).ok
    except requests.RequestException:
        return False


def _seconds_until_traffic(control: ControlPlane, envoys: tuple[XdsEnvoy, ...]) -> float:
    """Return the seconds from the moment at which everything has started until each Envoy forwards requests."""
    eventually(lambda: control.ready() and all(_started(envoy) for envoy in envoys))
    started = time.monotonic()
    eventually(lambda: all(envoy.client().get().ok for envoy in envoys))
    return time.monotonic() - started


@pytest.mark.parametrize("first", ["serve", "envoy", "both at once"])
def test_traffic_flows_soon_after_both_have_started(first: str) -> None:
    fleet = driven(*BOTH)
    with replicas("a") as (a,), controlling(fleet_of([a], **fleet), start=False) as control:
        if first != "envoy":
            control.start(ready=first == "serve")
        bootstraps = [bootstrap_of_command(control, node) for node in BOTH]
        with (
            control.envoy(BOTH[0], [BOTH[0]], bootstrap=bootstraps[0], wait=False) as delta,
            control.envoy(BOTH[1], [BOTH[1]], bootstrap=bootstraps[1], wait=False) as sotw,
        ):
            if first == "envoy":
                time.sleep(2)  # both have failed to connect several times
                control.start()
            assert _seconds_until_traffic(control, (delta, sotw)) < _MAX_SECONDS
            with loaded([delta, sotw], 50):
                time.sleep(0.3)
