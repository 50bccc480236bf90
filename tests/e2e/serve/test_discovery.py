"""The control plane resolves names, and the proxies do not: pools behind DNS names, and host names of fixed
replicas."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.dns import DnsServer, serving_dns
from tests.support.processes.fleet import fleet_of
from tests.support.processes.lbctl_process import short_pauses
from tests.support.processes.replicas import replicas, replicas_on_one_port
from tests.support.processes.waiting import eventually

_NAME = "embedder.ml.internal"


def _fleet(port: int, dns: DnsServer, **keys: Any) -> Fleet:
    name = {"name": _NAME, "port": port, "refresh": "200ms", "resolvers": [dns.address]}
    return fleet_of({"discovery": {"dns": name}, "balance": {"algorithm": "round_robin"}, **keys}, **driven("edge"))


def _hosts(envoy: XdsEnvoy) -> set[str]:
    return {where.partition(":")[0] for where in envoy.hosts("pool")}


def _named(control: ControlPlane) -> dict[str, Any]:
    name: dict[str, Any] = control.status["names"][0]
    return name


def test_proxies_follow_dns_addresses_without_resolving() -> None:
    with (
        replicas_on_one_port("a", "b", "c") as (a, b, c),
        serving_dns(**{_NAME: [a.host, b.host]}) as dns,
        controlling(_fleet(a.port, dns)) as control,
        control.envoy("edge", ["edge"]) as edge,
    ):
        with edge.client().steady(100) as load:
            eventually(lambda: {a.host, b.host} == _hosts(edge))
            dns.names[_NAME] = [b.host, c.host]
            eventually(lambda: {b.host, c.host} == _hosts(edge))
            eventually(lambda: set(load.since(time.monotonic()).by_replica) == {"b", "c"})
            moved = time.monotonic()
            time.sleep(1)
        load.load.assert_no_failure()
        assert set(load.since(moved).by_replica) == {"b", "c"}
        assert edge.resources()["cds"]["pool"]["type"] == "EDS"


def test_dns_failures_keep_the_replicas_and_are_reported() -> None:
    with (
        replicas("a") as (a,),
        serving_dns(**{_NAME: [a.host]}) as dns,
        controlling(_fleet(a.port, dns)) as control,
        control.envoy("edge", ["edge"]) as edge,
    ):
        eventually(lambda: edge.client().get().ok)
        with edge.client().steady(50) as load:
            del dns.names[_NAME]
            eventually(lambda: "the name does not exist" in str(_named(control)))
            dns.names[_NAME] = []
            eventually(lambda: "no address" in str(_named(control)))
            dns.names[_NAME] = ["169.254.169.254"]
            eventually(lambda: "169.254.169.254" in str(_named(control)))
        load.load.assert_no_failure()
        assert _hosts(edge) == {a.host}


def test_start_without_dns_serves_the_saved_addresses() -> None:
    with (
        replicas("a") as (a,),
        serving_dns(**{_NAME: [a.host]}) as dns,
        controlling(_fleet(a.port, dns)) as control,
        control.envoy("edge", ["edge"]) as edge,
    ):
        eventually(lambda: edge.client().get().ok)
        with edge.client().steady(50) as load:
            control.kill()
            dns.silent = True
            control.start()
            eventually(lambda: "edge" in control.proxies and control.proxies["edge"]["state"] == "SYNCED")
        load.load.assert_no_failure()
        assert _hosts(edge) == {a.host}


@pytest.mark.slow
def test_unknown_name_delays_readiness_and_then_answers_503() -> None:
    with (
        replicas("a") as (a,),
        serving_dns() as dns,
        short_pauses({"lbctl.serve.fleet.live._EMPTY_START": 15.0}),
        controlling(_fleet(a.port, dns), start=False) as control,
    ):
        control.start(ready=False)
        eventually(lambda: "the API listens" in control.log)
        assert not control.ready()
        control.await_ready(120)
        with control.envoy("edge", ["edge"]) as edge:
            answer = edge.client().get()
            assert (answer.status, answer.json["error"]["type"]) == (503, "unavailable")
            dns.names[_NAME] = [a.host]
            eventually(lambda: edge.client().get().ok)


def test_loss_of_most_addresses_needs_a_confirmation() -> None:
    with (
        replicas_on_one_port("a", "b", "c") as (a, b, c),
        serving_dns(**{_NAME: [a.host, b.host, c.host]}) as dns,
        controlling(_fleet(a.port, dns)) as control,
        control.envoy("edge", ["edge"]) as edge,
    ):
        eventually(lambda: len(_hosts(edge)) == 3)
        dns.names[_NAME] = [a.host]
        eventually(lambda: control.status["fleet"]["shrink"] != [])
        assert len(_hosts(edge)) == 3
        assert control.reload(allow_shrink=True).status_code == 200
        eventually(lambda: _hosts(edge) == {a.host})


def test_fixed_replica_may_have_a_host_name() -> None:
    with replicas("a", "b") as (a, b):
        pool = {
            "replicas": [{"name": "a", "address": f"localhost:{a.port}"}, {"name": "b", "address": b.address}],
            "balance": {"algorithm": "round_robin"},
        }
        with (
            controlling(fleet_of(pool, **driven("edge"))) as control,
            control.envoy("edge", ["edge"]) as edge,
        ):
            assert edge.client().load(20).by_replica == {"a": 10, "b": 10}
