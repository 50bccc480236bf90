"""`lbctl status` and `lbctl top` of a real control plane with an Envoy and an nginx."""

from __future__ import annotations

import re
import shlex
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.driving import synced
from tests.support.processes.edges import Edge
from tests.support.processes.fleet import fleet_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually
from tests.support.pseudo_terminal import on_terminal


def _fleet(members: list[Replica], *sites: Edge, **more: Any) -> Fleet:
    pool = {"replicas": [{"name": item.name, "address": item.address} for item in members]}
    fleet = fleet_of(pool, **driven("edge"), **more)
    del fleet["listeners"]["gateway"]
    return edges.add(fleet, *sites)


def _weight(control: ControlPlane, value: float) -> None:
    words = ["weight", "set", "pool/a", str(value), "--server", control.url]
    assert run([*words, "--token-file", str(control.state / "api-token")]) == 0


def _pools(server: list[str], capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return pool, replica, state and the first three shares of each row; rows of pools are cached for a moment."""
    assert run(["status", "pools", *server]) == 0
    return [line.split()[:6] for line in capsys.readouterr().out.splitlines() if line.startswith("pool ")]


def test_check_waits_for_the_next_reload_of_nginx(capsys: pytest.CaptureFixture[str]) -> None:
    with replicas("a", "b") as members, edges.nginx(min_interval="1h") as ng:
        fleet = _fleet(list(members), ng)
        with edges.started_edge(ng, fleet), controlling(fleet) as control:
            eventually(lambda: control.proxies["ng"]["state"] == "SYNCED")
            _weight(control, 3)
            eventually(lambda: control.proxies["ng"]["state"] == "WAITING")
            assert run(["status", "proxies", "--check", "--server", control.url]) == 3
            due = re.search(r"ng is WAITING: its next reload is due at (\S+Z);", capsys.readouterr().err)
            assert due is not None
            assert datetime.fromisoformat(due[1]) > datetime.now(UTC) + timedelta(minutes=30)
            fleet["listeners"]["ng"]["max_body"] = "2MiB"  # this makes nginx reload immediately
            control.write(fleet)
            assert run(["status", "proxies", "--check", "--wait", "1m", "--expect", "1", "--server", control.url]) == 0
            assert "SYNCED" in capsys.readouterr().out


def test_nginx_reports_the_loaded_version_while_another_waits(tmp_path: Path) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    with replicas("a", "b") as members, edges.nginx() as ng:
        reload = shlex.join(ng.entry["reload"]["command"])
        once = f"echo >> {begun}; until mv {gate} {gate}.used 2>/dev/null; do sleep 0.05; done; exec {reload}"
        ng.entry["reload"]["command"] = ["/bin/sh", "-c", once]
        fleet = _fleet(list(members), ng)
        with edges.started_edge(ng, fleet), controlling(fleet) as control:
            gate.touch()
            eventually(lambda: control.proxies["ng"]["state"] == "SYNCED")
            _weight(control, 3)
            first = control.status["snapshot"]["version"]
            eventually(lambda: begun.read_text() == "\n\n")
            _weight(control, 5)
            time.sleep(1)  # the newer one is requested while the reload for the first one runs
            gate.touch()
            eventually(lambda: control.proxies["ng"]["reloads"] == 2)
            assert (control.proxies["ng"]["state"], control.proxies["ng"]["last_good"]) == ("WAITING", first)
            gate.touch()
            eventually(lambda: control.proxies["ng"]["state"] == "SYNCED")
            assert control.proxies["ng"]["last_good"] == control.status["snapshot"]["version"]


def test_check_fails_if_an_expected_envoy_has_left(capsys: pytest.CaptureFixture[str]) -> None:
    with replicas("a", "b") as members, controlling(_fleet(list(members))) as control:
        server = ["--server", control.url]
        with control.envoy("edge", ["edge"], by_socket=True):
            synced(control)
            assert run(["status", "--check", "--expect", "1", *server]) == 0
            shown = [["pool", name, "in", "50.0%", "50.0%", "50.0%"] for name in ("a", "b")]
            eventually(lambda: _pools(server, capsys) == shown)
        eventually(lambda: control.proxies["edge"]["state"] == "GONE")
        assert run(["status", "--check", "--expect", "1", "--wait", "1s", *server]) == 3
        printed = capsys.readouterr()
        assert "0 of 1 expected proxies are connected and in sync; disconnected: edge" in printed.err
        gone = "no envoy of the entry edge is connected: edge has left"
        assert f"lbctl: {gone}" in printed.err
        assert printed.out.startswith(f"PROBLEM    {gone}; run: lbctl status proxies\n")


def test_envoy_with_rendered_files_is_not_driven(tmp_path: Path) -> None:
    with replicas("a", "b") as members, controlling(_fleet(list(members)), start=False) as control:
        fleet = _fleet(list(members))
        fleet["proxies"]["edge"] = {"kind": "envoy", "config": str(tmp_path / "envoy.yaml")}
        control.write(fleet)
        control.start()
        eventually(lambda: "edge" in control.proxies)
        row = control.proxies["edge"]
        assert (row["state"], row["reason"]) == ("NOT DRIVEN", "Envoy with `config` reads files unless it connects")
        assert run(["status", "--check", "--server", control.url]) == 0
        with control.envoy("edge", ["edge"], by_socket=True):
            synced(control)
        eventually(lambda: control.proxies["edge"]["state"] == "GONE")
        assert run(["status", "--check", "--server", control.url]) == 3


def test_commands_take_the_api_address_from_the_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with replicas("a", "b") as members, controlling(_fleet(list(members)), start=False) as control:
        bind, state = f"127.0.0.1:{control.api}", str(control.state)
        control.write(_fleet(list(members), control={"api": {"bind": bind}, "state": state}))
        control.start()
        assert run(["drain", "pool/a", "--fleet", str(control.files)]) == 0
        assert run(["status", "--fleet", str(control.files / "fleet.yaml")]) == 0
        assert "drain pool/a, by operator" in capsys.readouterr().out


def test_top_shows_a_drain_live() -> None:
    with (
        replicas("a", "b") as members,
        controlling(_fleet(list(members))) as control,
        control.envoy("edge", ["edge"]),
        on_terminal("top", "--server", control.url) as terminal,
    ):
        terminal.await_text("pool  2 replicas: 2 in")
        token = str(control.state / "api-token")
        assert run(["drain", "pool/a", "--server", control.url, "--token-file", token]) == 0
        terminal.await_text("1 draining")
        terminal.press("q")
        assert terminal.end() == 0
