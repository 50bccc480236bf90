"""One stream of reports from a node: decides whether its reports are accepted, and ends the stream.

Like a request to the API, a report can influence traffic. For this reason, reports are accepted only from clients that
may receive the fleet's secrets: over the Unix socket, with a client certificate, or with `--insecure`. Reports from
other clients, and from a node that no entry of `proxies` matches, are ignored. A node whose certificate has another
name is rejected, as on ADS.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import suppress

import grpc

from lbctl.ir.topology import Topology
from lbctl.xds.protocol.call import INTERNAL_ERROR, Call, Status
from lbctl.xds.protocol.first_messages import CrowdedError
from lbctl.xds.protocol.identity import identity_of
from lbctl.xds.protocol.nodes import RefusedNode
from lbctl.xds.protocol.peer import UNIX, Context, client_of, peer_of
from lbctl.xds.protocol.publication import NodeIdentity, Publication
from lbctl.xds.protocol.server_context import ServerContext
from lbctl.xds.protocol.wire import StreamError, XdsNode

_LOG = logging.getLogger(__name__)
_READ_INTERVAL = 0.5
"""Minimum number of seconds between reading two reports from a stream."""
_IN_CLEAR = RefusedNode(
    "reports are accepted only over the Unix socket or with client certificates, because any user on the machine "
    "could send them over TCP"
)


class ReportSession(ABC):
    """One stream, from the start of its call to the end. Use it only on the event loop."""

    what: str
    """Kind of reports, for the log."""

    def __init__(self, server: ServerContext, context: Context) -> None:
        self._server = server
        self._context = context
        self._call = Call(context, self._fail, server.read_within)
        self.client = client_of(context)
        """Host and port of the client; None for the Unix socket."""
        self._loop = asyncio.get_running_loop()
        self._guarded = server.guarded or context.peer().startswith(UNIX)
        self._identity: NodeIdentity | None = None
        self._roster: Topology | None = None
        self._refused: RefusedNode | None = None

    async def run(self) -> None:
        """Serve the stream until the client ends it or violates the protocol, or `end` is called."""
        timer = self._call.end_without_request(self._server.patience)
        try:
            status = await self._receive(timer)
            if status is not None:
                await self._call.abort(*status)
        finally:
            timer.cancel()
            self._call.close()
            if self._identity is not None:
                self._server.node_status.refuse_reports(self, self._identity.node.id, "")
                self._forget()

    async def _receive(self, timer: asyncio.TimerHandle) -> Status | None:
        """Process reports until the stream ends. Return the final status; None if the client ended the stream.

        The first report cancels the timer. No report is kept longer than necessary.
        """
        try:
            message = await self._server.first_message(self._call, self._context, self.client)
            timer.cancel()
            if isinstance(message, bytes):
                self._open(message)
            while isinstance(message, bytes):
                del message
                await self._pause()
                message = await self._server.next_message(self._context, self.client)
                if isinstance(message, bytes) and self._takes:
                    self._take(message)
        except CrowdedError as error:
            return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
        except StreamError as error:
            return grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001 -- the other streams continue
            self._report(error)
            return grpc.StatusCode.INTERNAL, INTERNAL_ERROR
        return None

    @property
    def context(self) -> Context:
        """The call."""
        return self._context

    @property
    def peer(self) -> str:
        """Address of the client."""
        return self._context.peer()

    @property
    def is_proven(self) -> bool:
        """Whether the node's reports are accepted."""
        return self._takes

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        """End the stream from the server's side; may be called at any time."""
        self._call.end(code, reason)

    def use_publication(self, publication: Publication) -> None:
        """Start or stop accepting the node's reports, depending on this publication."""
        if self._identity is None:
            return
        if self._roster is not publication.roster:
            self._roster = publication.roster
            assigned = publication.assign(self._identity)
            self._refuse(assigned if isinstance(assigned, RefusedNode) else None if self._guarded else _IN_CLEAR)
        self._publication_changed(publication)

    @property
    def _takes(self) -> bool:
        """Return whether the node's reports are accepted."""
        return self._identity is not None and self._roster is not None and self._refused is None

    @abstractmethod
    def _node(self, message: bytes) -> XdsNode | None:
        """Return the node's identity from the first message. Raises StreamError."""

    @abstractmethod
    def _take(self, message: bytes) -> None:
        """Pass a report on. Raises StreamError."""

    @abstractmethod
    def _publication_changed(self, publication: Publication) -> None:
        """Handle a new publication, once it is clear whether reports are accepted."""

    @abstractmethod
    def _forget(self) -> None:
        """Discard the node's reports of its current state."""

    async def _pause(self) -> None:
        """Wait before the next report is read. If a client sends faster, its reports wait in its own buffers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace()):
                await self._call.ending.wait()

    def _pace(self) -> float:
        """Return the seconds of the pause after a report."""
        return _READ_INTERVAL

    def _open(self, message: bytes) -> None:
        self._identity = identity_of(self._node(message), self._context)
        if self._server.publication is not None:
            self.use_publication(self._server.publication)
        if self._takes:
            self._take(message)

    def _refuse(self, refused: RefusedNode | None) -> None:
        """From now on, reject reports for this reason, or accept them if it is None."""
        self._refused = refused
        if self._identity is None:
            return
        node_id = self._identity.node.id
        self._server.node_status.refuse_reports(self, node_id, refused.reason if refused else "")
        if refused is None:
            return
        self._forget()
        if self._server.is_news(node_id, refused.reason, self._loop.time()):
            fields = {"node": node_id, "peer": peer_of(self._context, self._server.socket), "reason": refused.reason}
            _LOG.warning(f"xds: a node's {self.what} are ignored", extra={"fields": fields})
        if refused.denied:
            self.end(grpc.StatusCode.PERMISSION_DENIED, refused.reason)

    def _fail(self, error: BaseException) -> None:
        """Report an unexpected exception and close the stream, so that the proxy reconnects."""
        self._report(error)
        self.end(grpc.StatusCode.INTERNAL, INTERNAL_ERROR)

    def _report(self, error: BaseException) -> None:
        self._server.observer.failed()
        node_id = self._identity.node.id if self._identity else None
        _LOG.error(
            f"xds: a stream of {self.what} failed and was closed; the proxy reconnects",
            extra={"fields": {"node": node_id}},
            exc_info=error,
        )
