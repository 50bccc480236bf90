"""Metrics of replicas and proxies: names, labels, and counters that never go back."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest

from lbctl.api import schema
from lbctl.ir.proxies import Proxy
from lbctl.serve.api.traffic_gauges import TrafficGauges
from lbctl.serve.traffic.ledger import Counts, ReplicaKey
from lbctl.serve.traffic.service import Traffic
from tests.support import api

A = ReplicaKey("llama", "a")
HA, EDGE, NEW = (Proxy(name, kind, ()) for name, kind in (("ha", "haproxy"), ("edge", "envoy"), ("new", "envoy")))
ROW = replace(api.REPLICA, declared=0.5, share=0.25, acknowledged=None, observed=0.2, state="slow")
NODES = (api.DRIVEN, api.ENVOY, replace(api.ENVOY, node="edge-2"), replace(api.ENVOY, node="x", kind="reader"))


class Page:
    """Metrics of a fleet with one replica, one HAProxy, a proxy entry with two Envoys and one without Envoys."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.traffic.proxies = {item.name: item for item in (HA, EDGE, NEW)}
        self.proxies: tuple[schema.Proxy, ...] = NODES
        self._registry = CollectorRegistry()
        self.problems: tuple[schema.Problem, ...] = ()
        pools = schema.Pools((api.pool("llama", ROW),))
        gauges = TrafficGauges(self.traffic, lambda: pools, lambda: schema.Proxies(self.proxies), lambda: self.problems)
        self._registry.register(gauges)

    def series(self, name: str) -> set[str]:
        """Return the samples of this metric without its name."""
        lines = generate_latest(self._registry).decode().splitlines()
        return {line.removeprefix(name) for line in lines if line.startswith((f"{name}{{", f"{name} "))}


def test_replica_has_one_state_and_its_known_shares() -> None:
    page = Page()
    assert page.series("lbctl_replica_state") == {'{pool="llama",replica="a",state="slow"} 1.0'}
    assert page.series("lbctl_replica_share") == {
        f'{{pool="llama",replica="a",stage="{stage}"}} {value}'
        for stage, value in (("declared", 0.5), ("decided", 0.25), ("observed", 0.2))
    }


def test_problems_are_counted_by_kind() -> None:
    page = Page()
    assert page.series("lbctl_problems") == set()
    down = [schema.Problem("warning", "replica_down", f"llama/{name}", "it is down", "lbctl status") for name in "ab"]
    page.problems = (schema.Problem("critical", "files", "", "they have errors", "lbctl validate"), *down)
    assert page.series("lbctl_problems") == {
        '{kind="files",severity="critical"} 1.0', '{kind="replica_down",severity="warning"} 2.0',
    }  # fmt: skip


def test_nodes_are_counted_by_proxy_and_state() -> None:
    assert Page().series("lbctl_proxy_state") == {
        '{kind="haproxy",proxy="ha",state="SYNCED"} 1.0',
        '{kind="envoy",proxy="edge",state="SYNCED"} 2.0',
        '{kind="envoy",proxy="new",state="GONE"} 1.0',
    }


def test_counters_of_envoy_nodes_stay_when_a_node_leaves() -> None:
    page = Page()
    ledger = page.traffic.ledger
    ledger.add("ha", {A: Counts(5, 1)}, 0.0)
    for node in ("edge-1", "edge-2"):
        ledger.add(node, {A: Counts(10)}, 0.0)
    ledger.add("stranger", {A: Counts(100)}, 0.0)
    ledger.add("ha", {ReplicaKey("llama", "gone"): Counts(7)}, 0.0)
    requests = {'{pool="llama",proxy="edge",replica="a"} 20.0', '{pool="llama",proxy="ha",replica="a"} 5.0'}
    assert page.series("lbctl_replica_requests_total") == requests
    ledger.keep(["ha", "edge-1"])
    page.proxies = NODES[:2]
    assert page.series("lbctl_replica_requests_total") == requests
    ledger.add("edge-1", {A: Counts(1)}, 1.0)
    assert '{pool="llama",proxy="edge",replica="a"} 21.0' in page.series("lbctl_replica_requests_total")
    assert page.series("lbctl_replica_errors_total") == {
        '{pool="llama",proxy="edge",replica="a"} 0.0', '{pool="llama",proxy="ha",replica="a"} 1.0',
    }  # fmt: skip


def test_dropped_log_lines_are_counted_by_reason() -> None:
    page = Page()
    page.traffic.log.count(b"nonsense")
    assert page.series("lbctl_traffic_log_dropped_total") == {
        '{reason="malformed"} 1.0', '{reason="proxy"} 0.0', '{reason="replica"} 0.0',
    }  # fmt: skip
