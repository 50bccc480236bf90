"""A small state-of-the-world ADS server on xds-protos, to test `lbctl xds`.

It answers subscriptions, sends changes, and records every request.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures

import grpc
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.message import Message

METHODS = "envoy.service.discovery.v3.AggregatedDiscoveryService"
CDS = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
EDS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
LDS = "type.googleapis.com/envoy.config.listener.v3.Listener"
RDS = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
SDS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

Content = Mapping[str, Mapping[str, Message]]
"""Type → name → resource."""
_WILDCARD_TYPES = (CDS, LDS)


def response(type_url: str, version: str, nonce: str, *resources: Message) -> discovery_pb2.DiscoveryResponse:
    message = discovery_pb2.DiscoveryResponse(type_url=type_url, version_info=version, nonce=nonce)
    for resource in resources:
        message.resources.add().Pack(resource)
    return message


class AdsServer:
    """The server. Without content it sends nothing; `refuse` is a status with which every stream ends immediately."""

    def __init__(
        self,
        content: Content | None = None,
        *,
        credentials: grpc.ServerCredentials | None = None,
        refuse: tuple[grpc.StatusCode, str] | None = None,
        port: int = 0,
    ) -> None:
        self.requests: list[discovery_pb2.DiscoveryRequest] = []
        self.peers: list[Mapping[str, list[bytes]]] = []
        self._content, self._refuse, self._version = content, refuse, 1
        self._streams: list[queue.SimpleQueue[discovery_pb2.DiscoveryRequest | str | None]] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        handler = grpc.stream_stream_rpc_method_handler(
            self._stream,
            discovery_pb2.DiscoveryRequest.FromString,
            discovery_pb2.DiscoveryResponse.SerializeToString,
        )
        services = {"StreamAggregatedResources": handler}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHODS, services),))
        address = f"127.0.0.1:{port}"
        if credentials:
            self.port = self._server.add_secure_port(address, credentials)
        else:
            self.port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> AdsServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for events in self._streams:
            events.put(None)
        self._server.stop(0).wait()

    def publish(self, content: Content) -> None:
        self._version += 1
        self._content = content
        for events in self._streams:
            events.put("changed")

    def requests_for(self, type_url: str) -> list[discovery_pb2.DiscoveryRequest]:
        return [item for item in self.requests if item.type_url == type_url]

    def _stream(
        self, requests: Iterator[discovery_pb2.DiscoveryRequest], context: grpc.ServicerContext
    ) -> Iterator[discovery_pb2.DiscoveryResponse]:
        self.peers.append(context.auth_context())
        if self._refuse:
            context.abort(*self._refuse)
        events: queue.SimpleQueue[discovery_pb2.DiscoveryRequest | str | None] = queue.SimpleQueue()
        self._streams.append(events)
        threading.Thread(target=_pump, args=(requests, events.put), daemon=True).start()
        names: dict[str, tuple[str, ...]] = {}
        sent: dict[str, dict[str, bytes]] = {}
        while (event := events.get()) is not None:
            due = tuple(names)
            if isinstance(event, discovery_pb2.DiscoveryRequest):
                self.requests.append(event)
                wanted = tuple(event.resource_names)
                due = () if names.get(event.type_url) == wanted else (event.type_url,)
                names[event.type_url] = wanted
            for type_url in due:
                resources = self._matching(type_url, names[type_url])
                if resources is not None and resources != sent.get(type_url):
                    sent[type_url] = resources
                    yield self._response(type_url, tuple(resources))

    def _matching(self, type_url: str, names: tuple[str, ...]) -> dict[str, bytes] | None:
        if self._content is None:
            return None
        offered = self._content.get(type_url, {})
        resources = {
            name: offered[name].SerializeToString(deterministic=True)
            for name in sorted(offered)
            if type_url in _WILDCARD_TYPES or name in names
        }
        return resources if resources or type_url in _WILDCARD_TYPES else None

    def _response(self, type_url: str, names: tuple[str, ...]) -> discovery_pb2.DiscoveryResponse:
        offered = (self._content or {}).get(type_url, {})
        number = len(self.requests)
        return response(type_url, f"v{self._version}", f"{type_url}-{number}", *(offered[name] for name in names))


def _pump(requests: Iterator[discovery_pb2.DiscoveryRequest], put: Callable[[object], None]) -> None:
    try:
        for request in requests:
            put(request)
    except grpc.RpcError:
        pass
    put(None)
