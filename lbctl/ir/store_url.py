"""The kinds of stores, and the parts of a store's URL, which can contain several hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoreKind:
    """The properties of a store kind that determine its URL and its settings."""

    port: int | None = None
    """Default port of the store's servers, or None if the URL does not name servers."""
    tls: str = ""
    """URL scheme with TLS. Empty if TLS is not supported."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Maps each unsupported `control.store` key to the alternative."""


_ACCOUNT = "the account comes from KUBECONFIG or from the pod"
STORES = {
    "redis": StoreKind(6379, "rediss"),
    "redis+sentinel": StoreKind(26379, "rediss+sentinel"),
    "etcd": StoreKind(2379, "etcds"),
    "kubernetes": StoreKind(
        lacks={
            "key_prefix": "the name in the URL is the prefix of its objects",
            "user": _ACCOUNT,
            "password": _ACCOUNT,
            "tls": "KUBECONFIG contains the certificates",
        }
    ),
}
"""Maps each scheme without TLS to the kind of store."""
_PLAIN_SCHEMES = {kind.tls: plain for plain, kind in STORES.items() if kind.tls}


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """The parts of a store's URL."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    """Host and port of each server. Empty for Kubernetes."""
    path: tuple[str, ...]
    """The parts after the hosts, which are a database, the name of Sentinel's master, or a namespace and a name."""

    @property
    def kind(self) -> str:
        """Return the scheme without the letter that indicates TLS."""
        return _PLAIN_SCHEMES.get(self.scheme, self.scheme)

    @property
    def secure(self) -> bool:
        """Whether the servers are reached over TLS."""
        return self.scheme in _PLAIN_SCHEMES

    @property
    def places(self) -> str:
        """Return the hosts with their ports, as human-readable text."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)


def parse_store_url(url: str) -> StoreUrl:
    """Return the parts of a URL. Raises ValueError if a port is not a number from 1 to 65535."""
    scheme, _, rest = url.partition("://")
    port = STORES.get(_PLAIN_SCHEMES.get(scheme, scheme), StoreKind(0)).port
    if port is None:
        return StoreUrl(scheme, (), tuple(rest.split("/")))
    places, _, path = rest.partition("/")
    hosts = tuple(_host(item, port) for item in places.split(","))
    return StoreUrl(scheme, hosts, tuple(filter(None, path.split("/"))))


def _host(place: str, default: int) -> tuple[str, int]:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(default)
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{port} is not a port")
    return host.strip("[]"), int(port)
