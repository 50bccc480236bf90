"""One stream of load reports: it asks the node for reports, and passes them to the receiver.

What is reported moves traffic, as a request to the API does. So only a client that the fleet's secrets may be sent to
is asked: by the Unix socket, with a client certificate, or with `--insecure`. Another one, and a node that no entry of
`proxies` names, gets no answer: an Envoy that is not asked reports nothing. A node with a certificate for another name
is refused, as on ADS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress

import grpc

from lbctl.ir.topology import Topology
from lbctl.xds.protocol import load_reports
from lbctl.xds.protocol.identity import UNIX, Context, identity_of, peer_of
from lbctl.xds.protocol.load_reports import LoadReceiver, LoadReport
from lbctl.xds.protocol.nodes import Refused
from lbctl.xds.protocol.publication import NodeIdentity, Publication
from lbctl.xds.protocol.session import INTERNAL_ERROR, ServerContext
from lbctl.xds.protocol.wire import StreamError

_LOG = logging.getLogger(__name__)
_PACE = 0.5
"""Seconds between two reports of a stream that are read; what a client sends faster waits in its own buffers."""
_IN_CLEAR = Refused(
    "reports are only taken by the Unix socket or with client certificates, since every user of the machine could send "
    "them over TCP"
)


class LoadSession:
    """One stream, from the start of its call to the end. It runs on the event loop only."""

    def __init__(self, server: ServerContext, receiver: LoadReceiver, context: Context) -> None:
        self._server = server
        self._receiver = receiver
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._guarded = server.guarded or context.peer().startswith(UNIX)
        self._identity: NodeIdentity | None = None
        self._roster: Topology | None = None
        self._refused: Refused | None = None
        self._interval: float | None = None
        """Seconds between the reports that are wanted; None where none are."""
        self._requested: float | None = None
        """The interval that the client was last sent."""
        self._writing = self._closed = False
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve the stream until the client ends it or breaks the protocol, or `end` is called."""
        timer = self._loop.call_later(self._server.patience, self._time_out)
        try:
            message = await self._context.read()
            timer.cancel()
            if isinstance(message, bytes):
                self._open(load_reports.read(message))
            while isinstance(message, bytes):
                await self._pause()
                message = await self._context.read()
                if isinstance(message, bytes) and self._interval is not None:
                    self._pass_on(load_reports.read(message))
        except StreamError as error:
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001 -- the other streams go on
            self._report(error)
            await self._context.abort(grpc.StatusCode.INTERNAL, INTERNAL_ERROR)
        finally:
            timer.cancel()
            self._closed = True
            self._forget()

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        """End the stream from the server's side at any time."""
        if not self._closed:
            self._ending.set()
            self._start(self._abort(code, reason))

    def follow(self, publication: Publication) -> None:
        """Ask the node for reports, or no longer, as this publication says."""
        if self._identity is None:
            return
        if self._roster is not publication.roster:
            self._roster = publication.roster
            assigned = publication.assign(self._identity)
            self._refuse(assigned if isinstance(assigned, Refused) else None if self._guarded else _IN_CLEAR)
        self._interval = None if self._refused else publication.load_interval
        if not self._writing and not self._closed and self._must_request():
            self._writing = True
            self._start(self._write())

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PACE):
                await self._ending.wait()

    def _open(self, report: LoadReport) -> None:
        self._identity = identity_of(report.node, self._context)
        if self._server.publication is not None:
            self.follow(self._server.publication)
        if self._interval is not None:
            self._pass_on(report)

    def _pass_on(self, report: LoadReport) -> None:
        assert self._identity is not None, "the first message names the node"
        self._receiver.reported(self, self._identity.node.id, report.clusters)

    def _forget(self) -> None:
        if self._identity is not None:
            self._receiver.ended(self, self._identity.node.id)

    def _refuse(self, refused: Refused | None) -> None:
        """Take no reports for this reason from now on, or take them."""
        self._refused = refused
        if refused is None or self._identity is None:
            return
        self._forget()
        node_id = self._identity.node.id
        if self._server.is_news(node_id, refused.reason, self._loop.time()):
            fields = {"node": node_id, "peer": peer_of(self._context, self._server.socket), "reason": refused.reason}
            _LOG.warning("xds: the load reports of a node are not taken", extra={"fields": fields})
        if refused.denied:
            self.end(grpc.StatusCode.PERMISSION_DENIED, refused.reason)

    def _must_request(self) -> bool:
        return self._interval is not None and self._interval != self._requested

    async def _write(self) -> None:
        """Send the newest request; a client that does not read delays only itself."""
        try:
            while self._interval is not None and self._must_request() and not self._closed:
                self._requested = self._interval
                await self._context.write(load_reports.request_for_reports(self._interval))
        except grpc.aio.BaseError:
            return  # the call has ended, and the read in `run` fails too
        finally:
            self._writing = False

    def _time_out(self) -> None:
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request within {self._server.patience:g} seconds")

    async def _abort(self, code: grpc.StatusCode, reason: str) -> None:
        """Abort the call in a task of its own; the read that `run` waits for then fails and ends it."""
        if self._closed:
            return
        try:
            await self._context.abort(code, reason)
        except grpc.aio.BaseError:
            return

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, error: Exception) -> None:
        self._server.observer.failed()
        node_id = self._identity.node.id if self._identity else None
        _LOG.error(
            "xds: a stream of load reports failed and is closed; the proxy connects again",
            extra={"fields": {"node": node_id}},
            exc_info=error,
        )
