"""Load reports: what an Envoy counts at each endpoint of its clusters, and the request that makes it report.

Envoy's Load Reporting Service (LRS) is a stream of its own beside ADS, and its counters are differences: each report
has what was counted since the one before. An endpoint that had no request since then and has none in progress is
absent. This module decodes reports one cluster at a time, so that a receiver can skip clusters that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse
from google.protobuf.message import DecodeError

from lbctl.control.loop_output import shortest_interval
from lbctl.ir.topology import Topology
from lbctl.xds.protocol.wire import StreamError, XdsNode, node_of

SERVICE = "envoy.service.load_stats.v3.LoadReportingService"
METHOD = "StreamLoadStats"
KIND = "load"
"""What the metrics call a stream of load reports."""
MIN_INTERVAL, MAX_INTERVAL = 1.0, 5.0
"""The bounds of the interval of reports in seconds. Without telemetry it is the longest."""

Place = tuple[str, int]
"""The IP address and the port of an endpoint; the path of a Unix socket and 0."""


class EndpointLoad(NamedTuple):
    """What an Envoy has counted at one endpoint of one cluster since its last report."""

    place: Place
    """The address of the endpoint."""
    issued: int
    """Requests that were sent there, each attempt of a retry by itself."""
    failed: int
    """Requests that ended with a status of 500 or more, without an answer, or without a connection."""
    in_progress: int
    """Requests that are there now."""
    answered: int
    """Answers with a status below 500 that have begun."""


class ClusterLoad(NamedTuple):
    """The load of one cluster; `endpoints` decodes while it is iterated."""

    cluster: str
    endpoints: Iterator[EndpointLoad]


class LoadReport(NamedTuple):
    """One message of the client. `node` is what it says of itself; clients say it in their first message alone."""

    node: XdsNode | None
    clusters: Iterator[ClusterLoad]
    """The load of each cluster, decoded while it is iterated."""


class LoadReceiver(Protocol):
    """Takes the load reports of all streams. Two Envoys with one node id have two streams."""

    def reported(self, stream: object, node_id: str, clusters: Iterator[ClusterLoad]) -> None:
        """A node has sent a report on this stream."""

    def ended(self, stream: object, node_id: str) -> None:
        """The stream has ended, or nothing that it reports counts any more."""


def read(message: bytes) -> LoadReport:
    """Decode a message of the client. Raises StreamError if the bytes are not one."""
    try:
        request = LoadStatsRequest.FromString(message)
    except DecodeError as error:
        raise StreamError("not a LoadStatsRequest") from error
    clusters = (ClusterLoad(item.cluster_name, _loads(item)) for item in request.cluster_stats)
    return LoadReport(node_of(request), clusters)


def _loads(cluster: Any) -> Iterator[EndpointLoad]:
    for locality in cluster.upstream_locality_stats:
        for item in locality.upstream_endpoint_stats:
            yield EndpointLoad(
                place_of(item.address),
                item.total_issued_requests,
                item.total_error_requests,
                item.total_requests_in_progress,
                item.total_successful_requests,
            )


def place_of(address: Any) -> Place:
    """Return the endpoint of Envoy's `core.v3.Address`."""
    socket = address.socket_address
    host = socket.address
    return (host, socket.port_value) if host else (address.pipe.path, 0)


def request_for_reports(interval: float) -> bytes:
    """Return the response that makes a client report all its clusters by endpoint each `interval` seconds."""
    response = LoadStatsResponse(send_all_clusters=True, report_endpoint_granularity=True)
    response.load_reporting_interval.FromMilliseconds(round(interval * 1000))
    return bytes(response.SerializeToString())


def interval_of(topology: Topology) -> float:
    """Return the seconds between two reports: the shortest telemetry interval, which stalls are looked for at."""
    shortest = shortest_interval(topology)
    return MAX_INTERVAL if shortest is None else min(max(shortest, MIN_INTERVAL), MAX_INTERVAL)
