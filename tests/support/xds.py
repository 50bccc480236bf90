"""Support for tests of the xDS server: snapshots without a fleet, an observer, and real gRPC clients."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.service.discovery.v3 import discovery_pb2 as pb

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.ir.address import Address
from lbctl.ir.proxies import Control, Proxy
from lbctl.ir.topology import Topology
from lbctl.targets.load import Loaded, load
from lbctl.xds.protocol.node_status import NodeRow, NodeStatus
from lbctl.xds.protocol.server import XdsServer
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS, TYPES, Resource, Resources

LOOPBACK = Address("127.0.0.1", 0)
ADS = "envoy.service.discovery.v3.AggregatedDiscoveryService"
METHODS = {
    None: (ADS, "AggregatedResources"),
    CDS: ("envoy.service.cluster.v3.ClusterDiscoveryService", "Clusters"),
    EDS: ("envoy.service.endpoint.v3.EndpointDiscoveryService", "Endpoints"),
    LDS: ("envoy.service.listener.v3.ListenerDiscoveryService", "Listeners"),
    RDS: ("envoy.service.route.v3.RouteDiscoveryService", "Routes"),
    SDS: ("envoy.service.secret.v3.SecretDiscoveryService", "Secrets"),
}


def load_text(text: str) -> Loaded:
    """Return the fleet of this YAML, loaded like a file. It must be valid."""
    diagnostics = Diagnostics()
    loaded = load(["-"], diagnostics, stdin=io.BytesIO(text.encode()))
    assert loaded is not None, list(map(str, diagnostics))
    return loaded


def cluster(name: str, body: str = "") -> Resource:
    return Resource(CDS, name, Cluster(name=name, alt_stat_name=body).SerializeToString(), ("pools", name))


def route(name: str, body: str = "") -> Resource:
    message = RouteConfiguration(name=name, request_headers_to_remove=[body] if body else [])
    return Resource(RDS, name, message.SerializeToString(), ("listeners", name))


def content(*resources: Resource) -> Resources:
    return Resources({kind: {item.name: item for item in resources if item.type_url == kind} for kind in TYPES})


class CachedSnapshot:
    """A replacement for the snapshot of `lbctl.xds.build`. `parts` are the resources of single proxies, by name."""

    def __init__(
        self,
        version: str,
        *resources: Resource,
        proxies: tuple[Proxy, ...] = (),
        parts: Mapping[str, Resources] | None = None,
    ) -> None:
        self.version = version
        self.snapshot = SimpleNamespace(topology=Topology((), (), (), proxies, Control()))
        self.built_for: list[Proxy] = []
        self._all = content(*resources)
        self._parts = parts or {}

    def resources(self, proxy: Proxy) -> Resources:
        self.built_for.append(proxy)
        return self._parts.get(proxy.name, self._all)

    def redacted(self, words: str) -> str:
        return words.replace("s3cret", "…")

    def nack_diagnostic(self, type_url: str, name: str, words: str) -> Diagnostic:
        return Diagnostic("LB999", self.redacted(words), Position("fleet.yaml", 7), ("pools", name))


@dataclass
class RecordingObserver:
    """An observer that records all events."""

    streams: list[str] = field(default_factory=list)
    pushes: list[tuple[str, int, int]] = field(default_factory=list)
    acks: list[tuple[str, float]] = field(default_factory=list)
    nacks: list[str] = field(default_factory=list)
    unmatched_ids: list[str] = field(default_factory=list)
    failures: int = 0

    def connected(self, kind: str) -> None:
        self.streams.append(kind)

    def disconnected(self, kind: str) -> None:
        self.streams.remove(kind)

    def pushed(self, type_short: str, resources: int, size: int) -> None:
        self.pushes.append((type_short, resources, size))

    def acked(self, type_short: str, seconds: float) -> None:
        self.acks.append((type_short, seconds))

    def nacked(self, type_short: str) -> None:
        self.nacks.append(type_short)

    def unmatched(self, node_id: str) -> None:
        self.unmatched_ids.append(node_id)

    def failed(self) -> None:
        self.failures += 1


class Running:
    """A server, its status ledger and its observer; the system chooses `port`."""

    def __init__(self, server: XdsServer, ledger: NodeStatus, observer: RecordingObserver, port: int) -> None:
        self.server = server
        self.ledger = ledger
        self.observer = observer
        self.port = port

    def publish(self, edition: CachedSnapshot) -> None:
        self.server.publish(edition)  # type: ignore[arg-type]

    def rows(self) -> list[NodeRow]:
        return self.ledger.proxies()

    def row(self, node: str) -> NodeRow:
        (row,) = (item for item in self.rows() if item.node == node)
        return row


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Running]:
    ledger, observer = NodeStatus(), RecordingObserver()
    server = XdsServer(ledger, observer, **{"bind": LOOPBACK, "tls": None, "settle": 0.05, **options})
    port = await server.start()
    try:
        yield Running(server, ledger, observer, port)
    finally:
        await server.stop(0.2)


class Client:
    """A scripted client with one stream."""

    def __init__(self, channel: grpc.aio.Channel, node: str, *, delta: bool, only: str | None) -> None:
        service, method = METHODS[only]
        call = channel.stream_stream(f"/{service}/{'Delta' if delta else 'Stream'}{method}")
        self.call = call()
        self._delta = delta
        self._node: str | None = node

    def request(self, type_url: str, **more: Any) -> Any:
        """Return a request; the first request of a stream contains the node."""
        message = pb.DeltaDiscoveryRequest(type_url=type_url, **more) if self._delta else pb.DiscoveryRequest(
            type_url=type_url, **more
        )  # fmt: skip
        if self._node is not None:
            message.node.id, self._node = self._node, None
        return message

    async def send(self, message: Any) -> None:
        await self.call.write(message.SerializeToString())

    async def ask(self, type_url: str, *names: str) -> None:
        key = "resource_names_subscribe" if self._delta else "resource_names"
        await self.send(self.request(type_url, **{key: names}))

    async def read(self, seconds: float = 30.0) -> Any:
        async with asyncio.timeout(seconds):
            data = await self.call.read()
        assert data is not grpc.aio.EOF, await self.status()
        return pb.DeltaDiscoveryResponse.FromString(data) if self._delta else pb.DiscoveryResponse.FromString(data)

    async def ack(self, response: Any, *names: str, error: str | None = None) -> None:
        if self._delta:
            message = self.request(response.type_url, response_nonce=response.nonce)
        else:
            message = self.request(
                response.type_url,
                response_nonce=response.nonce,
                resource_names=names,
                version_info=response.version_info if error is None else "",
            )
        if error is not None:
            message.error_detail.message = error
        await self.send(message)

    async def fetch(self, type_url: str, *names: str) -> list[str]:
        """Send a request, acknowledge the response, and return the names of its resources."""
        await self.ask(type_url, *names)
        return await self.take(*names)

    async def take(self, *names: str) -> list[str]:
        response = await self.read()
        await self.ack(response, *names)
        return self.names(response)

    def names(self, response: Any) -> list[str]:
        if self._delta:
            return [item.name for item in response.resources]
        return [_name(item) for item in response.resources]

    async def silent(self, seconds: float = 0.2) -> bool:
        """Return whether no response arrives. The stream cannot be read from afterwards."""
        try:
            await self.read(seconds)
        except TimeoutError:
            return True
        return False

    async def status(self) -> grpc.StatusCode:
        """Return the status of the stream, after all responses that came before it."""
        async with asyncio.timeout(30):
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            return await self.call.code()


def _name(item: Any) -> str:
    kinds = {CDS: Cluster, RDS: RouteConfiguration}
    return str(kinds[item.type_url].FromString(item.value).name)


@asynccontextmanager
async def connected(
    port: int | str, node: str = "edge-1", *, delta: bool = True, only: str | None = None,
    credentials: grpc.ChannelCredentials | None = None, options: tuple[tuple[str, Any], ...] = (),
) -> AsyncIterator[Client]:  # fmt: skip
    """Open a stream on a new connection."""
    async with channel(port, credentials, options) as opened:
        yield Client(opened, node, delta=delta, only=only)


def channel(
    port: int | str, credentials: grpc.ChannelCredentials | None = None, options: tuple[tuple[str, Any], ...] = ()
) -> grpc.aio.Channel:
    address = port if isinstance(port, str) else f"127.0.0.1:{port}"
    settings = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), *options]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=settings)
    return grpc.aio.secure_channel(address, credentials, options=settings)


async def until(condition: Any, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
