"""Load reports of Envoy in the ledger: replicas of endpoints, ended requests, and ignored reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lbctl.ir.snapshot import Snapshot
from lbctl.serve.traffic.ledger import Counts, ReplicaKey, TrafficLedger
from lbctl.serve.traffic.load_reports import LoadReports
from lbctl.xds.protocol.load_reports import ClusterLoad, EndpointLoad
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica

A, B, NAMED = ReplicaKey("llama", "a"), ReplicaKey("llama", "b"), ReplicaKey("llama", "c")
SOCKET, V6 = ReplicaKey("other", "s"), ReplicaKey("other", "v6")
AT_A, AT_B = ("10.0.0.1", 8000), ("10.0.0.2", 8000)
HOST = "gpu3.example.com"


def _published(first: str = "a", *resolved_to: str) -> Any:
    """Return a published fleet with the pools llama and other; `first` is the name of the first replica of llama."""
    pools = {
        "llama": pool(replica(first, "10.0.0.1:8000"), replica("b", "10.0.0.2:8000"), replica("c", f"{HOST}:8000")),
        "other": pool(replica("s", "unix:/run/engine.sock"), replica("v6", "[2001:DB8:0:0::1]:8000")),
    }
    text = fleet_text(pools=pools)
    resolved = {HOST: resolved_to or ("10.0.0.3", "10.0.0.4")}
    return SimpleNamespace(composed=SimpleNamespace(whole=Snapshot(compiled(text).topology, addresses=resolved)))


class Reporting:
    """Envoys that report one after another, at time 0."""

    def __init__(self) -> None:
        self.ledger = TrafficLedger()
        self.reports = LoadReports(self.ledger, lambda: 0.0)
        self.reports.use_fleet(_published())

    def report(self, stream: str, node: str = "edge-1", **clusters: list[EndpointLoad]) -> None:
        self.reports.reported(stream, node, (ClusterLoad(name, iter(loads)) for name, loads in clusters.items()))

    def counted(self, node: str = "edge-1") -> dict[ReplicaKey, Counts]:
        return {key: counts for (name, key), counts in self.ledger.totals().items() if name == node}

    def in_flight(self, *keys: ReplicaKey) -> list[int | None]:
        return [self.ledger.in_flight(key, 0.0) for key in keys]


def test_requests_are_counted_when_they_end() -> None:
    envoys = Reporting()
    envoys.report("s", llama=[EndpointLoad(AT_A, 10, 1, 4, 9), EndpointLoad(AT_B, 2, 0, 0, 2)])
    assert envoys.counted() == {A: Counts(6, 1), B: Counts(2)}
    envoys.report("s", llama=[EndpointLoad(AT_A, 3, 0, 5, 3)])
    assert envoys.counted() == {A: Counts(8, 1), B: Counts(2)}
    assert envoys.in_flight(A, B) == [5, 0]
    envoys.report("s", llama=[])
    assert envoys.counted() == {A: Counts(13, 1), B: Counts(2)}
    assert envoys.in_flight(A, B) == [0, 0]


def test_answer_counts_when_it_begins() -> None:
    envoys = Reporting()
    envoys.report("s", llama=[EndpointLoad(AT_A, 1, 0, 1, 1), EndpointLoad(AT_B, 1, 0, 0, 0)])
    assert [envoys.ledger.answered_at(key) for key in (A, B)] == [0.0, None], "the client of b has left"
    assert envoys.counted() == {B: Counts(1)}


def test_request_without_a_connection_counts_as_failed() -> None:
    envoys = Reporting()
    envoys.report("s", llama=[EndpointLoad(AT_A, 0, 7, 0, 0)])
    assert envoys.counted() == {A: Counts(7, 7)}


def test_all_clusters_and_addresses_count_for_their_replica() -> None:
    envoys = Reporting()
    envoys.report(
        "s",
        **{
            "llama": [EndpointLoad(AT_A, 1, 0, 1, 1), EndpointLoad(("10.0.0.3", 8000), 1, 0, 0, 1)],
            "llama|eu-west": [EndpointLoad(AT_A, 2, 0, 1, 2), EndpointLoad(("10.0.0.4", 8000), 4, 0, 0, 4)],
            "other": [
                EndpointLoad(("/run/engine.sock", 0), 1, 0, 0, 1),
                EndpointLoad(("2001:db8::1", 8000), 1, 0, 0, 1),
            ],
        },
    )
    assert envoys.counted() == {A: Counts(1), NAMED: Counts(5), SOCKET: Counts(1), V6: Counts(1)}
    assert envoys.in_flight(A) == [2]


def test_unknown_clusters_and_addresses_are_ignored() -> None:
    envoys = Reporting()
    strange = {f"cluster-{number}": [EndpointLoad(AT_A, 1, 1, 1, 0)] for number in range(1000)}
    envoys.report(
        "s", **strange, **{"": [EndpointLoad(AT_A, 1, 1, 1, 0)]}, llama=[EndpointLoad(("10.9.9.9", 1), 5, 5, 5, 0)]
    )
    assert envoys.counted() == {}
    assert envoys.in_flight(A, SOCKET) == [0, None]
    assert envoys.ledger.reporting(0.0) == {"edge-1"}
    assert set(envoys.reports._places._places) <= {"llama", "other"}


def test_changed_fleet_applies_at_once() -> None:
    envoys = Reporting()
    envoys.report("s", llama=[EndpointLoad(("10.0.0.3", 8000), 1, 0, 0, 1)])
    envoys.reports.use_fleet(_published("first", "10.0.0.9"))
    envoys.report("s", llama=[EndpointLoad(AT_A, 1, 0, 0, 1), EndpointLoad(("10.0.0.3", 8000), 1, 0, 0, 1)])
    assert envoys.counted() == {NAMED: Counts(1), ReplicaKey("llama", "first"): Counts(1)}


def test_envoys_with_the_same_node_id_are_summed() -> None:
    envoys = Reporting()
    envoys.report("one", llama=[EndpointLoad(AT_A, 5, 0, 3, 5)])
    envoys.report("two", llama=[EndpointLoad(AT_A, 5, 0, 1, 5)])
    assert envoys.in_flight(A) == [4]
    envoys.reports.ended("two", "edge-1")
    assert envoys.in_flight(A) == [3]
    envoys.reports.ended("one", "edge-1")
    envoys.reports.ended("one", "edge-1")
    assert envoys.in_flight(A) == [None]
    assert envoys.counted() == {A: Counts(6)}


def test_restarted_envoy_counts_from_zero() -> None:
    envoys = Reporting()
    envoys.report("one", llama=[EndpointLoad(AT_A, 5, 0, 5, 5)])
    envoys.reports.ended("one", "edge-1")
    envoys.report("two", llama=[EndpointLoad(AT_A, 2, 0, 4, 2)])
    assert envoys.counted() == {}
    envoys.report("two", llama=[EndpointLoad(AT_A, 2, 0, 1, 2)])
    assert envoys.counted() == {A: Counts(5)}
