"""Load reports of real Envoys: the reported shares are the shares that the replicas count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import grpc
import pytest
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest

from tests.support.fleets import Fleet
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import bootstrap_of_command
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_REPORTS_SENT = "load_reporter.responses"
"""Envoy's counter of the reports that it has sent: they are its responses to the requests of the control plane."""
_INTERVAL = "500ms"
_TIMEOUT = 60.0
_PATH = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"


def _rows(control: ControlPlane, pool: str = "pool") -> dict[str, dict[str, Any]]:
    pools = {item["name"]: item for item in control.get("pools")["pools"]}
    return {item["name"]: item for item in pools[pool]["replicas"]}


def _fleet(members: list[Replica], *nodes: str, **keys: Any) -> Fleet:
    """Return a fleet whose Envoys report each `_INTERVAL`, because the pool `measured` is read that often."""
    pool = pool_of(members, range(1, len(members) + 1), balance={"algorithm": "round_robin"}, **keys)
    source = {"kind": "vllm", "url": "http://{address}/metrics"}
    measured = {"replicas": [{"address": f"{HOST}:9"}], "telemetry": {"interval": _INTERVAL, "sources": [source]}}
    return fleet_of(pool, **driven(*nodes), pools={"measured": measured})


def _await_reports(control: ControlPlane, *envoys: XdsEnvoy) -> None:
    """Wait until these Envoys have reported all their clusters. From then on they report every request."""
    eventually(lambda: _load_streams(control) == len(envoys), _TIMEOUT)
    eventually(lambda: all(row["in_flight"] == 0 for row in _rows(control).values()), _TIMEOUT)
    before = [envoy.stat(_REPORTS_SENT) for envoy in envoys]
    eventually(lambda: all(envoy.stat(_REPORTS_SENT) > sent + 1 for envoy, sent in zip(envoys, before, strict=True)))


def _load_streams(control: ControlPlane) -> float:
    return control.metrics()['lbctl_xds_streams{kind="load"}']


def _counted(members: Iterable[Replica]) -> dict[str, Any]:
    """Return replica → its share of the requests that the replicas counted."""
    total = sum(item.requests for item in members)
    return {item.name: pytest.approx(item.requests / total, abs=1e-4) for item in members}


def _observed(control: ControlPlane) -> dict[str, float | None]:
    return {name: row["observed"] for name, row in _rows(control).items()}


def _send(client: Client, count: int) -> Counter[str]:
    load = client.send_load(count, 4, Request()).result(60)
    load.assert_no_failure()
    return load.by_replica


@pytest.mark.slow
def test_reports_match_replica_counts_after_an_envoy_restarts() -> None:
    with replicas("a", "b", "c") as members, controlling(_fleet(members, "one", "two")) as control:
        with (
            control.envoy("one", ["one"], bootstrap=bootstrap_of_command(control, "one")) as one,
            control.envoy("two", ["two"], by_socket=True, delta=False) as two,
        ):
            assert _observed(control) == {"a": None, "b": None, "c": None}
            _await_reports(control, one, two)
            _send(one.client(), 120)
            _send(two.client(), 60)
            eventually(lambda: _observed(control) == _counted(members), _TIMEOUT)
            stream = one.client().send("GET", "/sse?n=200&gap=0.2")
            eventually(lambda: sum(row["in_flight"] for row in _rows(control).values()) == 1, _TIMEOUT)
            one.stop()
            stream.result(60)
            eventually(lambda: _load_streams(control) == 1, _TIMEOUT)
            one.start()
            one.await_listeners()
            _await_reports(control, one, two)
            _send(one.client(), 60)
            eventually(lambda: all(row["in_flight"] == 0 for row in _rows(control).values()), _TIMEOUT)
            eventually(lambda: all((row["requests_per_second"] or 0) > 0 for row in _rows(control).values()), _TIMEOUT)
            assert all(row["observed"] is not None for row in _rows(control).values())
        eventually(lambda: _load_streams(control) == 0)
        eventually(lambda: all(row["in_flight"] is None for row in _rows(control).values()), _TIMEOUT)


@pytest.mark.slow
def test_time_to_the_first_byte_comes_from_the_replica() -> None:
    with (
        replicas("a", "b") as (a, b),
        controlling(_fleet([a, b], "edge")) as control,
        control.envoy("edge", ["edge"], by_socket=True) as edge,
    ):
        _await_reports(control, edge)
        a.behave(delay=1.5)
        edge.client().load(100, 50).assert_no_failure()
        eventually(lambda: all(row["first_byte_p99"] is not None for row in _rows(control).values()), _TIMEOUT)
        slow, fast = (_rows(control)[name] for name in ("a", "b"))
        assert slow["first_byte_p99"] >= slow["first_byte_p50"] > 1.4 > fast["first_byte_p50"]


@pytest.mark.slow
def test_restarted_control_plane_gets_counts_of_its_downtime() -> None:
    with (
        replicas("a", "b") as members,
        controlling(_fleet(members, "edge")) as control,
        control.envoy("edge", ["edge"], by_socket=True) as edge,
    ):
        _await_reports(control, edge)
        control.kill()
        eventually(lambda: edge.stat("control_plane.connected_state") == 0)
        for member in members:
            member.forget()
        _send(edge.client(), 90)
        control.start()
        eventually(lambda: _observed(control) == _counted(members), _TIMEOUT)


@pytest.mark.slow
def test_reports_over_plain_tcp_are_refused() -> None:
    with (
        replicas("a", "b") as members,
        controlling(_fleet(members, "edge")) as control,
        control.envoy("edge", ["edge"]) as edge,
    ):
        _send(edge.client(), 10)
        eventually(lambda: "a node's load reports are ignored" in control.log)
        time.sleep(3)
        assert {(row["observed"], row["in_flight"]) for row in _rows(control).values()} == {(None, None)}
        pool = next(item for item in control.get("pools")["pools"] if item["name"] == "pool")
        assert "accepted only over the Unix socket" in pool["unable"]["edge"]
        assert control.proxies["edge"]["reports_refused"] == pool["unable"]["edge"]
        assert edge.stat("load_reporter.requests") <= 2


def test_checks_and_ejections_come_from_envoy_admin_interface() -> None:
    checks = {
        "active": {"http": {"path": "/health"}, "interval": "1s", "unhealthy_threshold": 1, "healthy_threshold": 1},
        "passive": {"consecutive_5xx": 3, "ejection_time": "60s", "max_ejection": "100%"},
    }
    with (
        replicas("a", "b", "c") as members,
        controlling(fleet := _fleet(members, "edge", health=checks)) as control,
        control.envoy("edge", ["edge"], by_socket=True) as edge,
    ):
        fleet["proxies"]["edge"]["admin"] = f"127.0.0.1:{edge.admin}"
        control.write(fleet)
        members[0].behave(health=500)
        members[1].behave(status=500)
        with edge.client().steady(20):
            states = {"a": "down", "b": "ejected", "c": "in"}
            eventually(lambda: {name: row["state"] for name, row in _rows(control).items()} == states, _TIMEOUT)
        rows = _rows(control)
        assert "failed_active_health_check" in rows["a"]["state_reason"]
        assert "failed_outlier_check" in rows["b"]["state_reason"]


def _rogue_report(node: str, clusters: int, endpoints: int, address: str) -> bytes:
    message = LoadStatsRequest(node={"id": node})
    for number in range(clusters):
        stats = message.cluster_stats.add(cluster_name=f"cluster-{number}" if number else "pool")
        locality = stats.upstream_locality_stats.add()
        for port in range(endpoints):
            row = locality.upstream_endpoint_stats.add(total_issued_requests=2**60, total_requests_in_progress=2**63)
            row.address.socket_address.address, row.address.socket_address.port_value = address, port
    return bytes(message.SerializeToString())


@pytest.mark.slow
def test_rogue_reports_change_no_counts_and_fill_no_memory() -> None:
    """Clients send garbage, a message that is too large, thousands of clusters, and endpoints outside the fleet."""
    with (
        replicas("a", "b") as members,
        controlling(_fleet(members, "edge")) as control,
        control.envoy("edge", ["edge"], by_socket=True) as edge,
    ):
        _await_reports(control, edge)
        _send(edge.client(), 30)
        eventually(lambda: _observed(control) == _counted(members), _TIMEOUT)
        before = control.memory
        messages = [
            b"\xff" * 1000,
            _rogue_report("edge", 1, 3000, "10.9.9.9"),
            _rogue_report("edge", 5000, 2, members[0].host),
            _rogue_report("nobody", 5000, 2, members[0].host),
            b"\x12\x02\x08\x00" * 2_000_000,
        ]
        with grpc.insecure_channel(control.socket, [("grpc.max_send_message_length", -1)]) as channel:
            for _ in range(3):
                calls = [channel.stream_stream(_PATH)(iter([message] * 3), timeout=30) for message in messages]
                codes = {calls[0].code(), calls[-1].code()}
                assert codes == {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
                time.sleep(0.7)  # the others stay connected
                for call in calls:
                    call.cancel()
        assert control.memory - before < 60
        assert _observed(control) == _counted(members)
        assert {name: row["in_flight"] for name, row in _rows(control).items()} == {"a": 0, "b": 0}
        _send(edge.client(), 30)
        eventually(lambda: _observed(control) == _counted(members), _TIMEOUT)
        assert "Traceback" not in control.log
