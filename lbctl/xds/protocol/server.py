"""The gRPC server: all of Envoy's discovery services, with one `StreamSession` for each stream, and its metrics.

No request is answered before the first `publish`: an empty response would remove the proxies' current resources. The
server reads no fleet files and makes no decisions; its caller publishes the content.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls
from lbctl.xds.build.snapshot_cache import CachedSnapshot
from lbctl.xds.protocol import load_reports, request_logs
from lbctl.xds.protocol.budget import Budget, SubscriptionLimits
from lbctl.xds.protocol.call import await_grpc_tasks
from lbctl.xds.protocol.connection import Client
from lbctl.xds.protocol.credentials import ServerCredentials
from lbctl.xds.protocol.first_messages import FirstMessages
from lbctl.xds.protocol.host_streams import HostStream, HostStreams
from lbctl.xds.protocol.idle_connections import IdleConnections
from lbctl.xds.protocol.load_reports import LoadReceiver
from lbctl.xds.protocol.load_session import LoadSession
from lbctl.xds.protocol.node_status import NodeStatus, StreamObserver
from lbctl.xds.protocol.peer import Context, host_of
from lbctl.xds.protocol.private_socket import BindError, PrivateSocket
from lbctl.xds.protocol.report_session import ReportSession
from lbctl.xds.protocol.request_log_session import RequestLogSession
from lbctl.xds.protocol.request_logs import LatencyReceiver
from lbctl.xds.protocol.server_context import ServerContext, Service
from lbctl.xds.protocol.session import StreamSession
from lbctl.xds.protocol.unread_messages import UnreadMessages
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS

if TYPE_CHECKING:
    from lbctl.xds.protocol.revocation import RevokedClients

_SERVICES: dict[str, tuple[str, str | None]] = {
    "envoy.service.discovery.v3.AggregatedDiscoveryService": ("AggregatedResources", None),
    "envoy.service.cluster.v3.ClusterDiscoveryService": ("Clusters", CDS),
    "envoy.service.endpoint.v3.EndpointDiscoveryService": ("Endpoints", EDS),
    "envoy.service.listener.v3.ListenerDiscoveryService": ("Listeners", LDS),
    "envoy.service.route.v3.RouteDiscoveryService": ("Routes", RDS),
    "envoy.service.secret.v3.SecretDiscoveryService": ("Secrets", SDS),
}
_MAX_WAITING = 1_000
"""Maximum number of streams that wait for their turn for the first message."""
_SPREAD = 0.8
"""The fraction of the grace period over which the ends of many streams are spread."""
_FULL_SPREAD_STREAMS = 100
"""Number of streams from which the whole fraction is used."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the server.

    `streams` applies to the whole server, `connection_streams` to one connection. `host_streams` applies to a host
    whose clients have no certificate, and `first_messages` is the number of these clients whose first message is read
    at the same time. `message` is the maximum size of a request in bytes. `patience` is the timeout in seconds for a
    stream's first request, and `handshake` for a TLS handshake.
    """

    streams: int = 10_000
    connection_streams: int = 1_000
    host_streams: int = 512
    first_messages: int = 10
    message: int = 4 * 1024 * 1024
    patience: float = 10.0
    read_within: float = 120.0
    """Timeout in seconds for a client to read a message. After that, its connection is closed."""
    handshake: float = 20.0
    idle: float = 300.0
    """Seconds after which a connection without a stream is closed."""
    ping: float = 30.0
    """Seconds between keep-alive pings."""
    ping_answer: float = 20.0
    """Seconds to wait for the response to a keep-alive ping."""


class XdsServer:
    """The xDS server. Call all methods on the event loop that `start` ran on.

    `tls` contains absolute paths. `socket`: path of a Unix socket in addition to the TCP port, for proxies on this
    machine; only its owner can connect to it. `secrets_in_clear`: every client over TCP may receive the fleet's
    secrets, with or without a client certificate. `load_receiver` receives load reports and `latency_receiver` the
    latencies in request logs; without them, these services are not offered. While `held` is true, a new stream waits
    for the next publication, for at most one second.
    """

    def __init__(
        self,
        node_status: NodeStatus,
        observer: StreamObserver,
        *,
        bind: Address,
        tls: ServerTls | None,
        socket: Path | None = None,
        secrets_in_clear: bool = False,
        settle: float = 1.0,
        limits: Limits | None = None,
        subscription_limits: SubscriptionLimits | None = None,
        load_receiver: LoadReceiver | None = None,
        latency_receiver: LatencyReceiver | None = None,
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        self._bind = bind
        self._tls = tls
        self._socket: PrivateSocket | None = None
        if bind.path or socket:
            self._socket = PrivateSocket(Path(bind.path) if bind.path else socket or Path())
        self.socket_problem = ""
        """The reason why the Unix socket next to the TCP port could not be opened; otherwise empty."""
        self._limits = limits or Limits()
        authenticated = tls is not None and tls.client_ca is not None
        self._context = ServerContext(
            node_status,
            observer,
            settle,
            self._limits.patience,
            self._limits.read_within,
            FirstMessages(self._limits.first_messages, _MAX_WAITING),
            UnreadMessages(self._busy),
            authenticated,
            secrets_in_clear or authenticated,
            self.socket,
            Budget(subscription_limits or SubscriptionLimits()),
            held,
        )
        self._sessions: set[StreamSession] = set()
        self._load_receiver = load_receiver
        self._latency_receiver = latency_receiver
        self._report_sessions: set[ReportSession] = set()
        self._credentials: ServerCredentials | None = None
        self._revoked: Sequence[RevokedClients] = ()
        self._server: grpc.aio.Server | None = None
        self._host_streams = HostStreams(self._limits.host_streams)
        self._watches: list[asyncio.Task[None]] = []

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._sessions) + len(self._report_sessions)

    @property
    def socket(self) -> str:
        """Path of the Unix socket on which the server listens, or an empty string."""
        return str(self._socket.path) if self._socket and not self.socket_problem else ""

    async def start(self) -> int:
        """Start the server and return its port (0 for a Unix socket). The system chooses a port if 0 was requested.

        Raises BindError or CredentialsError.
        """
        self._credentials = await asyncio.to_thread(ServerCredentials, self._tls) if self._tls else None
        self._revoked = self._credentials.interceptors() if self._credentials else ()
        server = grpc.aio.server(options=_options(self._limits), interceptors=self._revoked)
        server.add_generic_rpc_handlers([self._handlers(*item) for item in _SERVICES.items()])
        server.add_generic_rpc_handlers(list(self._report_handlers()))
        port = self._listen(server)
        await server.start()
        self._server = server
        if port:
            works = (IdleConnections(port, self._busy).run(), self._context.unread.run(port))
            self._watches = [asyncio.create_task(work) for work in works]
        return port

    def _busy(self) -> set[Client]:
        """Return the TCP clients with streams."""
        return {client for session in self._all_sessions() if (client := session.client) is not None}

    def _listen(self, server: grpc.aio.Server) -> int:
        """Bind the addresses. Raises BindError, except for a socket next to the TCP port."""
        try:
            if self._bind.path and self._socket:
                self._socket.open(partial(self._add_port, server))
                return 0
            port = self._add_port(server, str(self._bind))
        except RuntimeError as error:
            raise BindError(f"cannot listen on {self._bind}{_bind_failure(self._bind)}") from error
        if self._socket is not None:
            try:
                self._socket.open(server.add_insecure_port)
            except (BindError, RuntimeError) as error:
                self.socket_problem = str(error)
                self._context.lose_socket()
        return port

    def _add_port(self, server: grpc.aio.Server, where: str) -> int:
        if self._credentials is None:
            return server.add_insecure_port(where)
        return server.add_secure_port(where, self._credentials.server())

    def publish(self, snapshot: CachedSnapshot) -> None:
        """Offer the snapshot to every stream and return; each stream then sends it at its own pace."""
        publication = self._context.publish(snapshot)
        for session in self._all_sessions():
            session.use_publication(publication)

    def recall(self, snapshot: CachedSnapshot) -> None:
        """Set the snapshot that the previous process published.

        Nodes that have not connected yet are assumed to have it: nothing in it is removed from them before their routes
        have changed.
        """
        self._context.recall(snapshot)

    def retry_rejected(self) -> int:
        """Send rejected resources once more, and return their number across all nodes."""
        return sum(session.retry_rejected() for session in tuple(self._sessions))

    def check_certificate(self) -> str:
        """Reload changed files immediately instead of at the next handshake, and end the streams of revoked clients.

        Returns the problem with the files, or an empty string.
        """
        problem = self._credentials.check() if self._credentials else ""
        for revoked in self._revoked:
            for session in self._all_sessions():
                if reason := revoked.refusal(session.context):
                    session.end(grpc.StatusCode.UNAUTHENTICATED, f"the client certificate is rejected: {reason}")
        return problem

    async def stop(self, grace: float) -> None:
        """Stop accepting streams, and end the open ones over at most `grace` seconds.

        This way, the clients do not all reconnect to the next server at the same time.
        """
        for watch in self._watches:
            watch.cancel()
        if self._server is None:
            return
        closing = asyncio.create_task(self._server.stop(grace))
        open_sessions = self._all_sessions()
        spread = grace * _SPREAD * min(1.0, len(open_sessions) / _FULL_SPREAD_STREAMS)
        loop = asyncio.get_running_loop()
        for session in open_sessions:
            loop.call_later(random.uniform(0, spread), session.end, grpc.StatusCode.UNAVAILABLE, "shutting down")
        await closing
        if self._socket is not None:
            self._socket.close()
        await await_grpc_tasks()

    def _all_sessions(self) -> list[StreamSession | ReportSession]:
        return [*self._sessions, *self._report_sessions]

    def _handlers(self, name: str, service: tuple[str, str | None]) -> grpc.GenericRpcHandler:
        suffix, only = service
        methods = {f"{verb}{suffix}": Service(verb == "Delta", only) for verb in ("Stream", "Delta")}
        return grpc.method_handlers_generic_handler(
            name, {method: _method(partial(self._serve, service_method)) for method, service_method in methods.items()}
        )

    async def _serve(self, service: Service, _: object, context: Context) -> None:
        await self._check_limit(context)
        session = StreamSession(self._context, service, context)
        self._sessions.add(session)
        self._context.observer.connected(service.kind)
        try:
            with self._counted(context, session):
                await session.run()
        finally:
            self._sessions.discard(session)
            self._context.observer.disconnected(service.kind)

    def _report_handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        """Yield the services for reports from nodes."""
        if self._load_receiver is not None:
            load = partial(self._receive, load_reports.KIND, partial(LoadSession, self._context, self._load_receiver))
            methods = {load_reports.METHOD: _method(load)}
            yield grpc.method_handlers_generic_handler(load_reports.SERVICE, methods)
        if self._latency_receiver is not None:
            session = partial(RequestLogSession, self._context, self._latency_receiver)
            methods = {request_logs.METHOD: _method(partial(self._receive, request_logs.KIND, session))}
            yield grpc.method_handlers_generic_handler(request_logs.SERVICE, methods)

    async def _receive(
        self, kind: str, session_of: Callable[[Context], ReportSession], _: object, context: Context
    ) -> None:
        await self._check_limit(context)
        session = session_of(context)
        self._report_sessions.add(session)
        self._context.observer.connected(kind)
        try:
            with self._counted(context, session):
                await session.run()
        finally:
            self._report_sessions.discard(session)
            self._context.observer.disconnected(kind)

    @contextmanager
    def _counted(self, context: Context, session: HostStream) -> Iterator[None]:
        """Count the stream towards its host's limit, unless the client is identified by more than its host."""
        if self._context.identifies(context):
            yield
            return
        host = host_of(context)
        self._host_streams.enter(host, session)
        try:
            yield
        finally:
            self._host_streams.leave(host, session)

    async def _check_limit(self, context: Context) -> None:
        """End a stream that exceeds the limit."""
        if self.streams >= self._limits.streams:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._limits.streams} streams are already open")


def _bind_failure(address: Address) -> str:
    """Return `:

    REASON` with the operating system's reason why the server cannot listen on the address. gRPC does not report the
    reason.

    The result is empty if the address has become available.
    """
    if address.path:
        return ""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
    except OSError as error:
        return f": {reason_of(error)}"
    return ""


def _method(serve: Callable[[object, Context], Awaitable[None]]) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return a handler without serialisers: the session encodes and decodes the bytes itself."""
    return grpc.stream_stream_rpc_method_handler(serve)


def _options(limits: Limits) -> list[tuple[str, int]]:
    """Return the gRPC options that allow Envoy to ping at any rate, even without a stream, and detect dead peers."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", limits.connection_streams),
        ("grpc.max_receive_message_length", limits.message),
        ("grpc.per_message_decompression", 0),  # Envoy does not compress requests; a small one may expand
        ("grpc.http2.bdp_probe", 0),  # otherwise the window of a client that sends fast grows
        ("grpc.max_send_message_length", -1),
        ("grpc.server_handshake_timeout_ms", int(limits.handshake * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.idle * 1000)),
        ("grpc.keepalive_time_ms", int(limits.ping * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.ping_answer * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ]
