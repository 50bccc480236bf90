"""A fleet file, `lbctl serve`, `lbctl bootstrap` and an Envoy: how long until the first request is answered."""

from __future__ import annotations

import time

import pytest
import requests

from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import BOTH, bootstrap_of_command, loaded
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Replica, replicas

_PATIENCE = 60.0
_AT_MOST = 5.0
"""A second, and what a busy machine adds. An Envoy that has asked in vain waits up to half a minute by default."""


def _fleet(replica: Replica) -> Fleet:
    return fleet_of([replica], **driven(*BOTH))


def _started(envoy: XdsEnvoy) -> bool:
    """It works; what it is to do it may not know yet."""
    try:
        return requests.get(f"http://{HOST}:{envoy.admin}/server_info", timeout=10).ok
    except requests.RequestException:
        return False


def _until_traffic(control: ControlPlane, envoy: XdsEnvoy) -> float:
    """Seconds from the moment at which both have started to the first answer of a replica."""
    begun, both_since = time.monotonic(), 0.0
    while not (both_since and envoy.client().get().ok):
        assert time.monotonic() - begun < _PATIENCE
        if not both_since and control.ready() and _started(envoy):
            both_since = time.monotonic()
        time.sleep(0.005)
    return time.monotonic() - both_since


@pytest.mark.parametrize("node", BOTH)
@pytest.mark.parametrize("first", ["serve", "envoy", "both at once"])
def test_traffic_flows_a_second_after_both_have_started(node: str, first: str) -> None:
    with replicas("a") as (a,), controlling(_fleet(a), start=False) as control:
        if first != "envoy":
            control.start(ready=first == "serve")
        with control.envoy(node, [node], bootstrap=bootstrap_of_command(control, node), wait=False) as envoy:
            if first == "envoy":
                time.sleep(2)  # it has asked in vain, and waits before it asks again
                control.start()
            took = _until_traffic(control, envoy)
            assert took < _AT_MOST
            with loaded([envoy], 100):
                time.sleep(0.5)
