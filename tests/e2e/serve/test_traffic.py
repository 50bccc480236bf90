"""HAProxy and nginx report the traffic that the replicas count themselves."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.edges import Edge
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, short_pauses
from tests.support.processes.polling import POLLED_EACH_SECOND
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_HEALTH = {
    "active": {"http": {"path": "/health"}, "interval": "1s", "unhealthy_threshold": 5},
    "passive": {"consecutive_5xx": 1000, "error_rate": {"min_requests": 100000}},
}


def _fleet(members: list[Replica], *sites: Edge, weights: tuple[float, ...] = ()) -> Fleet:
    keys = {"balance": {"algorithm": "round_robin"}, "health": _HEALTH, **POLLED_EACH_SECOND}
    fleet = fleet_of(pool_of(members, weights, **keys), control={"logs": {"bind": f"{HOST}:{free_port()}"}})
    del fleet["listeners"]["gateway"]
    return edges.add(fleet, *sites)


@contextmanager
def _driving(fleet: Fleet, *sites: Edge) -> Iterator[ControlPlane]:
    with ExitStack() as stack:
        stack.enter_context(short_pauses(HAPROXY_RELOADS))
        for site in sites:
            stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet))
        _synced(control, *sites)
        yield control


def _synced(control: ControlPlane, *sites: Edge) -> None:
    eventually(lambda: all(control.proxies[site.name]["state"] == "SYNCED" for site in sites))


def _pool(control: ControlPlane) -> dict[str, Any]:
    pool: dict[str, Any] = control.get("pools")["pools"][0]
    return pool


def _rows(control: ControlPlane) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in _pool(control)["replicas"]}


def _counted(control: ControlPlane, what: str = "requests") -> dict[tuple[str, str], float]:
    """Return (replica, proxy) → total of the metric."""
    totals: dict[tuple[str, str], float] = {}
    for series, value in control.metrics().items():
        name, _, labels = series.partition("{")
        if name == f"lbctl_replica_{what}_total":
            each = dict(item.split("=", 1) for item in labels.rstrip("}").split(","))
            totals[each["replica"].strip('"'), each["proxy"].strip('"')] = value
    return totals


def test_observed_share_equals_the_counts_of_the_replicas() -> None:
    with (
        replicas("a", "b", "c") as members,
        edges.haproxy() as ha,
        edges.nginx() as ng,
        _driving(_fleet(members, ha, ng, weights=(4, 2, 1)), ha, ng) as control,
    ):
        ng.load(1).assert_no_failure()
        eventually(lambda: _pool(control)["silent"] == [])
        for site in (ha, ng):
            site.load(350, 4).assert_no_failure()
        counted = {item.name: item.requests for item in members}
        total = sum(counted.values())
        eventually(lambda: sum(_counted(control).values()) == total)
        requests = _counted(control)
        assert {name: requests[name, "ha"] + requests[name, "ng"] for name in counted} == counted
        assert [sum(requests[name, site] for name in counted) for site in ("ha", "ng")] == [350, 351]
        shares = pytest.approx({name: count / total for name, count in counted.items()}, abs=1e-6)
        eventually(lambda: {name: row["observed"] for name, row in _rows(control).items()} == shares)
        for row in _rows(control).values():
            assert row["observed"] == pytest.approx(row["declared"], abs=0.02)
            assert row["declared"] == row["share"] == row["acknowledged"]
            assert row["requests_per_second"] > 0
            assert row["state"] == "in"
        assert sorted(_pool(control)["reporting"]) == ["ha", "ng"]


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_time_to_the_first_byte_comes_from_the_replica(kind: Literal["haproxy", "nginx"]) -> None:
    with (
        replicas("a", "b") as (a, b),
        edges.haproxy() if kind == "haproxy" else edges.nginx() as site,
        _driving(_fleet([a, b], site), site) as control,
    ):
        a.behave(delay=1.5)
        site.load(100, 50).assert_no_failure()
        eventually(lambda: all(row["first_byte_p99"] is not None for row in _rows(control).values()))
        slow, fast = (_rows(control)[name] for name in ("a", "b"))
        assert slow["first_byte_p99"] >= slow["first_byte_p50"] > 1.4 > fast["first_byte_p50"]
        assert _pool(control)["first_byte_p99"] > 1.4


def test_only_5xx_answers_of_the_replica_count_as_errors() -> None:
    with (
        replicas("a", "b") as members,
        edges.haproxy() as ha,
        edges.nginx() as ng,
        _driving(_fleet(members, ha, ng), ha, ng) as control,
    ):
        ng.load(1)
        eventually(lambda: _pool(control)["silent"] == [])
        a, b = members
        a.behave(status=500)
        b.behave(status=429)
        for site in (ha, ng):
            site.load(40, 2)
        eventually(lambda: sum(_counted(control).values()) == a.requests + b.requests)
        errors = _counted(control, "errors")
        assert {key: value for key, value in errors.items() if value} == {("a", "ha"): 20.0, ("a", "ng"): 20.0}


def test_killed_replica_is_down_with_the_reporting_proxies(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        replicas("a", "b") as members,
        edges.haproxy() as ha,
        edges.nginx() as ng,
        _driving(_fleet(members, ha, ng), ha, ng) as control,
    ):
        members[1].refuse()
        eventually(lambda: "of ha (1 of 2 proxies) fails: L4CON" in _rows(control)["b"]["state_reason"])
        eventually(lambda: _rows(control)["b"]["state_reason"].startswith("lbctl's active check for ng fails: "))
        _synced(control, ha, ng)
        eventually(lambda: _rows(control)["b"]["acknowledged"] == 0.0)
        row = _rows(control)["b"]
        assert row["state"] == "down"
        assert (row["declared"], row["share"], row["acknowledged"]) == (0.5, 0.0, 0.0)
        assert row["reasons"] == [row["state_reason"]]
        metrics = control.metrics()
        assert metrics['lbctl_replica_state{pool="pool",replica="b",state="down"}'] == 1
        assert metrics['lbctl_replica_share{pool="pool",replica="b",stage="decided"}'] == 0.0
        assert metrics['lbctl_proxy_state{kind="nginx",proxy="ng",state="SYNCED"}'] == 1
        assert run(["explain", "weight", "pool/b", "--server", control.url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("b gets 0 % of the pool's requests instead of 50 %: lbctl's active check for ng ")
        assert lines[-1].split()[:3] == ["observed", "no", "requests,"]
        members[1].accept()
        eventually(lambda: _rows(control)["b"]["state"] == "ramping")
        row = _rows(control)["b"]
        assert row["state_reason"].startswith("slow start: ng gives it ")
        assert 0.25 < row["share"] < 0.5


def test_counters_continue_after_reloads() -> None:
    with replicas("a", "b") as members, edges.haproxy() as ha, edges.nginx() as ng:
        fleet = _fleet(members, ha, ng)
        with _driving(fleet, ha, ng) as control:
            ng.load(1)
            eventually(lambda: _pool(control)["silent"] == [])
            for listener in ("ha", "ng"):  # changes that need a reload
                fleet["listeners"][listener]["max_body"] = "2MiB"
            for site in (ha, ng):
                site.load(50, 2).assert_no_failure()
            eventually(lambda: sum(_counted(control).values()) == 101)
            reloads = {name: control.proxies[name]["reloads"] for name in ("ha", "ng")}
            control.write(fleet)
            eventually(lambda: all(control.proxies[name]["reloads"] > reloads[name] for name in reloads))
            _synced(control, ha, ng)
            for site in (ha, ng):
                site.load(50, 2).assert_no_failure()
            eventually(lambda: sum(_counted(control).values()) == 201)


def test_in_flight_comes_from_haproxy_and_is_unknown_for_nginx() -> None:
    with replicas("a") as members, edges.haproxy() as ha, edges.nginx() as ng:
        members[0].behave(delay=3.0)
        with _driving(_fleet(members, ha), ha) as control, ha.steady(2, Request(timeout=20.0)):
            eventually(lambda: (_rows(control)["a"]["in_flight"] or 0) > 2)
        with _driving(_fleet(members, ng), ng) as control, ng.steady(2, Request(timeout=20.0)):
            time.sleep(2)
            assert _rows(control)["a"]["in_flight"] is None


def test_forged_log_lines_are_dropped_and_counted() -> None:
    with replicas("a") as members, edges.nginx() as ng:
        fleet = _fleet(members, ng)
        with _driving(fleet, ng) as control:
            ng.load(10, 1).assert_no_failure()
            eventually(lambda: _counted(control) == {("a", "ng"): 10.0})
            host, _, port = fleet["control"]["logs"]["bind"].partition(":")
            head = "<190>Nov 23 09:30:00 lbctl: "
            forged = [
                f'{head}other|"pool"|200|{members[0].address}|200',
                f'{head}ng|"other"|200|{members[0].address}|200',
                f'{head}ng|"pool"|200|10.0.0.1:80|200',
                f'{head}ng|"pool"|200|{members[0].address}',
                "x" * 60_000,
                "",
            ]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:

                def are_dropped() -> bool:
                    for text in forged:  # few at a time: the system drops datagrams if the socket's buffer is full
                        sender.sendto(text.encode(), (host, int(port)))
                    return control.metric("lbctl_traffic_log_dropped_total") > 200

                eventually(are_dropped)
            assert _counted(control) == {("a", "ng"): 10.0}
            dropped = control.metrics()
            for reason in ("malformed", "proxy", "replica"):
                assert dropped[f'lbctl_traffic_log_dropped_total{{reason="{reason}"}}'] > 0


def test_listener_without_access_log_still_reports_traffic() -> None:
    with replicas("a") as members, edges.nginx() as ng:
        fleet = _fleet(members, ng)
        fleet["listeners"]["ng"]["access_log"] = {"format": "none"}
        with _driving(fleet, ng) as control:
            ng.load(10, 1).assert_no_failure()
            eventually(lambda: _counted(control) == {("a", "ng"): 10.0})
