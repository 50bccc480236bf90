"""The client side of ADS: tracks the resources that a control plane has sent to a node, and creates the requests.

The client uses the state-of-the-world variant, which every ADS server supports. It subscribes to clusters and listeners
with a wildcard. It subscribes by name to the endpoints, routes and secrets that clusters and listeners refer to, and
drops resources that nothing refers to anymore. It shares no code with the server and decodes messages using only
envoy-data-plane. This module does no I/O; `client.ads.read` owns the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from betterproto2 import Message
from envoy_data_plane.envoy.config.core.v3 import Locality
from envoy_data_plane.envoy.config.core.v3 import Node as WireNode
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryRequest, DiscoveryResponse
from envoy_data_plane.envoy.service.discovery.v3 import Resource as Wrapped
from envoy_data_plane.google.protobuf import Any as Packed
from envoy_data_plane.google.rpc import Status

from lbctl import __version__
from lbctl.xds.client.decode import DecodeError, decode, parse, references, resource_name
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS, TYPES

_WRAPPED = "type.googleapis.com/envoy.service.discovery.v3.Resource"
_WHOLE = (CDS, LDS)
_NAMED_BY = {EDS: (CDS,), RDS: (LDS,), SDS: (CDS, LDS)}
_INVALID_ARGUMENT = 3


@dataclass(frozen=True, slots=True)
class ClientNode:
    """The identity that the client sends: node ID, cluster and locality."""

    id: str
    cluster: str = "lbctl"
    region: str = ""
    """Not sent if empty."""
    zone: str = ""
    """Not sent if empty."""


@dataclass(frozen=True, slots=True)
class Received:
    """A resource as last received."""

    name: str
    version: str
    """Version of the response that contained it."""
    body: bytes
    """Serialised resource."""
    message: Message
    """Decoded resource."""
    names: frozenset[tuple[str, str]]
    """(type, name) of each resource that it refers to."""


@dataclass(frozen=True, slots=True)
class ResponseChange:
    """The changes made by a response. Names are sorted."""

    type_url: str
    version: str
    """Version of the response; empty if resources were dropped because they are no longer named."""
    added: tuple[str, ...] = ()
    """Names of new resources, sorted."""
    changed: tuple[str, ...] = ()
    """Names of resources with new content, sorted."""
    removed: tuple[str, ...] = ()
    """Names of removed resources, sorted."""
    refused: str = ""
    """Problem with a response that was rejected as a whole; otherwise empty."""


@dataclass(slots=True)
class _Subscription:
    """A subscription to one type. `names` is None for a wildcard; `nonce` is taken from the last response."""

    names: frozenset[str] | None
    nonce: str = ""
    version: str = ""
    answered: bool = False
    resources: dict[str, Received] = field(default_factory=dict)


class Reader:
    """The state of one node: received resources and next requests.

    The object does no I/O and outlives a broken stream.
    """

    def __init__(self, node: ClientNode, wanted: Iterable[str] = TYPES) -> None:
        """Subscribe to the `wanted` type URLs, and to the types that name their resources."""
        needed = {kind for each in wanted for kind in (each, *_NAMED_BY.get(each, ()))}
        self._node = _wire_node(node)
        self._by_type = {
            kind: _Subscription(None if kind in _WHOLE else frozenset()) for kind in TYPES if kind in needed
        }

    def resources(self, type_url: str) -> Mapping[str, Received]:
        """Return the received resources of a type by name, in order."""
        subscription = self._by_type.get(type_url)
        return dict(sorted(subscription.resources.items())) if subscription else {}

    def waiting(self) -> dict[str, tuple[str, ...]]:
        """Map each incomplete type to its missing names, or to no names for a wildcard; empty if nothing is missing."""
        missing: dict[str, tuple[str, ...]] = {}
        for kind, wanted in self._by_type.items():
            names = tuple(sorted((wanted.names or frozenset()) - wanted.resources.keys()))
            if names or (wanted.names is None and not wanted.answered):
                missing[kind] = names
        return missing

    def open(self) -> list[bytes]:
        """Return the first requests on a new stream."""
        for wanted in self._by_type.values():
            wanted.nonce = ""
        return [self._request(kind) for kind, wanted in self._by_type.items() if wanted.names is None or wanted.names]

    def take(self, message: bytes) -> tuple[list[ResponseChange], list[bytes]]:
        """Process a response. Return the resulting changes and the requests to send in reply. Raises DecodeError."""
        response = parse(DiscoveryResponse, message)
        wanted = self._by_type.get(response.type_url)
        if wanted is None:
            return [], []
        wanted.nonce = response.nonce
        try:
            resources = _resources(response, wanted)
        except DecodeError as error:
            refused = ResponseChange(response.type_url, response.version_info, refused=str(error))
            return [refused], [self._request(response.type_url, str(error))]
        change = _store(response, wanted, resources)
        followed, requests = self._update_subscriptions() if response.type_url in _WHOLE else ([], [])
        return [item for item in (change, *followed) if _is_change(item)], [self._request(response.type_url), *requests]

    def _request(self, kind: str, error: str = "") -> bytes:
        wanted = self._by_type[kind]
        return bytes(
            DiscoveryRequest(
                version_info=wanted.version,
                node=self._node,
                resource_names=sorted(wanted.names or ()),
                type_url=kind,
                response_nonce=wanted.nonce,
                error_detail=Status(code=_INVALID_ARGUMENT, message=error) if error else None,
            )
        )

    def _update_subscriptions(self) -> tuple[list[ResponseChange], list[bytes]]:
        """Subscribe to the names in the current clusters and listeners, and drop all others."""
        changes, requests = [], []
        for kind, parents in _NAMED_BY.items():
            wanted = self._by_type.get(kind)
            if wanted is None:
                continue
            names = frozenset(
                name
                for parent in parents
                for item in self._by_type[parent].resources.values()
                for referenced_kind, name in item.names
                if referenced_kind == kind
            )
            if names == wanted.names:
                continue
            gone = tuple(sorted(wanted.resources.keys() - names))
            wanted.names = names
            wanted.resources = {name: item for name, item in wanted.resources.items() if name in names}
            changes.append(ResponseChange(kind, "", removed=gone))
            requests.append(self._request(kind))
        return changes, requests


def _wire_node(node: ClientNode) -> WireNode:
    return WireNode(
        id=node.id,
        cluster=node.cluster,
        locality=Locality(region=node.region, zone=node.zone) if node.region or node.zone else None,
        user_agent_name="lbctl",
        user_agent_version=__version__,
    )


def _resources(response: DiscoveryResponse, wanted: _Subscription) -> dict[str, Received]:
    """Return the response's resources by name, ignoring those without a subscription. Raises DecodeError."""
    received = {item.body: item for item in wanted.resources.values()}
    resources: dict[str, Received] = {}
    for packed in response.resources:
        item = _received(packed, response, received)
        if not item.name:
            raise DecodeError(f"a resource in a response for {response.type_url} has no name")
        if item.name in resources:
            raise DecodeError(f"{item.name} appears twice in one response")
        resources[item.name] = item
    return {name: item for name, item in resources.items() if wanted.names is None or name in wanted.names}


def _received(packed: Packed, response: DiscoveryResponse, received: Mapping[bytes, Received]) -> Received:
    """Return the resource, unwrapped if it has an envelope. Bytes that were received before are not decoded again.

    Raises DecodeError.
    """
    name = ""
    if packed.type_url == _WRAPPED:
        envelope = parse(Wrapped, packed.value)
        name, packed = envelope.name, envelope.resource or Packed()
    if packed.type_url != response.type_url:
        raise DecodeError(f"a response for {response.type_url} contains a {packed.type_url or 'nothing'}")
    before = received.get(packed.value)
    if before and name in ("", before.name):
        return replace(before, version=response.version_info)
    message = decode(packed.type_url, packed.value)
    name = name or resource_name(message)
    return Received(name, response.version_info, packed.value, message, frozenset(references(message)))


def _store(response: DiscoveryResponse, wanted: _Subscription, resources: dict[str, Received]) -> ResponseChange:
    """Store the resources.

    A wildcard response replaces all resources. A response to a subscription by name updates only the resources that it
    contains.
    """
    before, whole = wanted.resources, wanted.names is None
    wanted.resources = resources if whole else before | resources
    wanted.version, wanted.answered = response.version_info, True
    return ResponseChange(
        response.type_url,
        response.version_info,
        added=tuple(sorted(resources.keys() - before.keys())),
        changed=tuple(
            sorted(name for name in resources.keys() & before.keys() if resources[name].body != before[name].body)
        ),
        removed=tuple(sorted(before.keys() - resources.keys())) if whole else (),
    )


def _is_change(change: ResponseChange) -> bool:
    return bool(change.added or change.changed or change.removed or change.refused)
