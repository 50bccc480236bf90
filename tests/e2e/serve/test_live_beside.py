"""HAProxy and nginx next to Envoys, all driven by one `lbctl serve` from the same signals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from lbctl.apply.haproxy.runtime import Runtime
from tests.support.fleets import Fleet
from tests.support.processes import background, edges
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import next_share
from tests.support.processes.edges import Edge
from tests.support.processes.engines import Engine, engines
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.lbctl_process import short_pauses
from tests.support.processes.ports import free_port, hold
from tests.support.processes.waiting import at_rest, eventually

_SHORT_CHECKS = {"lbctl.serve.drivers.nginx._CHECK_INTERVAL": 0.5, "lbctl.serve.drivers.haproxy._CHECK_INTERVAL": 0.5}
_SHORT_PAUSES = {"lbctl.apply.nginx.reload_schedule.PAUSE": 1.0}
"""Seconds between urgent reloads of nginx."""
_GENERATE = Request("POST", "/v1/completions?n=10", timeout=20.0)


def _fleet(members: list[Engine], *sites: Edge, **keys: Any) -> Fleet:
    sources = [{"kind": "vllm", "url": "http://{address}/metrics"}]
    telemetry = {"interval": "500ms", "sources": sources}
    pool = pool_of(members, **{"telemetry": telemetry, "weighting": {"adaptive": {"smoothing": "2s"}}, **keys})
    fleet = fleet_of(pool, **driven("edge"))
    del fleet["listeners"]["gateway"]
    return edges.add(fleet, *sites)


@contextmanager
def _driving(fleet: Fleet, *sites: Edge) -> Iterator[ControlPlane]:
    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet))
        eventually(lambda: all(control.proxies[site.name]["state"] == "SYNCED" for site in sites))
        yield control


def test_all_proxies_move_load_from_a_slow_engine() -> None:
    with engines("a", "b", "c", "d") as members, edges.haproxy() as ha, edges.nginx() as ng:
        fleet = _fleet(members, ha, ng, balance={"algorithm": "round_robin"})
        with _driving(fleet, ha, ng) as control, control.envoy("edge", ["edge"]) as envoy, ExitStack() as stack:
            loads = [stack.enter_context(each.steady(30, _GENERATE)) for each in (envoy.client(), ha, ng)]
            time.sleep(1)
            members[0].speed = 0.5
            eventually(lambda: control.metrics()['lbctl_replica_weight{pool="pool",replica="a"}'] < 0.6)
            _wait_for_update(control, "edge", "ha", "ng")
            wanted = pytest.approx(0.5 / 3.5, abs=0.05)
            for load in loads:  # 90 requests, distributed in turn
                eventually(lambda load=load: next_share(load, "a", 3) == wanted)
        for load in loads:
            load.load.assert_no_failure()


def test_sleeping_engine_leaves_haproxy_and_nginx() -> None:
    state = 'vllm:engine_sleep_state{sleep_state="awake"} %d\n'
    with (
        short_pauses(_SHORT_PAUSES),
        engines("a", "b", "c") as members,
        edges.haproxy(min_interval="10m") as ha,
        edges.nginx(min_interval="10m") as ng,
    ):
        fleet = _fleet(members, ha, ng)
        with _driving(fleet, ha, ng) as control, ExitStack() as stack:
            loads = [stack.enter_context(ha.steady(20, _GENERATE)), stack.enter_context(ng.steady(20, _GENERATE))]
            eventually(lambda: members[0].requests > 3)
            members[0].more = state % 0
            eventually(lambda: "a replica is asleep" in control.log)
            _wait_for_update(control, "ha", "ng")
            count = at_rest(lambda: members[0].requests)
            time.sleep(1)
            assert members[0].requests == count
            members[0].more = state % 1
            for load in loads:
                eventually(lambda load=load: next_share(load, "a", 2) > 0.2)
        for load in loads:
            load.load.assert_no_failure()


def test_wedged_engine_leaves_haproxy_and_nginx_at_once() -> None:
    """Health does not wait for `min_interval`."""
    with (
        short_pauses(_SHORT_PAUSES),
        engines("a", "b", "c") as members,
        edges.haproxy(min_interval="10m") as ha,
        edges.nginx(min_interval="10m") as ng,
    ):
        fleet = _fleet(members, ha, ng, health={"deep": {"stalled_after": "2s"}}, affinity={"cookie": "r"})
        with _driving(fleet, ha, ng) as control, ExitStack() as stack:
            loads = [stack.enter_context(ha.steady(20, _GENERATE)), stack.enter_context(ng.steady(20, _GENERATE))]
            time.sleep(1)
            members[0].wedged = True
            eventually(lambda: "a replica is out" in control.log)
            _wait_for_update(control, "ha", "ng")
            count = at_rest(lambda: members[0].requests)
            time.sleep(1)
            assert members[0].requests == count
            members[0].wedged = False
        for load in loads:
            load.load.assert_no_failure()


def test_agent_checks_carry_weights_without_runtime_api() -> None:
    with ExitStack() as stack:
        members = stack.enter_context(engines("a", "b", "c"))
        ha = stack.enter_context(edges.haproxy(agent_check={"bind": f"127.0.0.1:{_three_ports()}"}))
        fleet = _fleet(members, ha, balance={"algorithm": "round_robin"})
        del fleet["proxies"]["edge"], fleet["listeners"]["edge"]
        control = stack.enter_context(_driving(fleet, ha))
        before = control.status["snapshot"]["version"]
        load = stack.enter_context(ha.steady(60, _GENERATE))
        time.sleep(1)
        members[0].speed = 0.4
        eventually(lambda: control.metrics()['lbctl_replica_weight{pool="pool",replica="a"}'] < 0.5)
        assert control.status["snapshot"]["version"] != before
        wanted = pytest.approx(0.4 / 2.4, abs=0.06)
        eventually(lambda: next_share(load, "a", 2.5) == wanted)  # 150 requests, distributed in turn
        load.load.assert_no_failure()


def test_lbctl_checks_the_replicas_of_nginx() -> None:
    """With `fail_open`, a failure of all checks ejects none."""
    active = {"http": {"path": "/health"}, "interval": "1s", "unhealthy_threshold": 2}
    health = {"active": active, "fail_open": True}
    with short_pauses(_SHORT_PAUSES), engines("a", "b") as members, edges.nginx(min_interval="10m") as ng:
        fleet = _fleet(members, ng, health=health)
        with _driving(fleet, ng) as control, ng.steady(20, _GENERATE) as load:
            members[0].behave(health=503)
            eventually(lambda: _fails_checks(control.log, members[0]))
            eventually(lambda: control.proxies["ng"]["reloads"] >= 2 and control.proxies["ng"]["state"] == "SYNCED")
            count = at_rest(lambda: members[0].requests)
            time.sleep(1)
            assert members[0].requests == count
            members[0].behave(health=200)
            eventually(lambda: members[0].requests > count)
            before = len(control.log)
            for member in members:
                member.behave(health=503)
            eventually(lambda: all(_fails_checks(control.log[before:], member) for member in members))
            eventually(lambda: control.proxies["ng"]["state"] == "SYNCED")
            time.sleep(1)
            counts = [member.requests for member in members]
            eventually(lambda: all(member.requests > n for member, n in zip(members, counts, strict=True)))
        load.load.assert_no_failure()


def test_ended_nginx_is_failing_until_it_runs_again() -> None:
    with engines("a", "b") as members, edges.nginx() as ng, ExitStack() as stack:
        stack.enter_context(short_pauses(_SHORT_CHECKS))
        fleet = _fleet(members, ng)
        process = stack.enter_context(edges.started_edge(ng, fleet))
        control = stack.enter_context(controlling(fleet))
        eventually(lambda: control.proxies["ng"]["state"] == "SYNCED")
        time.sleep(1.5)  # a check has seen it
        process.stop()
        eventually(lambda: control.proxies["ng"]["state"] == "FAILING")
        assert "no running nginx uses" in control.proxies["ng"]["reason"]
        process.ports = [ng.port]
        process.start()
        eventually(lambda: control.proxies["ng"]["state"] == "SYNCED")


def test_nginx_that_starts_during_a_reload_becomes_synced() -> None:
    with engines("a") as members, edges.nginx() as ng, ExitStack() as stack:
        stack.enter_context(short_pauses(_SHORT_CHECKS))
        called, started = ng.directory / "called", ng.directory / "started"
        wait = f"touch {called}; while [ ! -e {started} ]; do sleep 0.1; done"
        ng.entry["reload"]["command"] = ["/bin/sh", "-c", wait]
        fleet = _fleet(members, ng)
        process = stack.enter_context(edges.started_edge(ng, fleet))
        process.stop()
        control = stack.enter_context(controlling(fleet))
        eventually(called.exists)
        process.ports = [ng.port]
        process.start()
        started.touch()
        eventually(lambda: "it is unknown whether the configuration was loaded" in control.log)
        eventually(lambda: control.proxies["ng"]["state"] == "SYNCED")


def test_proxy_without_reload_command_is_not_driven() -> None:
    with engines("a") as members, edges.nginx() as ng:
        ng.entry.pop("reload")
        config = ng.config
        with edges.started_edge(ng, {}), controlling(_fleet(members, ng)) as control:
            eventually(lambda: "ng" in control.proxies)
            row = control.proxies["ng"]
            assert (row["state"], "no config with reload" in row["reason"]) == ("NOT DRIVEN", True)
            assert "upstream" not in config.read_text()


def test_dry_run_decides_and_changes_no_proxy() -> None:
    with engines("a", "b", "c") as members, edges.haproxy() as ha:
        fleet = _fleet(members, ha)
        with edges.started_edge(ha, fleet), controlling(fleet, options=["--dry-run"]) as control:
            with ha.steady(40, _GENERATE):
                members[0].speed = 0.4
                eventually(lambda: "info weights" in control.log)
                eventually(lambda: "would be published" in control.log)
                assert control.proxies["ha"]["state"] == "NOT DRIVEN"
                weight = background.wait(Runtime(str(ha.entry["runtime_api"])).query("get weight pool_pool/a"))
                assert weight.texts[0].startswith("100 (")
            assert not (control.state / "lbctl.db").exists()


def test_restart_keeps_weights_and_health() -> None:
    with engines("a", "b", "c", "d") as members:
        fleet = _fleet(members, health={"deep": {"stalled_after": "1s"}, "passive": {"ejection_time": "60s"}})
        with (
            controlling(fleet) as control,
            control.envoy("edge", ["edge"]) as envoy,
            envoy.client().steady(40, _GENERATE),
        ):
            members[0].speed = 0.4
            eventually(lambda: _weights(control)["a"] < 0.5)
            members[1].wedged = True
            eventually(lambda: "a replica is out" in control.log)
            eventually(lambda: _eds_health(envoy, members[1]) == "UNHEALTHY")
            control.stop()
            before = envoy.weights("pool")
            for engine in members:
                engine.silent = True
            control.start()
            assert _weights(control)["a"] < 0.5
            assert envoy.weights("pool") == before
            eventually(lambda: control.proxies.get("edge", {}).get("state") == "SYNCED")
            assert _eds_health(envoy, members[1]) == "UNHEALTHY"
            members[1].wedged = False


def _fails_checks(log: str, engine: Engine) -> bool:
    return any("fails its active checks" in line and f"replica={engine.name} " in line for line in log.splitlines())


def _eds_health(envoy: XdsEnvoy, engine: Engine) -> str:
    return str(envoy.hosts("pool")[engine.address]["health_status"].get("eds_health_status", "HEALTHY"))


def _wait_for_update(control: ControlPlane, *names: str) -> None:
    """Wait until these proxies have a version that is served from now on, while weights continue to change."""
    later: set[str] = set()

    def all_have() -> bool:
        later.add(control.status["snapshot"]["version"])
        rows = control.proxies
        return all(rows[name]["last_good"] in later for name in names)

    eventually(all_have)


def _three_ports() -> int:
    """Return the first of three ports in a row, which are reserved until all tests have ended."""
    while True:
        first = free_port()
        try:
            hold(first + 1, first + 2)
        except OSError:  # another process has one of them
            continue
        return first


def _weights(control: ControlPlane) -> dict[str, float]:
    replicas = control.get("pools")["pools"][0]["replicas"]
    return {item["name"]: item["weight"] for item in replicas}
