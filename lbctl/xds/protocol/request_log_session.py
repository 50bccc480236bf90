"""One stream of request logs: passes their latencies to the receiver, at a limited cost.

Reading a stream takes up at most a small share of the time. Envoy itself drops further log entries, without delaying
requests. The remaining latencies are an unbiased sample of both sides of a rollout.
"""

from __future__ import annotations

import time

from lbctl.xds.protocol import request_logs
from lbctl.xds.protocol.peer import Context
from lbctl.xds.protocol.publication import Publication
from lbctl.xds.protocol.report_session import ReportSession
from lbctl.xds.protocol.request_logs import LatencyReceiver
from lbctl.xds.protocol.server_context import ServerContext
from lbctl.xds.protocol.wire import XdsNode

_PART = 0.02
"""Maximum share of time spent on the messages of one stream."""
_MIN_PAUSE = 0.005
"""Minimum pause between two messages in seconds."""


class RequestLogSession(ReportSession):
    """A stream of Envoy's gRPC access log service."""

    what = "request logs"

    def __init__(self, server: ServerContext, receiver: LatencyReceiver, context: Context) -> None:
        super().__init__(server, context)
        self._receiver = receiver
        self._spent = 0.0
        """Seconds spent on the last message."""
        self._failing = ""
        """Pool whose Envoy-generated errors are sent on the stream; empty for a stream of latencies."""

    def _node(self, message: bytes) -> XdsNode | None:
        self._failing = request_logs.failing_pool(message)
        return request_logs.node_in(message)

    def _take(self, message: bytes) -> None:
        assert self._identity is not None, "the first message must include the node"
        began = time.perf_counter()
        self._receiver.observed(self._identity.node.id, request_logs.read(message, self._failing))
        self._spent = time.perf_counter() - began

    def _pace(self) -> float:
        return max(_MIN_PAUSE, self._spent / _PART) if self._takes else super()._pace()

    def _publication_changed(self, publication: Publication) -> None:
        """Do nothing: the node's listeners determine the content of the stream."""

    def _forget(self) -> None:
        """Do nothing: past observations remain valid."""
