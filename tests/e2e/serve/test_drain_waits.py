"""`lbctl drain --wait` and `--wait-idle` with real proxies: a stream in flight, and a proxy that cannot be reached."""

from __future__ import annotations

import time
from threading import Timer

import pytest

from lbctl.cli import run
from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.driving import synced
from tests.support.processes.fleet import fleet_of
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually


def _command(control: ControlPlane, *words: str) -> int:
    return run([*words, "--server", control.url, "--token-file", str(control.state / "api-token")])


def _state(control: ControlPlane) -> str:
    (pool,) = control.get("pools")["pools"]
    return next(str(item["state"]) for item in pool["replicas"] if item["name"] == "a")


def test_drain_reports_streams_and_proxies_truly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with replicas("a", "b") as (a, b), edges.haproxy("ha") as ha:
        fleet = fleet_of([a, b])
        fleet["pools"]["pool"]["balance"] = {"algorithm": "round_robin"}
        fleet |= {section: {**driven("edge")[section], **ha.sections[section]} for section in ha.sections}
        with controlling(fleet) as control, control.envoy("edge", ["edge"], by_socket=True) as edge:
            with edges.started_edge(ha, fleet):
                eventually(lambda: control.proxies["ha"]["state"] == "SYNCED")
                a.paused = b.paused = True
                streams = [edge.client().send("GET", "/sse", timeout=150) for _ in range(2)]
                eventually(lambda: (a.in_flight, b.in_flight) == (1, 1))
                assert _command(control, "drain", "pool/a", "--wait") == 0
                assert "lbctl: applied by edge, ha" in capsys.readouterr().err
                assert (a.in_flight, _state(control)) == (1, "draining")
                began = time.monotonic()
                Timer(2, setattr, (a, "paused", False)).start()
                assert _command(control, "drain", "pool/a", "--wait-idle") == 0
                assert a.in_flight == 0
                assert time.monotonic() - began > 1
                assert _state(control) == "drained"
                assert "pool/a: it has no requests in flight" in capsys.readouterr().err
                b.paused = False
                for stream in streams:
                    assert stream.result(30).ok
            assert _command(control, "undrain", "pool/a") == 0
            eventually(lambda: control.proxies["ha"]["state"] == "FAILING")
            synced(control, "edge")
            monkeypatch.setattr("lbctl.cli.overrides._WAIT_TIMEOUT", 2.0)
            assert _command(control, "undrain", "pool/a", "--wait") == 3
            assert "lbctl: not applied by ha (FAILING: " in capsys.readouterr().err
