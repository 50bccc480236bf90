"""An Envoy rejects an update: it keeps its configuration, the update is not resent, and status shows the reason.

The rejected content is a compiled regular expression above Envoy's limit, 100 instructions by default. It represents
any content that only Envoy can reject.
"""

from __future__ import annotations

import signal
import socket
import time
from typing import Any

import pytest

from lbctl.cli import run
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


def _two_pool_fleet(one: Replica, two: Replica) -> Fleet:
    fleet = fleet_of([one], **driven("delta", "sotw", "other"))
    fleet["routes"]["everything"]["listeners"] = ["delta", "sotw", "other"]
    fleet["pools"]["second"] = pool_of([two])
    return fleet


def _with_routes(fleet: Fleet, **routes: Any) -> Fleet:
    return {**fleet, "routes": {**fleet["routes"], **routes}}


def _with_large_route(fleet: Fleet) -> Fleet:
    """Return a fleet with a route that two Envoys reject; a second new route is for all three."""
    large = {"match": {"path_regex": _TOO_LARGE}, "pool": "pool", "listeners": ["delta", "sotw"]}
    return _with_routes(fleet, large=large, new={"match": {"path": "/new"}, "pool": "second"})


def _state(control: ControlPlane, node: str) -> str:
    return str(control.proxies[node]["state"])


def _change_accepted_parts(control: ControlPlane, fleet: Fleet) -> None:
    """Write the fleet, of which some Envoys reject a part, and wait until `serve` has read it."""
    before = control.status["snapshot"]["version"]
    control.write(fleet)
    eventually(lambda: control.status["snapshot"]["version"] != before)
    time.sleep(0.3)


def _status_lines(control: ControlPlane, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return node → its line of `lbctl status proxies`."""
    capsys.readouterr()
    assert run(["status", "proxies", "--server", control.url]) == 0
    return {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}


def test_rejected_routes_are_sent_once_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        replicas("one", "two") as (one, two),
        controlling(fleet := _two_pool_fleet(one, two)) as control,
        control.envoy("delta", ["delta"]) as delta,
        control.envoy("sotw", ["sotw"], delta=False) as sotw,
        control.envoy("other", ["other"]) as other,
        loaded([delta, sotw, other], 50),
    ):
        rejecting = [delta, sotw]
        synced(control)
        control.write(_with_large_route(fleet))
        eventually(lambda: [_state(control, envoy.node) for envoy in rejecting] == ["NACKED", "NACKED"])
        synced(control, "other")
        assert other.client().get("/new").replica == "two"

        line = 1 + (control.files / "fleet.yaml").read_text().splitlines().index("  large:") + 1
        for node, text in _status_lines(control, capsys).items():
            assert ("NACKED" in text) == (node != "other")
            assert (_WORDS in text) == (node != "other")
            assert (f"fleet.yaml:{line}:" in text) == (node != "other")
        assert _WORDS in control.log

        weighted = {**_with_large_route(fleet), "pools": {**fleet["pools"], "pool": pool_of([one, two], [1, 5])}}
        pushes = control.metrics()['lbctl_xds_pushes_total{type="rds"}']
        for weight in (5, 6, 7):
            weighted["pools"]["pool"]["replicas"][1]["weight"] = weight
            _change_accepted_parts(control, weighted)
        assert control.metrics()['lbctl_xds_pushes_total{type="rds"}'] == pushes, "it was sent again"
        for envoy in rejecting:
            assert envoy.updates("rds")["rds.update_rejected"] == 1
            eventually(lambda envoy=envoy: set(envoy.hosts("pool")) == {one.address, two.address})  # type: ignore[misc]
            assert envoy.client().get("/new").replica in {"one", "two"}, "its routes are the old ones"
        assert control.metrics()['lbctl_xds_nacks_total{type="rds"}'] == 2

        change(control, _with_routes(weighted, large={"match": {"path": "/large"}, "pool": "second"}))
        for envoy in (delta, sotw, other):
            assert envoy.client().get("/large").replica == "two"
        assert "NACKED" not in "".join(_status_lines(control, capsys).values())


@pytest.mark.parametrize(("reload", "delta"), [("command", True), ("signal", False)], ids=["command", "signal"])
def test_reload_resends_listener_once_its_port_is_free(reload: str, delta: bool) -> None:
    port = free_port()
    with replicas("one") as (one,), socket.create_server((HOST, port)) as occupant:
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

            occupant.close()
            time.sleep(0.5)
            assert _state(control, "edge") == "NACKED", "no reload was requested"
            if reload == "signal":
                control.signal(signal.SIGHUP)
            else:
                assert control.reload().json()["offered_again"] == 1
            synced(control)
            assert Client(port).get("/").replica == "one"
            assert control.reload().json()["offered_again"] == 0


def test_new_envoy_gets_all_but_the_rejected_part() -> None:
    with (
        replicas("one", "two") as (one, two),
        controlling(fleet := _two_pool_fleet(one, two)) as control,
    ):
        large = {"match": {"path_regex": _TOO_LARGE}, "pool": "pool", "listeners": ["delta", "sotw"]}
        before = control.status["snapshot"]["version"]
        control.write(_with_routes(fleet, large=large))
        eventually(lambda: control.status["snapshot"]["version"] != before)
        with (
            control.envoy("delta", ["delta"]) as delta,
            control.envoy("sotw", ["sotw"], delta=False) as sotw,
            control.envoy("other", ["other"]) as other,
        ):
            eventually(lambda: [_state(control, node) for node in ("delta", "sotw")] == ["NACKED", "NACKED"])
            time.sleep(0.5)
            assert [envoy.updates("rds")["rds.update_rejected"] for envoy in (delta, sotw)] == [1, 1]
            assert other.client().get().ok
            change(control, fleet)
            assert [envoy.client().get().ok for envoy in (delta, sotw)] == [True, True]
