"""Envoys' load reports in the ledger: which replica an endpoint is, what has ended, and what is ignored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lbctl.ir.snapshot import Snapshot
from lbctl.serve.traffic.ledger import Counts, ReplicaKey, TrafficLedger
from lbctl.serve.traffic.load_reports import LoadReports
from lbctl.xds.protocol.load_reports import ClusterLoad, EndpointLoad
from tests.support.fleet import compiled

A, B, NAMED = ReplicaKey("llama", "a"), ReplicaKey("llama", "b"), ReplicaKey("llama", "c")
SOCKET, V6 = ReplicaKey("other", "s"), ReplicaKey("other", "v6")
AT_A, AT_B = ("10.0.0.1", 8000), ("10.0.0.2", 8000)
FLEET = """\
version: 1
listeners: {main: {bind: "127.0.0.1:80"}}
routes: {all: {match: {path_prefix: /}, pool: llama}}
pools:
  llama:
    replicas:
      - {name: a, address: "10.0.0.1:8000"}
      - {name: b, address: "10.0.0.2:8000"}
      - {name: c, address: "gpu3.example.com:8000"}
  other:
    replicas:
      - {name: s, address: "unix:/run/engine.sock"}
      - {name: v6, address: "[2001:DB8:0:0::1]:8000"}
"""


def _fleet(text: str = FLEET, **addresses: tuple[str, ...]) -> Any:
    resolved = addresses or {"gpu3.example.com": ("10.0.0.3", "10.0.0.4")}
    return SimpleNamespace(composed=SimpleNamespace(whole=Snapshot(compiled(text).topology, addresses=resolved)))


class Reporting:
    """Envoys that report, one after another, at the second 0."""

    def __init__(self) -> None:
        self.ledger = TrafficLedger()
        self.reports = LoadReports(self.ledger, lambda: 0.0)
        self.reports.follow(_fleet())

    def report(self, stream: str, node: str = "edge-1", **clusters: list[EndpointLoad]) -> None:
        self.reports.reported(stream, node, (ClusterLoad(name, iter(loads)) for name, loads in clusters.items()))

    def counted(self, node: str = "edge-1") -> dict[ReplicaKey, Counts]:
        return {key: counts for (name, key), counts in self.ledger.totals().items() if name == node}

    def in_flight(self, *keys: ReplicaKey) -> list[int | None]:
        return [self.ledger.in_flight(key, 0.0) for key in keys]


def test_requests_are_counted_when_they_end_and_reports_add_up() -> None:
    it = Reporting()
    it.report("s", llama=[EndpointLoad(AT_A, 10, 1, 4), EndpointLoad(AT_B, 2, 0, 0)])
    assert it.counted() == {A: Counts(6, 1), B: Counts(2)}
    it.report("s", llama=[EndpointLoad(AT_A, 3, 0, 5)])
    assert it.counted() == {A: Counts(8, 1), B: Counts(2)}
    assert it.in_flight(A, B) == [5, 0]
    it.report("s", llama=[])
    assert it.counted() == {A: Counts(13, 1), B: Counts(2)}
    assert it.in_flight(A, B) == [0, 0]


def test_a_request_that_found_no_connection_is_a_request_that_failed() -> None:
    it = Reporting()
    it.report("s", llama=[EndpointLoad(AT_A, 0, 7, 0)])
    assert it.counted() == {A: Counts(7, 7)}


def test_every_cluster_of_a_pool_and_every_address_of_a_name_count_for_the_replica() -> None:
    it = Reporting()
    it.report(
        "s",
        **{
            "llama": [EndpointLoad(AT_A, 1, 0, 1), EndpointLoad(("10.0.0.3", 8000), 1, 0, 0)],
            "llama|eu-west": [EndpointLoad(AT_A, 2, 0, 1), EndpointLoad(("10.0.0.4", 8000), 4, 0, 0)],
            "other": [EndpointLoad(("/run/engine.sock", 0), 1, 0, 0), EndpointLoad(("2001:db8::1", 8000), 1, 0, 0)],
        },
    )
    assert it.counted() == {A: Counts(1), NAMED: Counts(5), SOCKET: Counts(1), V6: Counts(1)}
    assert it.in_flight(A) == [2]


def test_clusters_and_addresses_that_the_fleet_does_not_have_are_ignored() -> None:
    it = Reporting()
    strange = {f"cluster-{number}": [EndpointLoad(AT_A, 1, 1, 1)] for number in range(1000)}
    it.report("s", **strange, **{"": [EndpointLoad(AT_A, 1, 1, 1)]}, llama=[EndpointLoad(("10.9.9.9", 1), 5, 5, 5)])
    assert it.counted() == {}
    assert it.in_flight(A, SOCKET) == [0, None]
    assert it.ledger.reporting(0.0) == {"edge-1"}
    assert set(it.reports._places._places) <= {"llama", "other"}


def test_another_fleet_has_other_replicas_at_once() -> None:
    it = Reporting()
    it.report("s", llama=[EndpointLoad(("10.0.0.3", 8000), 1, 0, 0)])
    it.reports.follow(_fleet(FLEET.replace("name: a", "name: first"), **{"gpu3.example.com": ("10.0.0.9",)}))
    it.report("s", llama=[EndpointLoad(AT_A, 1, 0, 0), EndpointLoad(("10.0.0.3", 8000), 1, 0, 0)])
    assert it.counted() == {NAMED: Counts(1), ReplicaKey("llama", "first"): Counts(1)}


def test_two_envoys_with_one_node_id_are_summed_and_one_that_leaves_is_subtracted() -> None:
    it = Reporting()
    it.report("one", llama=[EndpointLoad(AT_A, 5, 0, 3)])
    it.report("two", llama=[EndpointLoad(AT_A, 5, 0, 1)])
    assert it.in_flight(A) == [4]
    it.reports.ended("two", "edge-1")
    assert it.in_flight(A) == [3]
    it.reports.ended("one", "edge-1")
    it.reports.ended("one", "edge-1")
    assert it.in_flight(A) == [None]
    assert it.counted() == {A: Counts(6)}


def test_an_envoy_that_restarts_counts_from_zero_and_nothing_is_negative() -> None:
    it = Reporting()
    it.report("one", llama=[EndpointLoad(AT_A, 5, 0, 5)])
    it.reports.ended("one", "edge-1")
    it.report("two", llama=[EndpointLoad(AT_A, 2, 0, 4)])
    assert it.counted() == {}
    it.report("two", llama=[EndpointLoad(AT_A, 2, 0, 1)])
    assert it.counted() == {A: Counts(5)}
