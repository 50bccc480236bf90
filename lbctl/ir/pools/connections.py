"""Connections from a proxy to the replicas of a pool, and the parts of a request that are replaced.

A hosted API gets its own host, path and headers. Replicas that require a key get one header. Durations are in
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lbctl.ir.secrets import HeaderSecret


@dataclass(frozen=True, slots=True)
class Connections:
    """Keep-alive connections from a proxy to the replicas."""

    idle: int | None = 4_000
    """Time after which an idle connection is closed; None: unlimited."""
    max_requests: int | None = None
    """Maximum number of requests on one connection; None: unlimited."""
    closed_by_servers: bool = True
    """Whether the servers close idle connections."""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Limits for the whole fleet; a `View` contains one proxy's share."""

    max_connections: int
    """Maximum number of connections to the pool."""
    max_pending_requests: int
    """Maximum number of requests that wait for a connection."""
    max_requests: int
    """Maximum number of requests in flight."""
    max_retries: int
    """Maximum number of retries in flight."""
    replica_max_connections: int | None = None
    """None: unlimited."""
    replica_max_requests: int | None = None
    """None: unlimited."""


@dataclass(frozen=True, slots=True)
class PoolTls:
    """TLS to the replicas. Without `ca`, certificates are not verified."""

    ca: str | None = None
    """Path of the CA bundle for the replicas' certificates; None: certificates are not verified."""
    server_name: str | None = None
    """Name in the SNI and in the replicas' certificates; None: the replica's host."""
    certificate: str | None = None
    """Path of the client certificate; None: no client certificate."""
    key: str | None = None
    """Path of the client certificate's private key."""


@dataclass(frozen=True, slots=True)
class UpstreamHeader:
    """Header that is set on each request to the pool: a text, or a prefix followed by the content of a file."""

    name: str
    """The name in lower case."""
    text: str = ""
    """The value, or the prefix of the file's content."""
    file: str | None = None
    """Path of the file with the secret; None: `text` is the whole value."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Replacements for parts of a request to a pool."""

    host: str
    """Host header; empty: the client's Host header."""
    path_prefix: str = ""
    """Prefix of the path, without a trailing slash."""
    headers: tuple[UpstreamHeader, ...] = ()
    """Headers to set, by name."""

    @property
    def server_name(self) -> str:
        """Return the host without its port."""
        return self.host.partition(":")[0]


def header_values(upstream: Upstream, secrets: Mapping[str, HeaderSecret]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) for each header to set. Headers whose file could not be read are left out."""
    for header in upstream.headers:
        if header.file is None:
            yield header.name, header.text
        elif header.file in secrets:
            yield header.name, header.text + secrets[header.file].value
