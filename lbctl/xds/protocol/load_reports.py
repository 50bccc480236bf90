"""Load reports: an Envoy's counters for each endpoint of its clusters, and the request that enables reports.

Envoy's Load Reporting Service (LRS) is a separate stream next to ADS. The LRS counters are deltas: each report counts
from the previous one. Endpoints that have had no requests since then and have no requests in progress are absent. This
module decodes reports one cluster at a time, so that a receiver can skip unknown clusters.
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
"""Kind of a stream of load reports in the metrics."""
MIN_INTERVAL, MAX_INTERVAL = 1.0, 5.0
"""Limits on the report interval, in seconds. Without telemetry, the maximum is used."""

Place = tuple[str, int]
"""IP address and port of an endpoint; path and 0 for a Unix socket."""


class EndpointLoad(NamedTuple):
    """An Envoy's counters for one endpoint of one cluster since its last report."""

    place: Place
    """Address of the endpoint."""
    issued: int
    """Number of requests sent. Retries are counted separately."""
    failed: int
    """Number of requests that ended with a status of 500 or more, without a response, or without a connection."""
    in_progress: int
    """Number of requests in progress."""
    answered: int
    """Number of responses with a status below 500 that have begun."""


class ClusterLoad(NamedTuple):
    """The load of one cluster. `endpoints` decodes lazily."""

    cluster: str
    endpoints: Iterator[EndpointLoad]


class LoadReport(NamedTuple):
    """One message from the client. `node` is the client's identity, sent only in the first message."""

    node: XdsNode | None
    clusters: Iterator[ClusterLoad]
    """Load of each cluster, decoded lazily."""


class LoadReceiver(Protocol):
    """Receives the load reports of all streams. Two Envoys with the same node ID have two streams."""

    def reported(self, stream: object, node_id: str, clusters: Iterator[ClusterLoad]) -> None:
        """Process a report from a node on this stream."""

    def ended(self, stream: object, node_id: str) -> None:
        """Process the end of the stream, after which its reports are ignored."""


def read(message: bytes) -> LoadReport:
    """Decode a client's message. Raises StreamError if the bytes are not a valid message."""
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
    """Return the endpoint in an Envoy `core.v3.Address`."""
    socket = address.socket_address
    host = socket.address
    return (host, socket.port_value) if host else (address.pipe.path, 0)


def request_for_reports(interval: float) -> bytes:
    """Return the response that makes a client report all its clusters, per endpoint, every `interval` seconds."""
    response = LoadStatsResponse(send_all_clusters=True, report_endpoint_granularity=True)
    response.load_reporting_interval.FromMilliseconds(round(interval * 1000))
    return bytes(response.SerializeToString())


def interval_of(topology: Topology) -> float:
    """Return the seconds between two reports: the shortest telemetry interval, also used to check for stalls."""
    shortest = shortest_interval(topology)
    return MAX_INTERVAL if shortest is None else min(max(shortest, MIN_INTERVAL), MAX_INTERVAL)
