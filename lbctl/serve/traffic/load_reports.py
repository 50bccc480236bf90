"""Adds the Envoys' load reports to the ledger.

Clusters and addresses are mapped to pools and replicas using the published fleet. A report contains a proxy's counts
since its last report, which are added, whereas the requests in progress replace the previous value. Clusters and
addresses that are not part of the fleet are ignored. If two proxies run with the same node ID, they are treated as one
proxy.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.traffic.envoy_endpoints import FleetPlaces
from lbctl.serve.traffic.ledger import Counts, ReplicaKey, TrafficLedger
from lbctl.xds.protocol.load_reports import ClusterLoad

_InProgress = Mapping[ReplicaKey, int]
_NOTHING: _InProgress = {}
_Tally = tuple[int, int, int]
"""One replica's requests in one report: issued, failed and in progress."""
_NO_REQUESTS: _Tally = (0, 0, 0)


class LoadReports:
    """A LoadReceiver that writes to the ledger under the reporting Envoy's node ID."""

    def __init__(self, ledger: TrafficLedger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._places = FleetPlaces()
        self._nodes: dict[str, dict[object, _InProgress]] = {}
        """Maps each node ID and stream to the requests in progress according to its last report."""

    def use_fleet(self, served: PublishedFleet) -> None:
        """From now on, look up replicas in this fleet."""
        self._places.use_fleet(served.composed.whole)

    def reported(self, stream: object, node_id: str, clusters: Iterator[ClusterLoad]) -> None:
        """Add a report: the requests that have ended since the last one, the failures, and the requests in progress."""
        tallies: dict[ReplicaKey, _Tally] = {}
        in_progress: dict[ReplicaKey, int] = {}
        answered: set[ReplicaKey] = set()
        for cluster in clusters:
            places = self._places.of(cluster.cluster)
            in_progress.update(dict.fromkeys(places.values(), 0))
            for place, issued, failed, there, begun in cluster.endpoints if places else ():
                key = places.get(place)
                if key is not None:
                    before = tallies.get(key, _NO_REQUESTS)
                    tallies[key] = before[0] + issued, before[1] + failed, before[2] + there
                    if begun:
                        answered.add(key)
        in_progress.update({key: there for key, (_, _, there) in tallies.items()})
        streams = self._nodes.setdefault(node_id, {})
        counts = _counts(tallies, streams.get(stream, _NOTHING))
        streams[stream] = in_progress
        now = self._clock()
        self._ledger.add(node_id, counts, now, answered)
        self._ledger.set_in_flight(node_id, _total(streams), now)

    def ended(self, stream: object, node_id: str) -> None:
        """Forget this stream's requests in progress, which are unknown from now on."""
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


def _counts(tallies: Mapping[ReplicaKey, _Tally], before: _InProgress) -> dict[ReplicaKey, Counts]:
    """Return the finished requests: those in flight `before`, plus those sent since, minus those still in flight.

    A request that does not get a connection fails without being sent, so failures may outnumber ended requests.
    """
    counts = {key: Counts(count) for key, count in before.items() if count and key not in tallies}
    for key, (issued, failed, there) in tallies.items():
        ended = before.get(key, 0) + issued - there
        if ended > 0 or failed:
            counts[key] = Counts(max(ended, failed), failed)
    return counts
