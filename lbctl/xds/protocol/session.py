"""One stream's I/O: reads requests, writes the responses of `Stream`, and reports to `NodeStatus` and the observer.

The call's own task reads requests. A second task exists only while a response is being written. A client that does not
read therefore delays only itself: at most one message waits for it, until its connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import grpc

from lbctl.ir.proxies import Proxy
from lbctl.ir.topology import Topology
from lbctl.xds.protocol.budget import ExhaustedError, StreamBudget
from lbctl.xds.protocol.call import INTERNAL_ERROR, Call, Status
from lbctl.xds.protocol.first_messages import CrowdedError
from lbctl.xds.protocol.identity import certificate_names, identity_of
from lbctl.xds.protocol.node_status import READER, Nack, StreamEntry
from lbctl.xds.protocol.nodes import RefusedNode
from lbctl.xds.protocol.peer import UNIX, Context, client_of, host_of, peer_of
from lbctl.xds.protocol.publication import NodeIdentity, Publication
from lbctl.xds.protocol.server_context import ServerContext, Service
from lbctl.xds.protocol.stream import Acked, Nacked, Response, Stream, StreamError, XdsNode
from lbctl.xds.protocol.wire import read
from lbctl.xds.resource import SHORT, Resources

_LOG = logging.getLogger(__name__)
_MAX_MESSAGE = 4000
_MAX_FINDINGS = 20
_IN_CLEAR = (
    "LB527: the configuration of this node contains API keys, private keys or other credentials: they are not sent "
    "over TCP without client certificates, because any user on the machine could read them; connect through {}"
)
_NO_KEY = (
    "the key for picker requests is not sent over TCP without client certificates, so this node does not use the "
    "picker; connect through {}"
)
_MTLS = "mTLS (control.xds.tls with a client_ca)"
_HELD = 1.0
"""Maximum number of seconds that a new stream waits for an expected publication."""
_HELD_POLL = 0.01
_MIN_TIMER = 0.005
"""Minimum duration, in seconds, of the timer of a stream that only waits for time to pass."""


@dataclass(frozen=True, slots=True)
class _Sent:
    at: float
    publication: Publication


class StreamSession:
    """One stream, from the start of its call to the end. Use it only on the event loop."""

    __slots__ = (
        "_call",
        "_context",
        "_entry",
        "_guarded",
        "_has_nack",
        "_identity",
        "_loop",
        "_offered",
        "_proxy",
        "_roster",
        "_server",
        "_service",
        "_share",
        "_stream",
        "_timer",
        "_unanswered",
        "_writing",
        "client",
    )  # fmt: skip

    def __init__(self, server: ServerContext, service: Service, context: Context) -> None:
        self._server = server
        self._service = service
        self._context = context
        self._call = Call(context, self._fail, server.read_within)
        self.client = client_of(context)
        """Host and port of the client; None for the Unix socket."""
        self._share = StreamBudget(server.budget, host_of(context))
        self._guarded = server.guarded or context.peer().startswith(UNIX)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered: dict[str, _Sent] = {}
        self._offered: Publication | None = None
        self._roster: Topology | None = None
        self._has_nack = self._writing = False
        self._stream: Stream
        self._identity: NodeIdentity
        self._entry: StreamEntry | None = None
        self._proxy: Proxy | RefusedNode

    async def run(self) -> None:
        """Serve the stream until the client ends it, violates the protocol or exceeds a limit, or `end` is called."""
        self._timer = self._call.end_without_request(self._server.patience)
        try:
            status = await self._receive()
            if status is not None:
                await self._abort(*status)
        finally:
            self._close()

    async def _receive(self) -> Status | None:
        """Process requests until the stream ends. Return the final status; None if the client ended the stream.

        No request is kept longer than necessary: it may be large, and the next request may never arrive.
        """
        try:
            message = await self._server.first_message(self._call, self._context, self.client)
            if isinstance(message, bytes):
                self._open_stream(message)
            while isinstance(message, bytes):
                self._request(message)
                del message
                message = await self._server.next_message(self._context, self.client)
        except ExhaustedError as error:
            _LOG.warning("xds: a stream exceeded a limit", extra={"fields": {"reason": str(error)}})
            return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
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

    async def _abort(self, code: grpc.StatusCode, reason: str) -> None:
        """End the stream because of a client's request.

        The memory of the request is released first, even if the client does not read.
        """
        self._close()
        await self._call.abort(code, reason)

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
        """Whether the client has accepted a response."""
        return self._entry is not None and bool(self._entry.acked)

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        """End the stream from the server's side; may be called at any time."""
        self._call.end(code, reason)

    def use_publication(self, publication: Publication) -> None:
        """Offer the node its content in this publication, or close the stream if this fails unexpectedly."""
        try:
            self._offer(publication)
        except Exception as error:  # noqa: BLE001 -- the other streams still get the publication
            self._fail(error)

    def _offer(self, publication: Publication) -> None:
        """Offer the node its content in this publication. A node that no longer matches an entry keeps its content.

        A stream that is ending while its client does not read gets nothing, because its memory is already released.
        """
        if self._entry is None or self._call.closed:
            return
        content = self._content(publication, self._entry)
        if isinstance(content, RefusedNode):
            self._refuse(content, self._entry)
            return
        self._entry.offer(publication.cached_snapshot.version, self._server.node_status.now())
        if self._offered is None and self._entry.node.agent != READER:
            self._server.enter((self._entry.node.id, self._service.only), self)
        self._offered = publication
        self._stream.offer(content)
        self._wake()

    async def _offer_soon(self) -> None:
        """Offer the node its content once no newer publication is expected, or after `_HELD` seconds."""
        deadline = self._loop.time() + _HELD
        while self._server.held() and self._offered is None and self._loop.time() < deadline:
            await asyncio.sleep(_HELD_POLL)
        if self._offered is None and self._server.publication is not None and not self._call.closed:
            self.use_publication(self._server.publication)

    def last(self) -> Resources | None:
        """Return the node's resources according to this stream.

        The result is None until the node has everything that it subscribed to.
        """
        return self._stream.last()

    def retry_rejected(self) -> int:
        """Offer rejected resources once more, and return their number."""
        count = self._stream.retry_rejected() if self._entry is not None else 0
        if count:
            self._wake()
        return count

    def _open_stream(self, message: bytes) -> None:
        """Create the stream from its first request, with the node's resources from an earlier stream."""
        self._clear_timer()
        node = read(message, delta=self._service.delta).node
        before = self._before(node) if node and node.agent != READER else None
        self._stream = Stream(
            delta=self._service.delta,
            only=self._service.only,
            before=before,
            settle=self._server.settle,
            share=self._share,
        )

    def _before(self, node: XdsNode) -> Resources | None:
        """Return the node's known resources: from its last stream, or from the previous process.

        Held resources may be sent again, so they are returned only if the client may receive their secrets.
        """
        before = self._presumed_resources(node)
        return self._receivable(before) if before is not None else None

    def _presumed_resources(self, node: XdsNode) -> Resources | None:
        server, key = self._server, (node.id, self._service.only)
        before = server.last(key)
        if before is not None or server.earlier is None:
            return before
        proxy = server.earlier.assign(NodeIdentity(node, certificate_names(self._context)))
        content = proxy if isinstance(proxy, RefusedNode) else server.earlier.content(proxy)
        return None if isinstance(content, RefusedNode) else content

    def _request(self, message: bytes) -> None:
        now = self._loop.time()
        events = self._stream.request(message, now)
        if self._entry is None:
            self._register(self._stream.node)
        for answer in events:
            self._record_answer(answer, now)
        self._wake()

    def _register(self, node: XdsNode | None) -> None:
        self._identity = identity_of(node, self._context)
        node_status = self._server.node_status
        self._entry = StreamEntry(
            self._identity.node,
            peer_of(self._context, self._server.socket),
            self._service.delta,
            self._stream.status,
            node_status.now(),
            self._guarded,
        )
        node_status.enter(self._entry)
        if self._server.held():
            self._call.start(self._offer_soon())
        elif self._server.publication is not None:
            self.use_publication(self._server.publication)
        if not self._entry.denied:
            _LOG.info("xds: %s has connected", _role(self._entry), extra=_fields(self._entry, kind=self._service.kind))

    def _content(self, publication: Publication, entry: StreamEntry) -> Resources | RefusedNode:
        if self._roster is not publication.roster:
            self._roster = publication.roster
            self._proxy = publication.assign(self._identity)
            entry.assign(None if isinstance(self._proxy, RefusedNode) else self._proxy)
        content = self._proxy if isinstance(self._proxy, RefusedNode) else publication.content(self._proxy)
        if isinstance(content, RefusedNode):
            return content
        receivable = self._receivable(content)
        if receivable is None:
            return RefusedNode(_IN_CLEAR.format(self._guarded_ways), denied=True)
        if receivable is not content:
            self._note_withheld(entry)
        return receivable

    def _receivable(self, content: Resources) -> Resources | None:
        """Return the part of the content that the client may receive; None if it may not receive any."""
        return content if self._guarded else content.in_clear

    @property
    def _guarded_ways(self) -> str:
        """Describe the connections over which clients may receive secrets."""
        socket = self._server.socket
        return f"unix:{socket} or {_MTLS}" if socket else _MTLS

    def _note_withheld(self, entry: StreamEntry) -> None:
        reason = _NO_KEY.format(self._guarded_ways)
        if self._server.is_news(entry.node.id, reason, self._loop.time()):
            _LOG.warning("xds: picks withheld", extra=_fields(entry, reason=reason))

    def _refuse(self, refused: RefusedNode, entry: StreamEntry) -> None:
        if entry.refuse(refused.reason, denied=refused.denied):
            if refused is self._proxy:
                self._server.observer.unmatched(entry.node.id)
            if not refused.denied or self._server.is_news(entry.node.id, refused.reason, self._loop.time()):
                _LOG.warning("xds: update withheld", extra=_fields(entry, reason=refused.reason))
        if refused.denied:
            self.end(grpc.StatusCode.PERMISSION_DENIED, refused.reason)

    def _wake(self) -> None:
        """Send what may be sent now, unless a write is in progress. The write task then sends the newest content."""
        if self._writing or self._call.closed:
            return
        response = self._next()
        if response is None:
            self._schedule_idle_work()
        else:
            self._writing = True
            self._call.start(self._write(response))

    def _wake_by_timer(self) -> None:
        try:
            self._wake()
        except Exception as error:  # noqa: BLE001 -- a callback of the event loop has no caller to handle it
            self._fail(error)

    def _next(self) -> Response | None:
        """Return the next response, already recorded as sent: the answer may arrive before the write returns."""
        now = self._loop.time()
        response = self._stream.respond(now)
        if response is not None and response.type_url in SHORT and self._offered and self._entry:
            self._unanswered[response.type_url] = _Sent(now, self._offered)
            self._entry.push(response.type_url, self._server.node_status.now())
        return response

    async def _write(self, response: Response | None) -> None:
        try:
            while response is not None and not self._call.closed:
                data = response.encode()
                if response.type_url in SHORT:
                    self._server.observer.pushed(SHORT[response.type_url], len(response.resources), len(data))
                await self._call.write(data)
                response = self._next()
        except grpc.aio.BaseError:
            return  # the call has ended, and the read in `run` fails too
        self._writing = False
        if not self._call.closed:
            self._schedule_idle_work()

    def _schedule_idle_work(self) -> None:
        """Schedule the removal of held resources, or record that everything is accepted.

        Called when there is nothing to send.
        """
        self._clear_timer()
        due = self._stream.due()
        if due is not None:
            self._timer = self._loop.call_at(max(due, self._loop.time() + _MIN_TIMER), self._wake_by_timer)
        elif not self._unanswered and self._offered is not None and self._entry is not None:
            self._has_nack = self._has_nack and any(item.state == "NACKED" for item in self._stream.status())
            if not self._has_nack and not self._entry.reason:
                self._server.node_status.good(self._entry)

    def _record_answer(self, answer: Acked | Nacked, now: float) -> None:
        sent = self._unanswered.pop(answer.type_url, None)
        if sent is None or self._entry is None:
            return
        if isinstance(answer, Nacked):
            self._record_nack(answer, sent.publication, self._entry)
        else:
            self._entry.ack(answer.type_url, self._server.node_status.now())
            self._server.observer.acked(SHORT[answer.type_url], now - sent.at)

    def _record_nack(self, answer: Nacked, publication: Publication, entry: StreamEntry) -> None:
        self._has_nack = True
        message = publication.cached_snapshot.redacted(answer.message)[:_MAX_MESSAGE]
        at = self._server.node_status.now()
        entry.nack(answer.type_url, at, message)
        names = answer.names[:_MAX_FINDINGS]
        findings = tuple(publication.cached_snapshot.nack_diagnostic(answer.type_url, name, message) for name in names)
        self._server.node_status.nacked(entry, Nack(at, answer.type_url, answer.version, names, message, findings))
        self._server.observer.nacked(SHORT[answer.type_url])
        fields = _fields(
            entry, type=SHORT[answer.type_url], version=answer.version, names=" ".join(names), words=message
        )
        _LOG.error("xds: a proxy rejected an update", extra=fields)
        for finding in findings:
            _LOG.error("%s", finding)

    def _fail(self, error: BaseException) -> None:
        """Report an unexpected exception and close the stream, so that the proxy reconnects."""
        self._report(error)
        self.end(grpc.StatusCode.INTERNAL, INTERNAL_ERROR)

    def _report(self, error: BaseException) -> None:
        self._server.observer.failed()
        fields = _fields(self._entry, kind=self._service.kind) if self._entry else {"kind": self._service.kind}
        _LOG.error(
            "xds: a stream failed and was closed; the proxy reconnects",
            extra=fields if self._entry else {"fields": fields},
            exc_info=error,
        )

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        """Release the stream's memory, once."""
        if self._call.closed:
            return
        self._call.close()
        self._share.close()
        self._clear_timer()
        if self._entry is None:
            return
        self._server.node_status.leave(self._entry)
        if not self._entry.denied or self._offered is not None:
            _LOG.info(
                "xds: %s has disconnected", _role(self._entry), extra=_fields(self._entry, kind=self._service.kind)
            )
        self._server.leave((self._entry.node.id, self._service.only), self)


def _role(entry: StreamEntry) -> str:
    return "a reader" if entry.is_reader else "a node"


def _fields(entry: StreamEntry, **more: object) -> dict[str, object]:
    return {"fields": {"node": entry.node.id, "proxy": entry.proxy, "peer": entry.peer, **more}}
