"""One load report stream: requests reports from the node and passes them to the receiver.

A client whose reports are not accepted (`report_session`) gets no response, because an Envoy does not report unless
requested to.
"""

from __future__ import annotations

import grpc

from lbctl.xds.protocol import load_reports
from lbctl.xds.protocol.load_reports import LoadReceiver
from lbctl.xds.protocol.peer import Context
from lbctl.xds.protocol.publication import Publication
from lbctl.xds.protocol.report_session import ReportSession
from lbctl.xds.protocol.server_context import ServerContext
from lbctl.xds.protocol.wire import XdsNode


class LoadSession(ReportSession):
    """A stream of Envoy's Load Reporting Service."""

    what = "load reports"

    def __init__(self, server: ServerContext, receiver: LoadReceiver, context: Context) -> None:
        super().__init__(server, context)
        self._receiver = receiver
        self._interval: float | None = None
        """Seconds between the requested reports; None if no reports are wanted."""
        self._requested: float | None = None
        """Interval that was last sent to the client."""
        self._writing = False

    def _node(self, message: bytes) -> XdsNode | None:
        return load_reports.read(message).node

    def _take(self, message: bytes) -> None:
        assert self._identity is not None, "the first message must include the node"
        self._receiver.reported(self, self._identity.node.id, load_reports.read(message).clusters)

    def _forget(self) -> None:
        assert self._identity is not None, "the first message must include the node"
        self._receiver.ended(self, self._identity.node.id)

    def _publication_changed(self, publication: Publication) -> None:
        """Request reports from the node, or stop them."""
        self._interval = publication.load_interval if self._takes else None
        if not self._writing and not self._call.closed and self._must_request():
            self._writing = True
            self._call.start(self._write())

    def _must_request(self) -> bool:
        return self._interval is not None and self._interval != self._requested

    async def _write(self) -> None:
        """Send the newest request. A client that does not read delays only itself."""
        try:
            while self._interval is not None and self._must_request() and not self._call.closed:
                self._requested = self._interval
                await self._call.write(load_reports.request_for_reports(self._interval))
        except grpc.aio.BaseError:
            return  # the call has ended, and the read in `run` fails too
        finally:
            self._writing = False
