"""The parts of a store's URL, which may name several hosts."""

from __future__ import annotations

from dataclasses import dataclass

_PORTS = {"redis": 6379, "redis+sentinel": 26379, "etcd": 2379}
TLS_SCHEMES = {"redis": "rediss", "redis+sentinel": "rediss+sentinel", "etcd": "etcds"}
"""The scheme of a store → that with which it is reached by TLS."""
_PLAIN_SCHEMES = {secure: plain for plain, secure in TLS_SCHEMES.items()}


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
    if scheme == "kubernetes":
        return StoreUrl(scheme, (), tuple(rest.split("/")))
    places, _, path = rest.partition("/")
    default = _PORTS.get(_PLAIN_SCHEMES.get(scheme, scheme), 0)
    hosts = tuple(_host(item, default) for item in places.split(","))
    return StoreUrl(scheme, hosts, tuple(filter(None, path.split("/"))))


def _host(place: str, default: int) -> tuple[str, int]:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(default)
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{port} is not a port")
    return host.strip("[]"), int(port)
