"""A proxy's side of ADS, for people: what a control plane has sent to a node, and what the node says to it next.

State of the world, as every ADS server speaks it. Clusters and listeners are asked for whole; the endpoints, routes and
secrets that they name are asked for by name, and dropped when nothing names them any more. It shares no code with the
server and decodes with envoy-data-plane alone. No I/O here; `client.read` holds the stream.
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
from lbctl.xds.decode import DecodeError, decode, parse, references, resource_name
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS, TYPES

_WRAPPED = "type.googleapis.com/envoy.service.discovery.v3.Resource"
_WHOLE = (CDS, LDS)
_NAMED_BY = {EDS: (CDS,), RDS: (LDS,), SDS: (CDS, LDS)}
_INVALID_ARGUMENT = 3


@dataclass(frozen=True, slots=True)
class Node:
    """Who asks."""

    id: str
    cluster: str = "lbctl"
    region: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Received:
    """A resource as it came last. `version`: of its response; `names`: (type, name) of what it wants itself."""

    name: str
    version: str
    body: bytes
    message: Message
    names: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Change:
    """What a message changed, names in order. `version` is empty where nothing named a resource any more;
    `refused`: what is wrong with the message, of which nothing was taken."""

    type_url: str
    version: str
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    refused: str = ""


@dataclass(slots=True)
class _Subscription:
    """`names`: what is asked for; None for everything. `nonce`: of the stream's last response."""

    names: frozenset[str] | None
    nonce: str = ""
    version: str = ""
    answered: bool = False
    resources: dict[str, Received] = field(default_factory=dict)


class Reader:
    """What one node has received, and what it says next. No I/O; it lives on when a stream breaks."""

    def __init__(self, node: Node, wanted: Iterable[str] = TYPES) -> None:
        """`wanted`: type URLs; the types that name their resources are read as well."""
        needed = {kind for each in wanted for kind in (each, *_NAMED_BY.get(each, ()))}
        self._node = _wire(node)
        self._by_type = {
            kind: _Subscription(None if kind in _WHOLE else frozenset()) for kind in TYPES if kind in needed
        }

    def resources(self, type_url: str) -> Mapping[str, Received]:
        """By name, in order."""
        found = self._by_type.get(type_url)
        return dict(sorted(found.resources.items())) if found else {}

    def waiting(self) -> dict[str, tuple[str, ...]]:
        """Type → the names that have not come; no names for a type that is asked for whole. Empty: all is there."""
        found: dict[str, tuple[str, ...]] = {}
        for kind, wanted in self._by_type.items():
            names = tuple(sorted((wanted.names or frozenset()) - wanted.resources.keys()))
            if names or (wanted.names is None and not wanted.answered):
                found[kind] = names
        return found

    def open(self) -> list[bytes]:
        """The first requests on a new stream."""
        for wanted in self._by_type.values():
            wanted.nonce = ""
        return [self._request(kind) for kind, wanted in self._by_type.items() if wanted.names is None or wanted.names]

    def take(self, message: bytes) -> tuple[list[Change], list[bytes]]:
        """What a response changes, and the requests that answer it. Raises DecodeError where it is no response."""
        response = parse(DiscoveryResponse, message)
        wanted = self._by_type.get(response.type_url)
        if wanted is None:
            return [], []
        wanted.nonce = response.nonce
        try:
            found = _found(response, wanted)
        except DecodeError as error:
            refused = Change(response.type_url, response.version_info, refused=str(error))
            return [refused], [self._request(response.type_url, str(error))]
        change = _kept(response, wanted, found)
        followed, requests = self._follow() if response.type_url in _WHOLE else ([], [])
        return [item for item in (change, *followed) if _says(item)], [self._request(response.type_url), *requests]

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

    def _follow(self) -> tuple[list[Change], list[bytes]]:
        """Asks for what clusters and listeners name now, and forgets what they do not name any more."""
        changes, requests = [], []
        for kind, parents in _NAMED_BY.items():
            wanted = self._by_type.get(kind)
            if wanted is None:
                continue
            names = frozenset(
                name
                for parent in parents
                for item in self._by_type[parent].resources.values()
                for of, name in item.names
                if of == kind
            )
            if names == wanted.names:
                continue
            gone = tuple(sorted(wanted.resources.keys() - names))
            wanted.names = names
            wanted.resources = {name: item for name, item in wanted.resources.items() if name in names}
            changes.append(Change(kind, "", removed=gone))
            requests.append(self._request(kind))
        return changes, requests


def _wire(node: Node) -> WireNode:
    return WireNode(
        id=node.id,
        cluster=node.cluster,
        locality=Locality(region=node.region, zone=node.zone) if node.region or node.zone else None,
        user_agent_name="lbctl",
        user_agent_version=__version__,
    )


def _found(response: DiscoveryResponse, wanted: _Subscription) -> dict[str, Received]:
    """The response's resources by name, without those that nobody asked for. Raises DecodeError."""
    known = {item.body: item for item in wanted.resources.values()}
    found: dict[str, Received] = {}
    for packed in response.resources:
        item = _received(packed, response, known)
        if not item.name:
            raise DecodeError(f"a resource of {response.type_url} has no name")
        if item.name in found:
            raise DecodeError(f"{item.name} stands twice in one response")
        found[item.name] = item
    return {name: item for name, item in found.items() if wanted.names is None or name in wanted.names}


def _received(packed: Packed, response: DiscoveryResponse, known: Mapping[bytes, Received]) -> Received:
    """The resource, which may stand in an envelope. Bytes that are there already are not decoded again.

    Raises DecodeError."""
    name = ""
    if packed.type_url == _WRAPPED:
        envelope = parse(Wrapped, packed.value)
        name, packed = envelope.name, envelope.resource or Packed()
    if packed.type_url != response.type_url:
        raise DecodeError(f"a response of {response.type_url} holds a {packed.type_url or 'nothing'}")
    before = known.get(packed.value)
    if before and name in ("", before.name):
        return replace(before, version=response.version_info)
    message = decode(packed.type_url, packed.value)
    name = name or resource_name(message)
    return Received(name, response.version_info, packed.value, message, frozenset(references(message)))


def _kept(response: DiscoveryResponse, wanted: _Subscription, found: dict[str, Received]) -> Change:
    """A response of a type that is asked for whole is everything; of another, what it does not hold stays."""
    before, whole = wanted.resources, wanted.names is None
    wanted.resources = found if whole else before | found
    wanted.version, wanted.answered = response.version_info, True
    return Change(
        response.type_url,
        response.version_info,
        added=tuple(sorted(found.keys() - before.keys())),
        changed=tuple(sorted(name for name in found.keys() & before.keys() if found[name].body != before[name].body)),
        removed=tuple(sorted(before.keys() - found.keys())) if whole else (),
    )


def _says(change: Change) -> bool:
    return bool(change.added or change.changed or change.removed or change.refused)
