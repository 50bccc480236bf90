"""The floor: a lower bound for the cost of a control plane in Python.

It is a bare grpc.aio server that serialises each response once and writes the same bytes to every stream. It has no
protocol state: it answers a type with all its resources, discards requests, and always uses the same nonce. Its
resources are minimal, but contain all endpoints, and a change rewrites their weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import grpc
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.message import Message

from lbctl.ir.pools import Pool
from lbctl.ir.topology import Topology
from lbctl.xds.resource import CDS, EDS, LDS, RDS
from tests.benchmarks.xds_clients import METHOD


class Floor:
    """Clusters, endpoints, listeners and routes of a fleet, in memory."""

    def __init__(self, topology: Topology) -> None:
        listeners = [item.name for item in topology.listeners]
        self._endpoints = {pool.name: _assignment(pool) for pool in topology.pools}
        messages: dict[str, dict[str, Message]] = {
            CDS: {pool.name: cluster_pb2.Cluster(name=pool.name) for pool in topology.pools},
            EDS: dict(self._endpoints),
            LDS: {name: listener_pb2.Listener(name=name) for name in listeners},
            RDS: {name: route_pb2.RouteConfiguration(name=name) for name in listeners},
        }
        self._whole = [_response(kind, _bodies(named), "0") for kind, named in messages.items()]
        self._queues: set[asyncio.Queue[bytes]] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self, credentials: grpc.ServerCredentials | None) -> int:
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._stream)
        service, name = METHOD[1:].split("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
        if credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", credentials)
        await self._server.start()
        return port

    def push(self, names: Sequence[str], weight: int) -> None:
        """Set new weights in these assignments, serialise them once, and write the bytes to every stream."""
        for name in names:
            for group in self._endpoints[name].endpoints:
                for number, endpoint in enumerate(group.lb_endpoints):
                    endpoint.load_balancing_weight.value = weight + number
        changed = {name: self._endpoints[name] for name in names}
        data = _response(EDS, _bodies(changed), str(weight))
        for queue in self._queues:
            queue.put_nowait(data)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def _stream(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        await context.read()
        reading = asyncio.ensure_future(_drain(context))
        self._queues.add(queue)
        try:
            for data in self._whole:
                await context.write(data)
            while True:
                await context.write(await queue.get())
        finally:
            self._queues.discard(queue)
            reading.cancel()


async def _drain(context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
    while await context.read() is not grpc.aio.EOF:
        continue


def _assignment(pool: Pool) -> endpoint_pb2.ClusterLoadAssignment:
    message = endpoint_pb2.ClusterLoadAssignment(cluster_name=pool.name)
    group = message.endpoints.add()
    for replica in pool.replicas:
        endpoint = group.lb_endpoints.add()
        where = endpoint.endpoint.address.socket_address
        where.address, where.port_value = replica.address.host, replica.address.port
        endpoint.endpoint.hostname = replica.name
        endpoint.load_balancing_weight.value = 1
    return message


def _bodies(named: Mapping[str, Message]) -> dict[str, bytes]:
    return {name: message.SerializeToString() for name, message in named.items()}


def _response(kind: str, bodies: Mapping[str, bytes], version: str) -> bytes:
    message = discovery_pb2.DeltaDiscoveryResponse(type_url=kind, nonce="1", system_version_info=version)
    for name, body in bodies.items():
        message.resources.add(name=name, version=version, resource={"type_url": kind, "value": body})
    return bytes(message.SerializeToString())
