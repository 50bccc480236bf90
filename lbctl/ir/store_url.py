"""What kinds of stores there are, and the parts of a store's URL, which may name several hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoreKind:
    """The facts about a kind of store that its URL and its settings follow."""

    port: int | None = None
    """The port of its servers; None where the URL names no servers."""
    tls: str = ""
    """The scheme by which it is reached by TLS; empty: it has none."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """A key of `control.store` that it does not have → what is right instead."""


_ACCOUNT = "the account is that of KUBECONFIG, or of the pod"
STORES = {
    "redis": StoreKind(6379, "rediss"),
    "redis+sentinel": StoreKind(26379, "rediss+sentinel"),
    "etcd": StoreKind(2379, "etcds"),
    "kubernetes": StoreKind(
        lacks={
            "key_prefix": "the name in the URL is what its objects begin with",
            "user": _ACCOUNT,
            "password": _ACCOUNT,
            "tls": "KUBECONFIG has the certificates",
        }
    ),
}
"""Scheme without TLS → the kind of store."""
_PLAIN_SCHEMES = {kind.tls: plain for plain, kind in STORES.items() if kind.tls}


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store's URL, taken apart."""

    scheme: str
    """The scheme as it is written."""
    hosts: tuple[tuple[str, int], ...]
    """Host and port of each server; empty for Kubernetes."""
    path: tuple[str, ...]
    """What follows the hosts: a database, the name of what Sentinel watches, a namespace and a name."""

    @property
    def kind(self) -> str:
        """The scheme without the letter that stands for TLS."""
        return _PLAIN_SCHEMES.get(self.scheme, self.scheme)

    @property
    def secure(self) -> bool:
        """Whether the servers are reached by TLS."""
        return self.scheme in _PLAIN_SCHEMES

    @property
    def places(self) -> str:
        """The hosts with their ports, for people."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)


def parse_store_url(url: str) -> StoreUrl:
    """Return the parts. Raises ValueError where a port is no number from 1 to 65535."""
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
