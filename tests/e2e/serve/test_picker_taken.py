"""Two control planes on one machine whose pickers have the same address: no proxy uses the picker of the other one."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
import requests

from lbctl.cli import run
from lbctl.cli.listen_address import picker_address
from lbctl.ir.address import Address
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.driving import change
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, PICKER_ADDRESS, short_pauses
from tests.support.processes.picker import EDGE, KINDS, alone, await_picker, frozen, key_of, picker_section
from tests.support.processes.ports import HOST, free_pair, hold
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

TAKEN = "another process is using the picker's address"


def _pool(members: list[Replica]) -> Fleet:
    return {"replicas": [entry(item) for item in members], "balance": {"algorithm": "pick"}}


def _decisions_after_one_more(control: ControlPlane, section: Fleet) -> float:
    """Query the picker of a control plane once, and return its count of decisions once this one is included."""
    host, port = section["control"]["picker"]["bind"].split(":")
    url = f"http://{host}:{int(port) + 1}/pick/pool"
    assert requests.get(url, headers=key_of(control), timeout=10).status_code == 200
    eventually(lambda: control.metric("lbctl_pick_decisions_total") > 0)
    return control.metric("lbctl_pick_decisions_total")


def test_proxies_of_second_serve_never_use_the_first_picker() -> None:
    """One of each kind. After the first control plane has ended, the second one starts its own picker there."""
    control = picker_section()
    with ExitStack() as stack:
        one, two = stack.enter_context(replicas("a")), stack.enter_context(replicas("b", "c"))
        stack.enter_context(short_pauses({**PICKER_ADDRESS, **HAPROXY_RELOADS}))
        first = stack.enter_context(controlling(fleet_of(_pool(one), **control)))
        eventually(lambda: first.status["picker"]["running"])
        haproxy = stack.enter_context(edges.haproxy("haproxy", min_interval="100ms"))
        nginx = stack.enter_context(edges.nginx("nginx", min_interval="100ms"))
        fleet = edges.add(fleet_of(_pool(two), **driven("envoy"), **control), haproxy, nginx)
        del fleet["listeners"]["gateway"]
        for edge in (haproxy, nginx):
            stack.enter_context(edges.started_edge(edge, fleet))
        second = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(second.envoy("envoy", ["envoy"], by_socket=True))
        eventually(lambda: all(second.proxies[kind]["state"] == "SYNCED" for kind in KINDS))
        clients = {"envoy": envoy.client(), "haproxy": haproxy, "nginx": nginx}

        eventually(lambda: not second.status["picker"]["running"])
        assert str(control["control"]["picker"]["bind"].split(":")[1]) in second.status["picker"]["reason"]
        assert TAKEN in second.log
        for client in clients.values():
            client.load(30, 4).assert_no_failure()
        assert _decisions_after_one_more(first, control) == 1.0
        assert first.stop() == 0
        eventually(lambda: second.status["picker"]["running"])
        await_picker(envoy)
        for kind, client in clients.items():
            eventually(partial(_is_picked, second, client, kind))
        assert second.log.count(TAKEN) == 1
        assert "a task failed" not in second.log


def _is_picked(control: ControlPlane, client: Client, kind: str) -> bool:
    """Send requests through this proxy, and return whether the picker has decided one of them."""
    client.load(10, 2).assert_no_failure()
    return any(row["proxy"] == kind for row in control.get("picks")["samples"])


def test_restarted_serve_gets_its_picker_address_back() -> None:
    section = picker_section()
    with (
        short_pauses({"lbctl.serve.picker.manager._RETURN": 300.0}),  # a start takes long on a busy machine
        replicas("a") as one,
        controlling(fleet_of(_pool(one), **section)) as first,
    ):
        eventually(lambda: first.status["picker"]["running"])
        with controlling(fleet_of(_pool(one), **section)) as second:
            eventually(lambda: TAKEN in second.log)
            for end in (first.stop, first.kill):
                end()
                first.start()
                eventually(lambda: first.status["picker"]["running"])
                assert TAKEN not in first.log
                assert not second.status["picker"]["running"]


@contextmanager
def _holders(bind: Address) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Run two processes of which exactly one listens at the address, and yield them by process id."""
    with socket.create_server((bind.host, bind.port)) as listening, ExitStack() as stack:
        command, passed = ["sleep", "300"], (listening.fileno(),)
        holders = [stack.enter_context(subprocess.Popen(command, pass_fds=passed)) for _ in range(2)]
        for holder in holders:
            stack.callback(holder.kill)
        listening.close()
        yield {holder.pid: holder for holder in holders}


def test_process_with_the_picker_address_is_named_with_a_fix(capsys: pytest.CaptureFixture[str]) -> None:
    section = picker_section()
    bind = str(section["control"]["picker"]["bind"])
    with (
        replicas("a") as one,
        _holders(picker_address("bind", bind)) as holders,
        controlling(fleet_of(_pool(one), **section)) as control,
    ):

        def named() -> int | None:
            reason = re.fullmatch(rf"process (\d+) uses {bind}; (.*)", str(control.status["picker"]["reason"]))
            assert reason is None or reason[2] == "set another port in control.picker.bind or --picker-bind"
            return int(reason[1]) if reason else None

        eventually(lambda: named() in holders)
        first = named()
        assert first is not None
        holders[first].kill()
        holders[first].wait()
        eventually(lambda: named() in holders.keys() - {first})
        second = named()
        command = ["doctor", str(control.files), "--server", control.url, "--state", str(control.state)]
        assert run([*command, "-o", "json"]) == 4
        rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
        assert rows[f"picker {bind}"]["message"].startswith(
            f"not running: process {second} uses {bind}; set another port"
        )
        assert control.log.count(TAKEN) == 1


def test_doctor_recognises_the_picker_of_another_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    section = picker_section()
    bind = section["control"]["picker"]["bind"]
    with replicas("a") as one, controlling(fleet_of(_pool(one), **section)) as first:
        eventually(lambda: first.status["picker"]["running"])
        with controlling(fleet_of(_pool(one), **section)) as second:
            eventually(lambda: TAKEN in second.log)
            states = {}
            for control in (first, second):
                command = ["doctor", str(control.files), "--server", control.url, "--state", str(control.state)]
                run([*command, "-o", "json"])
                rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
                states[control] = rows[f"control.picker.bind {bind}"]["state"]
            assert states == {first: "ok", second: "failed"}


def test_second_serve_runs_its_picker_at_another_address() -> None:
    control, own = picker_section(), f"{HOST}:{free_pair()}"
    with replicas("a") as one, replicas("b") as two, controlling(fleet_of(_pool(one), **control)) as first:
        eventually(lambda: first.status["picker"]["running"])
        fleet = fleet_of(_pool(two), **driven(EDGE), **control)
        with (
            controlling(fleet, options=("--picker-bind", own)) as second,
            second.envoy(EDGE, [EDGE], by_socket=True) as envoy,
        ):
            await_picker(envoy)
            envoy.client().load(30, 4).assert_no_failure()
            assert second.status["picker"]["listens"] == own
            eventually(lambda: second.metric("lbctl_pick_decisions_total") == 30.0)
            assert _decisions_after_one_more(first, control) == 1.0


def _free_triple() -> int:
    """Return the first of three consecutive ports."""
    while True:
        port = free_pair()
        try:
            hold(port + 2)
        except OSError:
            continue
        return port


def test_picker_can_move_to_the_next_port() -> None:
    port = _free_triple()
    with replicas("a", "b") as two:
        fleet = fleet_of(_pool(two), **driven(EDGE), control={"picker": {"bind": f"{HOST}:{port}"}})
        with controlling(fleet) as control, control.envoy(EDGE, [EDGE], by_socket=True) as envoy:
            await_picker(envoy)
            for bind in (f"{HOST}:{port + 1}", f"{HOST}:{port}"):
                change(control, {**fleet, "control": {"picker": {"bind": bind}}}, EDGE)
                eventually(lambda bind=bind: control.status["picker"]["listens"] == bind)  # type: ignore[misc]
                await_picker(envoy)
                envoy.client().load(10, 2).assert_no_failure()
            assert TAKEN not in control.log


def test_standalone_picker_at_the_address_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    """It starts again when it gets the key. `serve` leaves the address free for it."""
    port = free_pair()
    with replicas("a", "b") as two, short_pauses({"lbctl.serve.picker.manager._RETURN": 6.0}):
        fleet = fleet_of(_pool(two), **driven(EDGE), control={"picker": {"bind": f"{HOST}:{port}"}})
        with controlling(fleet) as control:
            control.kill()
            with alone(control, port) as picker:
                eventually(lambda: _answers(port))
                control.start()
                with control.envoy(EDGE, [EDGE], by_socket=True) as envoy:
                    eventually(lambda: control.status["picker"]["following"] == 1)
                    await_picker(envoy)
                    envoy.client().load(20, 2).assert_no_failure()
                    assert (
                        "lbctl_pick_decisions_total{"
                        in requests.get(f"http://{HOST}:{port + 1}/metrics", timeout=10).text
                    )
                    assert TAKEN not in control.log
                    eventually(lambda: control.status["picker"]["alone"] and control.status["picker"]["running"])
                    eventually(lambda: control.status["problems"] == [])
                    eventually(lambda: control.metric("lbctl_pick_decisions_total") >= 20)
                    assert control.explain_pick({"pool": "pool", "session": "s", "body": "{}"})["choices"]
                    command = ["doctor", str(control.files), "--server", control.url, "--state", str(control.state)]

                    def states() -> set[str]:
                        run([*command, "-o", "json"])
                        rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
                        return {rows[f"{what} {HOST}:{port}"]["state"] for what in ("picker", "control.picker.bind")}

                    eventually(lambda: states() == {"ok"})  # a picker that stalls at this moment responds too late
                    with frozen(picker):
                        eventually(
                            lambda: "the picker hangs: `lbctl picker`" in str(control.status["picker"]["reason"])
                        )
            eventually(lambda: control.status["picker"]["running"] and not control.status["picker"]["alone"])


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://{HOST}:{port + 1}/health", timeout=10).status_code == 200
    except requests.RequestException:
        return False
