"""Adds Envoys' load reports to the ledger: cluster and address → pool and replica, by the published fleet.

A report is one proxy's differences since its last report, so it is added; what is in progress replaces what was in
progress before. Clusters and addresses that the fleet does not have are ignored. A proxy that runs twice with one node
id counts as one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.traffic.ledger import Counts, ReplicaKey, TrafficLedger
from lbctl.serve.traffic.places import FleetPlaces
from lbctl.xds.protocol.load_reports import ClusterLoad

_InProgress = Mapping[ReplicaKey, int]
_NOTHING: _InProgress = {}


class LoadReports:
    """A LoadReceiver that writes into the ledger, under the node id of the Envoy that reports."""

    def __init__(self, ledger: TrafficLedger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._places = FleetPlaces()
        self._nodes: dict[str, dict[object, _InProgress]] = {}
        """Node id → stream → the requests in progress by its last report."""

    def follow(self, served: PublishedFleet) -> None:
        """Find the replicas of this fleet from now on."""
        self._places.follow(served.composed.whole)

    def reported(self, stream: object, node_id: str, clusters: Iterator[ClusterLoad]) -> None:
        """Add a report: requests that have ended since the last one, failures, and the requests in progress now."""
        issued: Counter[ReplicaKey] = Counter()
        failed: Counter[ReplicaKey] = Counter()
        in_progress: dict[ReplicaKey, int] = {}
        for cluster in clusters:
            places = self._places.of(cluster.cluster)
            for key in places.values():
                in_progress.setdefault(key, 0)
            for place, sent, errors, now_there in cluster.endpoints if places else ():
                replica = places.get(place)
                if replica is not None:
                    issued[replica] += sent
                    failed[replica] += errors
                    in_progress[replica] += now_there
        streams = self._nodes.setdefault(node_id, {})
        counts = _counts(issued, failed, streams.get(stream, _NOTHING), in_progress)
        streams[stream] = in_progress
        now = self._clock()
        self._ledger.add(node_id, counts, now)
        self._ledger.set_in_flight(node_id, _total(streams), now)

    def ended(self, stream: object, node_id: str) -> None:
        """Forget what is in progress by this stream: it is unknown from now on."""
        streams = self._nodes.get(node_id, {})
        if streams.pop(stream, None) is None:
            return
        if streams:
            self._ledger.set_in_flight(node_id, _total(streams), self._clock())
        else:
            del self._nodes[node_id]
            self._ledger.lost(node_id)


def _total(streams: Mapping[object, _InProgress]) -> _InProgress:
    if len(streams) == 1:
        return next(iter(streams.values()))
    total: Counter[ReplicaKey] = Counter()
    for item in streams.values():
        total.update(item)
    return total


def _counts(
    issued: Mapping[ReplicaKey, int],
    failed: Mapping[ReplicaKey, int],
    before: _InProgress,
    now: _InProgress,
) -> dict[ReplicaKey, Counts]:
    """Return what has ended: what was there, and what was sent since then, without what is still there.

    A request that found no connection fails without being sent, so there may be more failures than requests that ended.
    """
    counts: dict[ReplicaKey, Counts] = {}
    for key in {*issued, *(key for key, count in before.items() if count)}:
        ended = before.get(key, 0) + issued.get(key, 0) - now.get(key, 0)
        errors = failed.get(key, 0)
        if ended > 0 or errors:
            counts[key] = Counts(max(ended, errors), errors)
    return counts
