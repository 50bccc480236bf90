"""A HAProxy with agent checks that runs another file than the control plane would render now."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from lbctl.apply.haproxy import processes
from lbctl.cli import run
from tests.support.fleets import Fleet, write_fleet
from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.edges import Edge
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.ports import HOST, hold
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually


def _fleet(members: list[Replica], edge: Edge, *, drained: str = "") -> Fleet:
    pool = pool_of(members, [10] * len(members), balance={"algorithm": "round_robin"})
    for replica in pool["replicas"]:
        if replica["name"] == drained:
            replica["drain"] = True
    fleet = fleet_of(pool)
    del fleet["listeners"]["gateway"]
    logs = {"bind": f"{HOST}:{edge.port}"}  # by UDP, so that the rendered file is the control plane's file
    return {**fleet, **edge.sections, "control": {"logs": logs}}


def _first_port() -> int:
    """Return the first of five consecutive ports, reserved until all tests end, below the system's dynamic ports."""
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError):  # another process has one of them
            hold(*range(port, port + 5))
            return port


@contextmanager
def _driven(count: int, **entry: Any) -> Iterator[tuple[Edge, ControlPlane, list[Replica]]]:
    """Run a HAProxy with agent checks. `entry`: `config` and `reload` of its entry; None removes a key."""
    with ExitStack() as stack:
        members = stack.enter_context(replicas(*[f"v{each}" for each in range(count)]))
        edge = stack.enter_context(edges.haproxy(agent_check={"bind": f"127.0.0.1:{_first_port()}"}))
        edge.entry = {key: value for key, value in {**edge.entry, **entry}.items() if value is not None}
        fleet = _fleet(members, edge)
        stack.enter_context(edges.started_edge(edge, fleet))
        control = stack.enter_context(controlling(fleet))
        eventually(lambda: _state(control) == "SYNCED")
        yield edge, control, members


def _state(control: ControlPlane) -> str:
    return str(control.proxies["ha"]["state"])


def _words(control: ControlPlane) -> str:
    return str(control.proxies["ha"]["reason"])


def _shares(edge: Edge) -> dict[str, float]:
    load = edge.load(120, 4)
    load.assert_no_failure()
    return load.shares()


def _third(*names: str) -> Any:
    return pytest.approx(dict.fromkeys(names, 1 / len(names)), abs=0.06)


def _assert_shares(edge: Edge, shares: Any) -> None:
    """Wait until the requests follow the agent's responses: HAProxy queries every two seconds."""
    eventually(lambda: _shares(edge) == shares)


def test_stale_file_gets_no_replica_the_answers_of_another() -> None:
    """This includes a restart, after which only that file contains the previous ports."""
    with _driven(5, reload=None) as (edge, control, members):
        assert _shares(edge) == _third("v0", "v1", "v2", "v3", "v4")
        left = _fleet([members[0], *members[2:]], edge, drained="v2")
        control.write(left)
        eventually(lambda: _state(control) == "WAITING" and "v1" in _words(control))
        assert "which the fleet no longer contains" in _words(control)
        assert "render the file again and reload HAProxy" in _words(control)
        _assert_shares(edge, _third("v0", "v3", "v4"))
        control.stop()
        control.start()
        control.write(_fleet([members[0], *members[2:]], edge, drained="v4"))
        _assert_shares(edge, _third("v0", "v2", "v3"))
        _render(edge, _fleet([members[0], *members[2:]], edge, drained="v4"))
        processes_before = processes.haproxies(str(edge.config))
        os.kill(int((edge.directory / "pid").read_text()), signal.SIGUSR2)
        eventually(lambda: bool(processes.haproxies(str(edge.config)) - processes_before))
        eventually(lambda: _state(control) == "SYNCED")
        assert _shares(edge) == _third("v0", "v2", "v3")


def test_replica_missing_in_the_file_is_named() -> None:
    with _driven(3, reload=None) as (edge, control, members), replicas("v3") as (newcomer,):
        fleet = _fleet([newcomer, *members], edge)
        fleet["pools"]["pool"]["replicas"][1]["weight"] = 5
        control.write(fleet)
        eventually(lambda: "has not fetched the newest weight" in _words(control))
        _assert_shares(edge, pytest.approx({"v0": 0.2, "v1": 0.4, "v2": 0.4}, abs=0.06))
        eventually(lambda: "sends no agent checks for pool/v3" in _words(control))
        assert _state(control) == "WAITING"


def test_failed_reload_keeps_each_answer_with_its_replica() -> None:
    with _driven(4, reload={"command": ["/bin/false"], "min_interval": "1s"}) as (edge, control, members):
        control.write(_fleet(members[1:], edge, drained="v2"))
        eventually(lambda: _state(control) == "FAILING")
        assert "the reload command failed" in _words(control)
        _assert_shares(edge, _third("v1", "v3"))


def test_haproxy_without_agent_checks_is_not_in_sync(capsys: pytest.CaptureFixture[str]) -> None:
    with _driven(2, reload=None) as (edge, control, _):
        assert _check(control, capsys)[0] == 0
        for pid in processes.haproxies(str(edge.config)):
            os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: _state(control) == "WAITING" and "has sent no agent checks" in _words(control))
            eventually(lambda: "no agent checks to 127.0.0.1:" in _check(control, capsys)[1])
            assert _check(control, capsys)[0] == 3
        finally:
            for pid in processes.haproxies(str(edge.config)):
                os.kill(pid, signal.SIGCONT)
        eventually(lambda: _state(control) == "SYNCED")


def _check(control: ControlPlane, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = run(["status", "--check", "--server", control.url])
    return code, capsys.readouterr().err


def _render(edge: Edge, fleet: Fleet) -> None:
    source = edge.directory / "again"
    source.mkdir()
    code = run(
        ["render", "-t", "haproxy", "--proxy", edge.name, "-d", str(edge.directory), str(write_fleet(source, fleet))]
    )
    assert code == 0
