"""Request logs: an Envoy's gRPC access log, with each replica's latencies and Envoy-generated errors.

Envoy's listeners are configured to send the latencies of all requests, and Envoy-generated errors for the pools that a
rollout analyses. Envoy identifies itself and the log in the first message of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage
from google.protobuf.message import DecodeError

from lbctl.ir.rollout_metrics import ERRORS_OF
from lbctl.xds.protocol.load_reports import Place, place_of
from lbctl.xds.protocol.wire import StreamError, XdsNode, node_of

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
METHOD = "StreamAccessLogs"
KIND = "requests"
"""Kind of a stream of request logs in the metrics."""
_FAILED = 400
"""Responses with this status or higher do not indicate the speed of the pool."""


class RequestLatency(NamedTuple):
    """The latencies of one request, measured from its last byte at the proxy."""

    cluster: str
    """Cluster that answered."""
    place: Place
    """Endpoint that answered."""
    first_byte: float
    """Milliseconds until the first byte of the response, or until the client disconnected."""
    total: float
    """Milliseconds until the last byte of the response, or until the client disconnected."""
    answered: bool = True
    """Whether the response has begun."""


class OwnError(NamedTuple):
    """Envoy itself answered a request with an error: the pool had no replica for it, or its limits rejected it."""

    pool: str


class LatencyReceiver(Protocol):
    """Receives the latencies and Envoy-generated errors from all streams."""

    def observed(self, node_id: str, requests: Iterator[RequestLatency | OwnError]) -> None:
        """Process these requests of a node, which are decoded lazily."""


def node_in(message: bytes) -> XdsNode | None:
    """Return the node's identity in the message. Raises StreamError if the bytes are not a log message."""
    return node_of(_parsed(message).identifier)


def failing_pool(message: bytes) -> str:
    """Return the pool whose Envoy-generated errors this log contains, from its first message.

    The result is empty for a log of latencies.

    An entry without a replica does not name its cluster, so each pool has a separate log. Raises StreamError.
    """
    prefix, _, pool = _parsed(message).identifier.log_name.partition(ERRORS_OF)
    return "" if prefix else str(pool)


def read(message: bytes, failing: str = "") -> Iterator[RequestLatency | OwnError]:
    """Yield the requests in a message that a replica answered successfully, or did not answer in time.

    In the log of a `failing` pool, each entry is an Envoy-generated error.

    Raises StreamError if the bytes are not a log message.
    """
    parsed = _parsed(message)
    return (OwnError(failing) for _ in parsed.http_logs.log_entry) if failing else _latencies(parsed)


def _parsed(message: bytes) -> Any:
    try:
        return StreamAccessLogsMessage.FromString(message)
    except DecodeError as error:
        raise StreamError("not a StreamAccessLogsMessage") from error


def _latencies(parsed: Any) -> Iterator[RequestLatency]:
    for entry in parsed.http_logs.log_entry:
        common = entry.common_properties
        status = entry.response.response_code.value
        left = common.response_flags.downstream_connection_termination
        if common.upstream_cluster and (0 < status < _FAILED or (left and status < _FAILED)):
            yield _latency(common)


def _latency(common: Any) -> RequestLatency:
    """Return the latency of a request. A response may begin before the whole request has arrived."""
    end, answered = common.duration, common.HasField("time_to_first_upstream_rx_byte")
    first = common.time_to_first_upstream_rx_byte if answered else end
    last = common.time_to_last_upstream_rx_byte if common.HasField("time_to_last_upstream_rx_byte") else end
    sent = _milliseconds(common.time_to_last_rx_byte)
    place, cluster = place_of(common.upstream_remote_address), common.upstream_cluster
    first_byte, total = (max(0.0, _milliseconds(each) - sent) for each in (first, last))
    return RequestLatency(cluster, place, first_byte, total, answered)


def _milliseconds(duration: Any) -> float:
    return float(duration.seconds * 1000 + duration.nanos / 1e6)
