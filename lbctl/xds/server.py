"""The gRPC server: every discovery service of Envoy's, with one `Session` a stream.

Nothing is answered before the first `publish`: an empty answer would take away what proxies already have. The server
knows no files and decides nothing; what to serve is handed to it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import grpc

from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls
from lbctl.xds.cache import Edition
from lbctl.xds.credentials import Credentials
from lbctl.xds.ledger import Ledger, Observer
from lbctl.xds.publication import Publication
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS
from lbctl.xds.session import Context, House, Service, Session

_SERVICES: dict[str, tuple[str, str | None]] = {
    "envoy.service.discovery.v3.AggregatedDiscoveryService": ("AggregatedResources", None),
    "envoy.service.cluster.v3.ClusterDiscoveryService": ("Clusters", CDS),
    "envoy.service.endpoint.v3.EndpointDiscoveryService": ("Endpoints", EDS),
    "envoy.service.listener.v3.ListenerDiscoveryService": ("Listeners", LDS),
    "envoy.service.route.v3.RouteDiscoveryService": ("Routes", RDS),
    "envoy.service.secret.v3.SecretDiscoveryService": ("Secrets", SDS),
}
_SPREAD = 0.8
"""Part of the grace over which many streams are ended."""
_HURRY = 100
"""From so many streams on, all of it is used."""


class BindError(Exception):
    """The address cannot be had; the words say which."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`streams`: of the whole server; `connection_streams`: of one connection; `message`: bytes of a request;
    `patience`: seconds within which a stream's first request must come; `handshake`: and a connection's TLS."""

    streams: int = 10_000
    connection_streams: int = 1_000
    message: int = 4 * 1024 * 1024
    patience: float = 10.0
    handshake: float = 20.0
    idle: float = 300.0
    """Seconds after which a connection without a stream is closed."""
    ping: float = 30.0
    ping_answer: float = 20.0
    """Seconds of silence until a proxy is asked whether it lives, and that it has to answer."""


class Server:
    """`tls` holds absolute paths. All methods belong to the event loop that `start` ran on."""

    def __init__(
        self,
        ledger: Ledger,
        observer: Observer,
        *,
        bind: Address,
        tls: ServerTls | None,
        settle: float = 1.0,
        limits: Limits | None = None,
    ) -> None:
        self._bind = bind
        self._tls = tls
        self._limits = limits or Limits()
        self._house = House(ledger, observer, settle, self._limits.patience)
        self._sessions: set[Session] = set()
        self._credentials: Credentials | None = None
        self._server: grpc.aio.Server | None = None

    @property
    def streams(self) -> int:
        """That stand now."""
        return len(self._sessions)

    async def start(self) -> int:
        """The port, the system's choice if 0 was asked for (0 for a unix socket). BindError; CredentialsError."""
        self._credentials = await asyncio.to_thread(Credentials, self._tls) if self._tls else None
        server = grpc.aio.server(options=_options(self._limits))
        server.add_generic_rpc_handlers([self._handlers(*item) for item in _SERVICES.items()])
        try:
            if self._credentials is None:
                port = server.add_insecure_port(str(self._bind))
            else:
                port = server.add_secure_port(str(self._bind), self._credentials.server())
        except RuntimeError as error:
            raise BindError(f"cannot listen on {self._bind}") from error
        await server.start()
        self._server = server
        return 0 if self._bind.path else port

    def publish(self, edition: Edition) -> None:
        """Offers it to every stream and returns; the sending goes on by itself, each stream at its own pace."""
        house = self._house
        house.publication = Publication(edition, house.publication)
        house.remembered.forget()
        for session in tuple(self._sessions):
            session.follow(house.publication)

    def recall(self, edition: Edition) -> None:
        """The process before this one served that: nodes that this one has not met yet have it, and what it holds is
        taken from none of them before their routes have moved."""
        self._house.earlier = Publication(edition)

    def offer_again(self) -> int:
        """What nodes have refused, once more: for somebody who has removed the cause. How many resources that are, of
        every node."""
        return sum(session.again() for session in tuple(self._sessions))

    def check_certificate(self) -> str:
        """Has a changed certificate read now, not at the next handshake. What is wrong with its files, if anything."""
        return self._credentials.check() if self._credentials else ""

    async def stop(self, grace: float) -> None:
        """No new streams; those that stand end over at most `grace` seconds, not all at once: all come back at once
        to whoever serves next."""
        if self._server is None:
            return
        closing = asyncio.create_task(self._server.stop(grace))
        standing = tuple(self._sessions)
        spread = grace * _SPREAD * min(1.0, len(standing) / _HURRY)
        loop = asyncio.get_running_loop()
        for session in standing:
            loop.call_later(random.uniform(0, spread), session.end, grpc.StatusCode.UNAVAILABLE, "shutting down")
        await closing
        await _library_at_rest()

    def _handlers(self, name: str, service: tuple[str, str | None]) -> grpc.GenericRpcHandler:
        suffix, only = service
        methods = {f"{verb}{suffix}": Service(verb == "Delta", only) for verb in ("Stream", "Delta")}
        return grpc.method_handlers_generic_handler(
            name, {method: _method(partial(self._serve, told)) for method, told in methods.items()}
        )

    async def _serve(self, service: Service, _: object, context: Context) -> None:
        if len(self._sessions) >= self._limits.streams:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._limits.streams} streams stand already")
        session = Session(self._house, service, context)
        self._sessions.add(session)
        self._house.observer.connected(service.kind)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            self._house.observer.disconnected(service.kind)


def _method(serve: Callable[[object, Context], Awaitable[None]]) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Bytes in and bytes out: nothing is read or written by the library."""
    return grpc.stream_stream_rpc_method_handler(serve)


async def _library_at_rest() -> None:
    """Its tasks end a moment after their calls; were the loop closed before, each would print a trace."""
    for _ in range(50):
        if not any(task.get_name() == "rpc_task" for task in asyncio.all_tasks()):
            return
        await asyncio.sleep(0.01)


def _options(limits: Limits) -> list[tuple[str, int]]:
    """Envoy may ping as it likes, connections without a stream are no offence, and dead peers are found."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", limits.connection_streams),
        ("grpc.max_receive_message_length", limits.message),
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
