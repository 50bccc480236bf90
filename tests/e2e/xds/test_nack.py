"""An Envoy refuses what it is sent: it keeps what it had, is sent it once, the others move on, the user is shown why.

What Envoy alone can judge is the size of a compiled regular expression, at most 100 unless its bootstrap says more. It
stands here for any such content.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.driving import change, loaded, synced
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_TOO_LARGE = r"/\w{1000}/large"
_WORDS = "program size"


def _fleet(one: Replica, two: Replica) -> Fleet:
    fleet = fleet_of([one], **driven("delta", "sotw", "other"))
    fleet["routes"]["everything"]["listeners"] = ["delta", "sotw", "other"]
    fleet["pools"]["second"] = pool_of([two])
    return fleet


def _with_routes(fleet: Fleet, **routes: Any) -> Fleet:
    return {**fleet, "routes": {**fleet["routes"], **routes}}


def _bad(fleet: Fleet) -> Fleet:
    """Two Envoys will refuse a route, and what else is new is for all three."""
    bad = {"match": {"path_regex": _TOO_LARGE}, "pool": "pool", "listeners": ["delta", "sotw"]}
    return _with_routes(fleet, large=bad, new={"match": {"path": "/new"}, "pool": "second"})


def _state(control: ControlPlane, node: str) -> str:
    return str(control.proxies[node]["state"])


def _shown(control: ControlPlane) -> dict[str, str]:
    """Node → its line of `lbctl status proxies`."""
    done = subprocess.run(
        [sys.executable, "-m", "lbctl", "status", "proxies", "--server", control.url],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return {line.split()[0]: line for line in done.stdout.splitlines()[1:]}


def test_a_refused_route_table_is_sent_once_harms_nobody_and_is_shown_with_its_line() -> None:
    with (
        replicas("one", "two") as (one, two),
        controlling(fleet := _fleet(one, two)) as control,
        control.envoy("delta", ["delta"]) as delta,
        control.envoy("sotw", ["sotw"], delta=False) as sotw,
        control.envoy("other", ["other"]) as other,
        loaded([delta, sotw, other], 100),
    ):
        refusing = [delta, sotw]
        synced(control)
        control.write(_bad(fleet))
        eventually(lambda: [_state(control, envoy.node) for envoy in refusing] == ["NACKED", "NACKED"])
        synced(control, "other")
        assert other.client().get("/new").replica == "two"

        line = 1 + (control.files / "fleet.yaml").read_text().splitlines().index("  large:") + 1
        for node, text in _shown(control).items():
            assert ("NACKED" in text) == (node != "other")
            assert (_WORDS in text) == (node != "other")
            assert (f"fleet.yaml:{line}:" in text) == (node != "other")
        assert _WORDS in control.log

        weighty = {**_bad(fleet), "pools": {**fleet["pools"], "pool": pool_of([one, two], [1, 5])}}
        pushes = control.metrics()['lbctl_xds_pushes_total{type="rds"}']
        for weight in (5, 6, 7):
            weighty["pools"]["pool"]["replicas"][1]["weight"] = weight
            control.write(weighty)
            time.sleep(0.7)
        assert control.metrics()['lbctl_xds_pushes_total{type="rds"}'] == pushes, "it was sent again"
        for envoy in refusing:
            assert envoy.updates("rds")["rds.update_rejected"] == 1
            assert set(envoy.hosts("pool")) == {one.address, two.address}, "the rest of the fleet does not reach it"
            assert envoy.client().get("/new").replica in {"one", "two"}, "its routes are the old ones"
        assert control.metrics()['lbctl_xds_nacks_total{type="rds"}'] == 2

        change(control, _with_routes(weighty, large={"match": {"path": "/large"}, "pool": "second"}))
        for envoy in (delta, sotw, other):
            assert envoy.client().get("/large").replica == "two"
        assert "NACKED" not in "".join(_shown(control).values())


@pytest.mark.parametrize("delta", [True, False], ids=["delta", "sotw"])
@pytest.mark.parametrize("how", ["command", "signal"])
def test_what_was_refused_because_of_a_port_that_was_taken_heals_with_a_reload(delta: bool, how: str) -> None:
    port = free_port()
    with replicas("one") as (one,), socket.create_server((HOST, port)) as taken:
        fleet = fleet_of([one])
        extra = {**fleet, "listeners": {**fleet["listeners"], "extra": {"bind": f"{HOST}:{port}"}}}
        with controlling(fleet) as control, control.envoy("edge", delta=delta) as envoy:
            synced(control)
            control.write(extra)
            eventually(lambda: _state(control, "edge") == "NACKED")
            control.signal(signal.SIGHUP)
            eventually(lambda: envoy.updates("lds")["lds.update_rejected"] == 2)
            eventually(lambda: "offered_again=1" in control.log)
            assert envoy.client().get("/").ok, "the listener that it has goes on"

            taken.close()
            time.sleep(1)
            assert _state(control, "edge") == "NACKED", "nobody has asked for it"
            if how == "signal":
                control.signal(signal.SIGHUP)
            else:
                assert control.reload().json()["offered_again"] == 1
            synced(control)
            assert Client(port).get("/").replica == "one"
            assert control.reload().json()["offered_again"] == 0


@pytest.mark.parametrize("delta", [True, False], ids=["delta", "sotw"])
def test_an_envoy_that_comes_to_a_fleet_with_a_fault_gets_the_rest_of_it(delta: bool) -> None:
    with (
        replicas("one", "two") as (one, two),
        controlling(fleet := _fleet(one, two)) as control,
    ):
        bad = {"match": {"path_regex": _TOO_LARGE}, "pool": "pool", "listeners": ["delta"]}
        control.write(_with_routes(fleet, large=bad))
        eventually(lambda: control.status["fleet"]["valid"])
        with control.envoy("delta", ["delta"], delta=delta) as faulty, control.envoy("other", ["other"]) as other:
            eventually(lambda: _state(control, "delta") == "NACKED")
            time.sleep(1)
            assert faulty.updates("rds")["rds.update_rejected"] == 1
            assert other.client().get().ok
            change(control, fleet)
            assert faulty.client().get().ok
