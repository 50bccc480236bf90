"""A pool's health checks, and its behaviour while too few replicas are healthy. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

THRESHOLD_PARAMETER = "unhealthy_threshold"
"""Query parameter that passes the client's threshold in an agent check. In a drain, an agent waits for more responses
than this."""


@dataclass(frozen=True, slots=True)
class HttpCheck:
    """A health check that sends an HTTP request."""

    path: str = "/health"
    """Request path."""
    host: str | None = None
    """Host header, or None for the replica's address."""
    statuses: tuple[int, ...] = (200,)
    """Response statuses that indicate a healthy replica."""
    body_contains: str | None = None
    """Text that a healthy replica's response body must contain, or None for any body."""


@dataclass(frozen=True, slots=True)
class GrpcCheck:
    """A health check that uses the gRPC health protocol."""

    service: str = ""
    """Service name in the check. Empty for the server as a whole."""


@dataclass(frozen=True, slots=True)
class TcpCheck:
    """A health check that only opens a connection."""


@dataclass(frozen=True, slots=True)
class ActiveCheck:
    """Active health checks for the replicas."""

    probe: HttpCheck | GrpcCheck | TcpCheck
    port: int | None = None
    """Port to check, or None for the replica's own port."""
    interval: int = 10_000
    """Time between checks of a replica."""
    timeout: int = 3_000
    """Timeout for each check."""
    jitter: float = 10.0
    """Jitter, as a percentage of the interval."""
    unhealthy_threshold: int = 3
    """Number of consecutive failed checks after which a replica gets no requests."""
    healthy_threshold: int = 2
    """Number of consecutive passed checks after which a replica gets requests again."""


@dataclass(frozen=True, slots=True)
class AgentCheck:
    """The agent next to each replica, which monitors the engine and its GPUs."""

    port: int
    """HTTP port on each replica's host. The agent responds to HAProxy's agent checks on the next port."""
    probe: HttpCheck | GrpcCheck | TcpCheck | None = None
    """Check that the agent runs on its engine, or None if the files do not set one."""
    engine_port: int | None = None
    """Engine port for this check, or None for the replica's own port."""


@dataclass(frozen=True, slots=True)
class PassiveCheck:
    """Outlier detection."""

    consecutive_5xx: int = 5
    """Number of consecutive responses with a status of 500 or above after which a replica is ejected."""
    consecutive_connect_failures: int = 3
    """Number of consecutive failed connections after which a replica is ejected."""
    error_percent: float = 50.0
    """Error rate within a window, in percent, at which a replica is ejected."""
    error_window: int = 10_000
    """Length of a window."""
    error_min_requests: int = 20
    """Minimum number of requests in a window for its error rate to be evaluated."""
    ejection_time: int = 30_000
    """Duration of an ejection."""
    max_ejection: float = 50.0
    """Maximum percentage of the pool that is ejected at the same time."""
    is_5xx_written: bool = False
    """Whether the files set `consecutive_5xx`."""

    @property
    def ejects_without_bound(self) -> bool:
        """Whether a proxy that does not support `max_ejection` ejects replicas because of their responses.

        A proxy does so if this is set in the files, or if the whole pool may be ejected. By default, it does not,
        because one client's failing requests could cause the whole pool to be ejected for all clients.
        """
        return self.is_5xx_written or self.max_ejection >= 100


@dataclass(frozen=True, slots=True)
class DeepCheck:
    """Limits for the deep health check, which is based on telemetry. A limit of None is not checked."""

    min_free_memory: int | None = None
    """Minimum free GPU memory, in bytes."""
    max_temperature: float | None = 90.0
    """Maximum temperature, in degrees Celsius."""
    fatal_xids: tuple[int, ...] = (48, 64, 74, 79, 95)
    """XID errors after which a GPU cannot serve requests."""
    stalled_after: int | None = 15_000
    """Maximum time without a finished request while requests are in flight."""


@dataclass(frozen=True, slots=True)
class LoadShedding:
    """Immediate rejection of requests while too few replicas are healthy."""

    min_healthy: float = 50.0
    """Percentage of healthy replicas below which requests are rejected."""
    retry_after: int = 5_000
    """Time after which a client may retry."""

    @property
    def retry_after_seconds(self) -> int:
        """Return the value of the Retry-After header, in whole seconds, rounded up and at least 1."""
        return max(1, -(-self.retry_after // 1000))
