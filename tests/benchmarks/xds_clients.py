"""Many cheap clients of a control plane in one process, each with a separate connection.

A client uses delta ADS like Envoy: it subscribes to all clusters and listeners, to endpoints and routes by name, and
sends an ACK for each response. It stores the version of each resource, and when each name was last received.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import grpc
from envoy.service.discovery.v3 import discovery_pb2

from lbctl.xds.resource import CDS, EDS, LDS, RDS, TYPES

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a separate connection for each client
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.enable_retries", 0),
)


@dataclass(slots=True)
class Client:
    """A client. `versions`: type → name → version.

    `came`: (type, name) → time of the last receipt (`time.monotonic()`).
    """

    node: str
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    came: dict[tuple[str, str], float] = field(default_factory=dict)
    _channel: grpc.aio.Channel | None = None
    _task: asyncio.Task[None] | None = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def connect(self, target: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        """Open a stream. It reports the resources of the last stream as known."""
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        else:
            named = (*_OPTIONS, ("grpc.ssl_target_name_override", "localhost"))
            self._channel = grpc.aio.secure_channel(target, credentials, options=named)
        self._task = asyncio.get_running_loop().create_task(self._talk(self._channel))

    async def disconnect(self) -> None:
        """Close the stream and its connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
        self._task = self._channel = None

    async def has(self, wanted: Iterable[tuple[str, str]], since: float = 0.0) -> float:
        """Wait until each wanted (type, name) was received after `since`. Return the time of the last receipt."""
        keys = list(wanted)
        while any(self.came.get(key, 0.0) <= since for key in keys):
            await self.moved()
        return max(self.came[key] for key in keys)

    async def moved(self) -> None:
        """Wait for the next response. Raises the error that ended the stream."""
        assert self._task is not None
        self._moved.clear()
        woken = asyncio.ensure_future(self._moved.wait())
        await asyncio.wait((woken, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not woken.done():
            woken.cancel()
            self._task.result()
            raise ConnectionError(f"the stream of {self.node} was ended")

    def forget(self) -> None:
        self.came.clear()

    async def _talk(self, channel: grpc.aio.Channel) -> None:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)()
        subscribed = {CDS, *self.versions}  # a reconnected client requests all types at once, and may receive nothing
        for kind in sorted(subscribed, key=TYPES.index):
            await call.write(self._first(kind, node=kind == CDS))
        while isinstance(data := await call.read(), bytes):
            now = time.monotonic()
            response = discovery_pb2.DeltaDiscoveryResponse.FromString(data)
            self._take(response, now)
            acknowledged = discovery_pb2.DeltaDiscoveryRequest(
                type_url=response.type_url, response_nonce=response.nonce
            )
            await call.write(acknowledged.SerializeToString())
            follows = {CDS: (EDS, LDS), LDS: (RDS,)}.get(response.type_url, ())
            for kind in follows:
                if kind not in subscribed:
                    subscribed.add(kind)
                    await call.write(self._first(kind))
            self._moved.set()

    def _first(self, kind: str, node: bool = False) -> bytes:
        parents = {EDS: CDS, RDS: LDS}
        names = list(self.versions.get(parents[kind], ())) if kind in parents else []
        request = discovery_pb2.DeltaDiscoveryRequest(
            type_url=kind,
            resource_names_subscribe=names,
            initial_resource_versions=self.versions.get(kind, {}),
            node={"id": self.node, "cluster": "benchmark"} if node else None,
        )
        return bytes(request.SerializeToString())

    def _take(self, response: discovery_pb2.DeltaDiscoveryResponse, now: float) -> None:
        kind = response.type_url
        known = self.versions.setdefault(kind, {})
        for resource in response.resources:
            known[resource.name] = resource.version
            self.came[kind, resource.name] = now
        for name in response.removed_resources:
            known.pop(name, None)


def clients(count: int) -> list[Client]:
    return [Client(f"node-{number}") for number in range(count)]


async def all_have(each: Sequence[Client], wanted: Sequence[tuple[str, str]], since: float, patience: float) -> float:
    """Return when the last client received the last wanted resource."""
    async with asyncio.timeout(patience):
        return max(await asyncio.gather(*(client.has(wanted, since) for client in each)))
