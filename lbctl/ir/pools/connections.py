"""How a proxy connects to the replicas of a pool, and what its requests have in place of the client's own.

A hosted API gets its own host, path and headers; replicas that ask for a key get one header. Durations are in
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
    """How long an idle connection is kept; None: unlimited."""
    max_requests: int | None = None
    """How many requests one connection carries; None: unlimited."""
    closed_by_servers: bool = True
    """Whether the servers close idle connections by themselves."""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Limits for the whole fleet; a `View` holds one proxy's part."""

    max_connections: int
    """The largest number of connections to the pool."""
    max_pending_requests: int
    """The largest number of requests that wait for a connection."""
    max_requests: int
    """The largest number of requests in flight."""
    max_retries: int
    """The largest number of retries in flight."""
    replica_max_connections: int | None = None
    """None: unlimited."""
    replica_max_requests: int | None = None
    """None: unlimited."""


@dataclass(frozen=True, slots=True)
class PoolTls:
    """TLS to the replicas. Without `ca` certificates are not verified."""

    ca: str | None = None
    """The path of the authorities that sign the replicas' certificates; None: nothing is verified."""
    server_name: str | None = None
    """The name in the SNI and in the replicas' certificates; None: the replica's host."""
    certificate: str | None = None
    """The path of the client certificate; None: none is sent."""
    key: str | None = None
    """The path of the client certificate's private key."""


@dataclass(frozen=True, slots=True)
class UpstreamHeader:
    """A header that is set on each request to the pool: a text, or a prefix and the content of a file."""

    name: str
    """The name in lower case."""
    text: str = ""
    """The value, or what stands before the content of the file."""
    file: str | None = None
    """The path of the file with the secret; None: `text` is the whole value."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """What a request to a pool has in place of the client's own."""

    host: str
    """The Host header; empty: the client's."""
    path_prefix: str = ""
    """What stands before the path, without a slash at its end."""
    headers: tuple[UpstreamHeader, ...] = ()
    """The headers that are set, by name."""

    @property
    def server_name(self) -> str:
        """The host without its port."""
        return self.host.partition(":")[0]


def header_values(upstream: Upstream, secrets: Mapping[str, HeaderSecret]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the headers that are set; one whose file could not be read is left out."""
    for header in upstream.headers:
        if header.file is None:
            yield header.name, header.text
        elif header.file in secrets:
            yield header.name, header.text + secrets[header.file].value
