"""Decodes xDS requests with Envoy's message types, and assembles responses from bytes that all streams share.

Each resource is serialised only once, and so is each response with the same content and nonce. A nonce only needs to be
unique within its stream, so streams may share one. This module does not decide which content is sent to which client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as default
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from typing import Any, NamedTuple

from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DiscoveryRequest
from google.protobuf.message import DecodeError

from lbctl.ir.proxies import ADMIN_METADATA
from lbctl.xds.resource import Resource, field

KEPT_BYTES = 4 << 20
"""Maximum size in bytes of the serialised responses that are cached for other streams."""


_MAX_ERROR_CHARACTERS = 16 * 1024
"""Maximum length of a NACK message in characters. The message is kept for as long as the rejected version."""


class StreamError(Exception):
    """The client violated the protocol: its stream ends with INVALID_ARGUMENT and this message."""


@dataclass(frozen=True, slots=True)
class XdsNode:
    """The client, as identified by the first request of its stream."""

    id: str
    """Node ID, which the client chooses."""
    cluster: str = ""
    """May be empty."""
    region: str = ""
    """May be empty."""
    zone: str = ""
    """May be empty."""
    sub_zone: str = ""
    """May be empty."""
    version: str = ""
    """Version of its build, for example `1.40.0`; may be empty."""
    agent: str = ""
    """User agent name of the client's program."""
    admin: str = ""
    """Address of an Envoy's admin interface in the format of `lbctl bootstrap`; may be empty."""


@dataclass(frozen=True, slots=True)
class XdsRequest:
    """A request of either variant.

    `names`: the whole list (state of the world), or the added names (delta). `version`: the version that a
    state-of-the-world client has accepted. `versions`: the same for a delta client, by name, in the first request of a
    type. `error`: the message of a NACK, which may be empty; None for an ACK.
    """

    node: XdsNode | None
    """Client; None if the request does not identify it."""
    type_url: str
    """Requested type."""
    nonce: str
    """Nonce of the response being acknowledged; empty in the first request."""
    names: tuple[str, ...]
    removed: tuple[str, ...] = ()
    """Names that a delta client unsubscribes from."""
    version: str = ""
    versions: Mapping[str, str] = default(default_factory=dict)
    error: str | None = None


def read(message: bytes, *, delta: bool) -> XdsRequest:
    """Decode a request. Raises `StreamError` if the bytes are not a request."""
    try:
        return (
            _delta(DeltaDiscoveryRequest.FromString(message)) if delta else _sotw(DiscoveryRequest.FromString(message))
        )
    except DecodeError as error:
        raise StreamError(f"not a {'DeltaDiscoveryRequest' if delta else 'DiscoveryRequest'}") from error


def _sotw(message: Any) -> XdsRequest:
    return XdsRequest(
        node=node_of(message),
        type_url=message.type_url,
        nonce=message.response_nonce,
        names=tuple(message.resource_names),
        version=message.version_info,
        error=_error(message),
    )


def _delta(message: Any) -> XdsRequest:
    return XdsRequest(
        node=node_of(message),
        type_url=message.type_url,
        nonce=message.response_nonce,
        names=tuple(message.resource_names_subscribe),
        removed=tuple(message.resource_names_unsubscribe),
        versions=dict(message.initial_resource_versions),
        error=_error(message),
    )


def _error(message: Any) -> str | None:
    return message.error_detail.message[:_MAX_ERROR_CHARACTERS] if message.HasField("error_detail") else None


def node_of(message: Any) -> XdsNode | None:
    """Return the node in a request, or None."""
    if not message.HasField("node"):
        return None
    node = message.node
    place = node.locality
    return XdsNode(
        node.id, node.cluster, place.region, place.zone, place.sub_zone, _build(node), node.user_agent_name,
        node.metadata.fields[ADMIN_METADATA].string_value if ADMIN_METADATA in node.metadata.fields else "",
    )  # fmt: skip


def _build(node: Any) -> str:
    if not node.HasField("user_agent_build_version"):
        return str(node.user_agent_version)
    number = node.user_agent_build_version.version
    return f"{number.major_number}.{number.minor_number}.{number.patch}"


def content_version(resources: Iterable[Resource], removed: Iterable[str] = ()) -> str:
    """Return a digest of names and versions: equal content has equal versions on every server, at any time."""
    digest = blake2b(digest_size=8)
    for resource in resources:
        digest.update(f"{resource.name}\0{resource.version}\0".encode())
    for name in removed:
        digest.update(f"{name}\0\0".encode())
    return digest.hexdigest()


@lru_cache(maxsize=32)
def set_version(resources: tuple[Resource, ...]) -> str:
    """Return `content_version` of a full set, cached because many streams need it repeatedly."""
    return content_version(resources)


class Nonces:
    """The nonces of one stream. Each nonce is a larger number than the previous one."""

    def __init__(self) -> None:
        self.last = 0


class Response:
    """A discovery response of either variant. `version` defaults to a digest of the content.

    Responses with equal content share their bytes; if one stream gets the same content again, only the nonce differs.
    """

    __slots__ = ("_data", "nonce", "removed", "resources", "type_url", "version")

    def __init__(
        self,
        type_url: str,
        nonces: Nonces,
        resources: tuple[Resource, ...],
        removed: tuple[str, ...] = (),
        *,
        version: str = "",
        delta: bool,
    ) -> None:
        body = _BODIES.of(delta, type_url, version, resources, removed)
        if body.number <= nonces.last:
            body = body.renewed()
        nonces.last = body.number
        self.type_url = type_url
        self.nonce = str(body.number)
        self.resources = resources
        self.removed = removed
        self.version = body.version
        self._data = body.data

    def encode(self) -> bytes:
        """Return the serialised message."""
        return self._data

    def __repr__(self) -> str:
        return f"<response {self.nonce}: {list(self.resources)}, without {list(self.removed)}>"


_NUMBERS = count(1)


class _Body(NamedTuple):
    """A serialised message whose last field is its nonce."""

    version: str
    number: int
    data: bytes

    def renewed(self) -> _Body:
        number = next(_NUMBERS)
        return _Body(self.version, number, self.data[: -len(_nonce(self.number))] + _nonce(number))


def _nonce(number: int) -> bytes:
    return field(5, str(number).encode())


_Key = tuple[bool, str, str, tuple[Resource, ...], tuple[str, ...]]


class _Bodies:
    """An LRU cache of responses that keeps at most `max_bytes` bytes, or a single response."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._bodies: OrderedDict[_Key, _Body] = OrderedDict()

    def of(self, *key: *_Key) -> _Body:
        body = self._bodies.get(key)
        if body is None:
            body = self._bodies[key] = _assemble(*key)
            self._size += len(body.data)
            while self._size > self._max_bytes and len(self._bodies) > 1:
                self._size -= len(self._bodies.popitem(last=False)[1].data)
        else:
            self._bodies.move_to_end(key)
        return body


_BODIES = _Bodies(KEPT_BYTES)


def _assemble(
    delta: bool, type_url: str, version: str, resources: tuple[Resource, ...], removed: tuple[str, ...]
) -> _Body:
    version, number = version or content_version(resources, removed), next(_NUMBERS)
    parts = [field(1, version.encode())]
    parts += [resource.delta() if delta else resource.sotw() for resource in resources]
    parts.append(field(4, type_url.encode()))
    parts += [field(6, name.encode()) for name in removed]
    return _Body(version, number, b"".join([*parts, _nonce(number)]))
