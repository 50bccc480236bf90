"""Connections from a proxy to a pool's replicas, and the parts of a request that are replaced.

For a hosted API, the host, path and headers are replaced. For replicas that require a key, one header is set. Durations
are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lbctl.ir.secrets import HeaderSecret


@dataclass(frozen=True, slots=True)
class Connections:
    """Keep-alive connections from a proxy to the replicas."""

    idle: int | None = 4_000
    """Time after which an idle connection is closed, or None for no limit."""
    max_requests: int | None = None
    """Maximum number of requests per connection, or None for no limit."""
    closed_by_servers: bool = True
    """Whether the servers close idle connections."""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Limits for the whole fleet. A `View` contains one proxy's share of them."""

    max_connections: int
    """Maximum number of connections to the pool."""
    max_pending_requests: int
    """Maximum number of requests waiting for a connection."""
    max_requests: int
    """Maximum number of requests in flight."""
    max_retries: int
    """Maximum number of retries in flight."""
    replica_max_connections: int | None = None
    """Maximum number of connections per replica, or None for no limit."""
    replica_max_requests: int | None = None
    """Maximum number of requests in flight per replica, or None for no limit."""


@dataclass(frozen=True, slots=True)
class PoolTls:
    """TLS settings for connections to the replicas. Without `ca`, certificates are not verified."""

    ca: str | None = None
    """Path of the CA bundle for the replicas' certificates. If None, certificates are not verified."""
    server_name: str | None = None
    """Name in the SNI and in the replicas' certificates, or None for the replica's host."""
    certificate: str | None = None
    """Path of the client certificate, or None if none is used."""
    key: str | None = None
    """Path of the client certificate's private key."""


@dataclass(frozen=True, slots=True)
class UpstreamHeader:
    """Header that is set on each request to the pool.

    Its value is a fixed string, or a prefix followed by a file's content.
    """

    name: str
    """The lowercase name."""
    text: str = ""
    """The value, or the prefix that precedes the file's content."""
    file: str | None = None
    """Path of the file that contains the secret, or None if `text` is the whole value."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Replacements for parts of a request to a pool."""

    host: str
    """Host header. If empty, the client's Host header is used."""
    path_prefix: str = ""
    """Path prefix, without a trailing slash."""
    headers: tuple[UpstreamHeader, ...] = ()
    """Headers to set, by name."""

    @property
    def server_name(self) -> str:
        """Return the host without its port."""
        return self.host.partition(":")[0]


def header_values(upstream: Upstream, secrets: Mapping[str, HeaderSecret]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) for each header to set. Headers whose file could not be read are omitted."""
    for header in upstream.headers:
        if header.file is None:
            yield header.name, header.text
        elif header.file in secrets:
            yield header.name, header.text + secrets[header.file].value
