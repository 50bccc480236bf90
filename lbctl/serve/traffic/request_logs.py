"""Adds data from Envoys' request logs to the ledger: latencies, and errors that the Envoys generated themselves.

Clusters are mapped to pools using the published fleet.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from lbctl.control.analysis.latency import bucket
from lbctl.ir.rollout_metrics import LatencyKey, judged, measured
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.traffic.envoy_endpoints import FleetPlaces
from lbctl.serve.traffic.ledger import ReplicaKey, TrafficLedger
from lbctl.targets.envoy.cluster_names import pool_name
from lbctl.xds.protocol.request_logs import OwnError, RequestLatency


class RequestLogs:
    """A LatencyReceiver that writes to the ledger under the reporting Envoy's node ID."""

    def __init__(self, ledger: TrafficLedger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._measured: frozenset[LatencyKey] = frozenset()
        self._judged: frozenset[str] = frozenset()
        self._pools: frozenset[str] = frozenset()
        self._places = FleetPlaces()

    def use_fleet(self, served: PublishedFleet) -> None:
        """From now on, keep reports about this fleet's pools, and the latencies used to evaluate its rollouts."""
        topology = served.composed.whole.topology
        self._measured, self._judged = measured(topology.routes), judged(topology.routes)
        self._pools = frozenset(pool.name for pool in topology.pools)
        self._places.use_fleet(served.composed.whole)

    def observed(self, node_id: str, requests: Iterator[RequestLatency | OwnError]) -> None:
        """Add the requests in one message."""
        counts: dict[LatencyKey, Counter[int]] = {}
        errors: Counter[str] = Counter()
        first_bytes: dict[ReplicaKey, Counter[int]] = {}
        for request in requests:
            if isinstance(request, OwnError):
                if request.pool in self._judged:
                    errors[request.pool] += 1
                continue
            pool = pool_name(request.cluster)
            if pool not in self._pools:
                continue
            if request.answered:
                replica = self._places.of(request.cluster).get(request.place) or ReplicaKey(pool, "")
                first_bytes.setdefault(replica, Counter())[bucket(request.first_byte)] += 1
            for metric, value in (("first_byte", request.first_byte), ("total", request.total)):
                key = LatencyKey(pool, metric)
                if key in self._measured:
                    counts.setdefault(key, Counter())[bucket(value)] += 1
        self._ledger.add_own_errors(node_id, errors, self._clock())
        self._ledger.add_latencies(node_id, counts, self._clock())
        self._ledger.add_first_bytes(node_id, first_bytes, self._clock())
