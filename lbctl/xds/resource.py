"""What is served: named resources, serialised once, each with the hash of its content as its version.

All streams share these values. They are never changed: a new content is a new `Resource`, and a resource that stays the
same object is known to be the same without a look at its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from lbctl.base.diagnostics import Path

CDS = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
EDS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
LDS = "type.googleapis.com/envoy.config.listener.v3.Listener"
RDS = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
SDS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
TYPES = (CDS, EDS, LDS, RDS, SDS)
SHORT = {CDS: "cds", EDS: "eds", LDS: "lds", RDS: "rds", SDS: "sds"}
"""The names that people use, as on the command line and in metrics."""


class Resource:
    """One resource of a type. `body`: the serialised message inside the `Any`; `path`: what of the fleet it was made
    from, as `("pools", "llama")`."""

    __slots__ = ("_delta", "_sotw", "body", "name", "path", "type_url", "version")

    def __init__(self, type_url: str, name: str, body: bytes, path: Path = ()) -> None:
        self.type_url = type_url
        self.name = name
        self.body = body
        self.path = path
        self.version = blake2b(body, digest_size=8).hexdigest()
        self._sotw: bytes | None = None
        self._delta: bytes | None = None

    def sotw(self) -> bytes:
        """Field 2 (`resources`, an Any) of a `DiscoveryResponse`."""
        if self._sotw is None:
            self._sotw = field(2, self._any())
        return self._sotw

    def delta(self) -> bytes:
        """Field 2 (`resources`, a `Resource`) of a `DeltaDiscoveryResponse`."""
        if self._delta is None:
            inner = field(1, self.version.encode()) + field(2, self._any()) + field(3, self.name.encode())
            self._delta = field(2, inner)
        return self._delta

    def _any(self) -> bytes:
        return field(1, self.type_url.encode()) + field(2, self.body)

    def __repr__(self) -> str:
        return f"<{SHORT.get(self.type_url, self.type_url)} {self.name} {self.version}>"


class Resources:
    """Everything that one proxy is to have: type → name → resource, names in order. `version` is of the whole."""

    __slots__ = ("__weakref__", "_by_type", "version")

    def __init__(self, by_type: Mapping[str, Mapping[str, Resource]]) -> None:
        self._by_type = {kind: dict(sorted(by_type.get(kind, {}).items())) for kind in TYPES}
        whole = blake2b(digest_size=8)
        for kind, named in self._by_type.items():
            whole.update(kind.encode())
            for name, resource in named.items():
                whole.update(f"\0{name}\0{resource.version}".encode())
        self.version = whole.hexdigest()

    def of(self, type_url: str) -> Mapping[str, Resource]:
        """Empty for a type that is not served."""
        return self._by_type.get(type_url, {})


def field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
