"""Receives Envoy's gRPC access log, which reports that picked requests have ended.

Each entry has the ID of its pick as a tag. An Envoy opens one stream per worker and sends its node ID in each stream's
first message. If all of an Envoy's streams have ended and no new stream begins within a short time, the Envoy and all
its requests are considered ended. Any client can send any node ID, so a stream is taken into account only after it has
ended one of that node's picks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Protocol

import grpc
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse

from lbctl.ir.address import Address
from lbctl.picker.messages import ResponseStart

_SERVICE, _METHOD = "envoy.service.accesslog.v3.AccessLogService", "StreamAccessLogs"
_TAG = "x-lbctl-pick-id"
_GRACE = 2.0
"""Seconds after the end of an Envoy's last stream after which its requests are considered ended."""
_NOT_REACHED = (
    "upstream_reset_before_response_started{connection_failure",
    "upstream_reset_before_response_started{connection_timeout",
    "upstream_reset_before_response_started{remote_connection_failure",
    "upstream_reset_before_response_started{local_connection_failure",
    "no_healthy_upstream",
)
"""Prefixes of the response code details when Envoy itself responds because it could not connect to a replica."""


class Ending(Protocol):
    """Receives the starts of responses and the ends of requests."""

    def proxy_of(self, pick: str) -> str:
        """Return the proxy that handles an unfinished request; empty if there is none."""

    def answered(self, pick: str, answer: ResponseStart) -> None:
        """Record that the response to a request has started."""

    def finished(self, pick: str) -> None:
        """Record that a request has ended."""

    def proxy_left(self, proxy: str) -> None:
        """Record that a proxy has ended, together with all its requests."""


class EnvoyEnds:
    """A picker's access log service."""

    def __init__(self, service: Ending) -> None:
        self._service = service
        self._streams: Counter[str] = Counter()
        """Maps each node ID to the number of open streams that have ended one of its picks."""
        self._leaving: dict[str, asyncio.TimerHandle] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service's handler."""
        method = grpc.stream_unary_rpc_method_handler(
            self._stream,
            request_deserializer=StreamAccessLogsMessage.FromString,
            response_serializer=StreamAccessLogsResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method})

    async def _stream(self, _: object, context: grpc.aio.ServicerContext[Any, Any]) -> StreamAccessLogsResponse:
        node, counts = "", False
        try:
            while isinstance(message := await context.read(), StreamAccessLogsMessage):
                node = node or message.identifier.node.id
                for entry in message.http_logs.log_entry:
                    if node and not counts and self._service.proxy_of(_pick(entry)) == node:
                        counts = True
                        self._opened(node)
                    self._ended(entry)
                message = entry = None  # they may be large, and the next message may never arrive
        finally:
            if counts:
                self._closed(node)
        return StreamAccessLogsResponse()

    def _opened(self, node: str) -> None:
        self._streams[node] += 1
        if (leaving := self._leaving.pop(node, None)) is not None:
            leaving.cancel()

    def _closed(self, node: str) -> None:
        self._streams[node] -= 1
        if not self._streams[node]:
            del self._streams[node]
            self._leaving[node] = asyncio.get_running_loop().call_later(_GRACE, self._left, node)

    def _left(self, node: str) -> None:
        del self._leaving[node]
        self._service.proxy_left(node)

    def _ended(self, entry: Any) -> None:
        common = entry.common_properties
        pick = _pick(entry)
        if not pick:
            return
        if entry.response.response_code_details.startswith(_NOT_REACHED):
            self._service.answered(pick, ResponseStart(by_replica=False))
        elif common.HasField("time_to_first_upstream_rx_byte"):
            self._service.answered(pick, ResponseStart(_address(common.upstream_remote_address)))
        self._service.finished(pick)


def _pick(entry: Any) -> str:
    """Return the pick ID in an entry; empty if there is none."""
    return str(entry.common_properties.custom_tags.get(_TAG, ""))


def _address(address: Any) -> str:
    place = address.socket_address
    return str(Address(place.address, place.port_value)) if place.address else ""
