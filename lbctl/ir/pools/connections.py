"""The connections from a proxy to the replicas of a pool, and their limits. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass


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
