"""Named resources of the five served types, serialised once, with a hash of the content as their version.

All streams share these values, which never change: new content is a new `Resource`. Two references to the same object
are therefore equal without a comparison of bytes.
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
_MAY_BE_SECRET = (CDS, LDS, RDS, SDS)
SHORT = {CDS: "cds", EDS: "eds", LDS: "lds", RDS: "rds", SDS: "sds"}
"""Short names, as on the command line and in metrics."""


class Resource:
    """One resource of a type.

    `body`: the serialised message inside the `Any`. `path`: the part of the fleet that it was built from, for example
    `("pools", "llama")`. `secret`: it contains an API key, a private key or another credential. `in_clear`: the
    resource that replaces a secret one for clients that may not receive secrets; None if nothing replaces it. `parent`:
    the version of the resource after which it must be sent again. For endpoints, this is the cluster: Envoy warms a
    changed cluster until its endpoints arrive.
    """

    __slots__ = ("_delta", "_sotw", "body", "in_clear", "name", "parent", "path", "secret", "type_url", "version")

    def __init__(
        self, type_url: str, name: str, body: bytes, path: Path = (), *, secret: bool = False,
        in_clear: Resource | None = None, parent: str = "",
    ) -> None:  # fmt: skip
        self.type_url = type_url
        self.name = name
        self.body = body
        self.path = path
        self.secret = secret
        self.in_clear = in_clear
        self.parent = parent
        self.version = blake2b(body + parent.encode(), digest_size=8).hexdigest()
        self._sotw: bytes | None = None
        self._delta: bytes | None = None

    def sotw(self) -> bytes:
        """Return field 2 (`resources`, an Any) of a `DiscoveryResponse`."""
        if self._sotw is None:
            self._sotw = field(2, self._any())
        return self._sotw

    def delta(self) -> bytes:
        """Return field 2 (`resources`, a `Resource`) of a `DeltaDiscoveryResponse`."""
        if self._delta is None:
            inner = field(1, self.version.encode()) + field(2, self._any()) + field(3, self.name.encode())
            self._delta = field(2, inner)
        return self._delta

    def _any(self) -> bytes:
        return field(1, self.type_url.encode()) + field(2, self.body)

    def __repr__(self) -> str:
        return f"<{SHORT.get(self.type_url, self.type_url)} {self.name} {self.version}>"


class Resources:
    """All resources of a proxy, by type and in order of name.

    `version`: a digest of all of them. `secret`: whether any of them is secret.
    """

    __slots__ = ("__weakref__", "_by_type", "_in_clear", "secret", "version")

    def __init__(self, by_type: Mapping[str, Mapping[str, Resource]]) -> None:
        self._by_type = {kind: dict(sorted(by_type.get(kind, {}).items())) for kind in TYPES}
        whole = blake2b(digest_size=8)
        for kind, named in self._by_type.items():
            whole.update(kind.encode())
            for name, resource in named.items():
                whole.update(f"\0{name}\0{resource.version}".encode())
        self.version = whole.hexdigest()
        self.secret = any(item.secret for kind in _MAY_BE_SECRET for item in self._by_type[kind].values())
        self._in_clear: Resources | None = None

    @property
    def in_clear(self) -> Resources | None:
        """Resources for a client that may not receive secrets; None if it gets none."""
        if not self.secret:
            return self
        if self._in_clear is None:
            by_type: dict[str, dict[str, Resource]] = {}
            for kind, named in self._by_type.items():
                for name, item in named.items():
                    shown = item.in_clear if item.secret else item
                    if shown is None:
                        return None
                    by_type.setdefault(kind, {})[name] = shown
            self._in_clear = Resources(by_type)
        return self._in_clear

    def of(self, type_url: str) -> Mapping[str, Resource]:
        """Return the resources of a type by name; empty for a type that is not served."""
        return self._by_type.get(type_url, {})


def field(number: int, data: bytes) -> bytes:
    """Encode a length-delimited protobuf field."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def changed_names(before: Resources | None, after: Resources) -> set[tuple[str, str]]:
    """Return (short type, name) of every resource that is new, changed or removed."""
    changed = set()
    for kind in TYPES:
        old = before.of(kind) if before else {}
        new = after.of(kind)
        names = {name for name, item in new.items() if name not in old or not _same(old[name], item)}
        changed |= {(SHORT[kind], name) for name in names | (old.keys() - new.keys())}
    return changed


def _same(one: Resource, other: Resource) -> bool:
    return one is other or one.version == other.version
