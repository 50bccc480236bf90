"""Request logs: an Envoy's gRPC access log, with the latencies of each replica and the errors of Envoy itself.

An Envoy sends the latencies of all requests, and its own errors for the pools that a rollout is judged by: its
listeners say so. Envoy names itself and the log in the first message of a stream.
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
"""What the metrics call a stream of request logs."""
_FAILED = 400
"""The status from which on an answer says nothing about how fast the pool works."""


class RequestLatency(NamedTuple):
    """How long one request took, from its last byte at the proxy on."""

    cluster: str
    """The cluster that answered it."""
    place: Place
    """The endpoint that answered it."""
    first_byte: float
    """Milliseconds until the first byte of the answer; where the client left before, until then."""
    total: float
    """Milliseconds until the last byte of the answer; where the client left before, until then."""
    answered: bool = True
    """Whether the answer has begun."""


class OwnError(NamedTuple):
    """Envoy answered a request with an error itself: the pool had no replica for it, or its limits refused it."""

    pool: str


class LatencyReceiver(Protocol):
    """Takes the latencies and Envoy's own errors of all streams."""

    def observed(self, node_id: str, requests: Iterator[RequestLatency | OwnError]) -> None:
        """A node has sent these requests, which are decoded while they are iterated."""


def node_in(message: bytes) -> XdsNode | None:
    """Return what the node says of itself. Raises StreamError if the bytes are no message of a log."""
    return node_of(_parsed(message).identifier)


def failing_pool(message: bytes) -> str:
    """Return the pool whose own errors the log of this first message has; empty for a log of latencies.

    An entry without a replica does not name its cluster, so each pool has a log. Raises StreamError.
    """
    prefix, _, pool = _parsed(message).identifier.log_name.partition(ERRORS_OF)
    return "" if prefix else str(pool)


def read(message: bytes, failing: str = "") -> Iterator[RequestLatency | OwnError]:
    """Yield the requests of a message that a replica has answered well, or has not answered in time.

    In the log of a `failing` pool each entry is an error of Envoy's own.

    Raises StreamError if the bytes are no message of a log.
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
    """Return the latency of a request. An answer may begin before the whole request is there."""
    end, answered = common.duration, common.HasField("time_to_first_upstream_rx_byte")
    first = common.time_to_first_upstream_rx_byte if answered else end
    last = common.time_to_last_upstream_rx_byte if common.HasField("time_to_last_upstream_rx_byte") else end
    sent = _milliseconds(common.time_to_last_rx_byte)
    place, cluster = place_of(common.upstream_remote_address), common.upstream_cluster
    first_byte, total = (max(0.0, _milliseconds(each) - sent) for each in (first, last))
    return RequestLatency(cluster, place, first_byte, total, answered)


def _milliseconds(duration: Any) -> float:
    return float(duration.seconds * 1000 + duration.nanos / 1e6)
