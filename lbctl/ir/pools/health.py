"""The health checks of a pool, and its behaviour while too few replicas are healthy. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

THRESHOLD_PARAMETER = "unhealthy_threshold"
"""Query parameter of a check of an agent, with the client's threshold: an agent waits for more answers in a drain."""


@dataclass(frozen=True, slots=True)
class HttpCheck:
    """A health check that sends an HTTP request."""

    path: str = "/health"
    """Request path."""
    host: str | None = None
    """Host header; None: the replica's address."""
    statuses: tuple[int, ...] = (200,)
    """Response statuses of a healthy replica."""
    body_contains: str | None = None
    """Text in the response body of a healthy replica; None: any body."""


@dataclass(frozen=True, slots=True)
class GrpcCheck:
    """A health check that uses the gRPC health protocol."""

    service: str = ""
    """Service name in the check; empty: the server as a whole."""


@dataclass(frozen=True, slots=True)
class TcpCheck:
    """A health check that only opens a connection."""


@dataclass(frozen=True, slots=True)
class ActiveCheck:
    """Active health checks of the replicas."""

    probe: HttpCheck | GrpcCheck | TcpCheck
    port: int | None = None
    """None: the replica's own port."""
    interval: int = 10_000
    """Time between checks of a replica."""
    timeout: int = 3_000
    """Timeout for each check."""
    jitter: float = 10.0
    """Jitter as a percentage of the interval."""
    unhealthy_threshold: int = 3
    """Number of consecutive failed checks after which a replica gets no requests."""
    healthy_threshold: int = 2
    """Number of consecutive passed checks after which a replica gets requests again."""


@dataclass(frozen=True, slots=True)
class AgentCheck:
    """The agent next to each replica, which watches the engine and its GPUs."""

    port: int
    """HTTP port on the host of each replica. The next port answers HAProxy's agent checks."""
    probe: HttpCheck | GrpcCheck | TcpCheck | None = None
    """Check that the agent runs on its engine; None: the files set none."""
    engine_port: int | None = None
    """Port of the engine for this check; None: the replica's own port."""


@dataclass(frozen=True, slots=True)
class PassiveCheck:
    """Outlier detection."""

    consecutive_5xx: int = 5
    """Number of consecutive statuses ≥ 500 that eject a replica."""
    consecutive_connect_failures: int = 3
    """Number of consecutive failed connections that eject a replica."""
    error_percent: float = 50.0
    """Error rate within a window, in percent, that ejects a replica."""
    error_window: int = 10_000
    """Length of a window."""
    error_min_requests: int = 20
    """Minimum number of requests in a window to evaluate its error rate."""
    ejection_time: int = 30_000
    """Duration of an ejection."""
    max_ejection: float = 50.0
    """Maximum percentage of the pool that is ejected at the same time."""
    is_5xx_written: bool = False
    """Whether the files set `consecutive_5xx`."""

    @property
    def ejects_without_bound(self) -> bool:
        """Whether a proxy without support for `max_ejection` ejects replicas because of their responses.

        A proxy does so if the files ask for it, or if the whole pool may be ejected. By default, it does not eject
        them: the failing requests of one client could eject the whole pool for all clients.
        """
        return self.is_5xx_written or self.max_ejection >= 100


@dataclass(frozen=True, slots=True)
class DeepCheck:
    """Health from telemetry. A limit of None is not checked."""

    min_free_memory: int | None = None
    """Minimum free GPU memory in bytes."""
    max_temperature: float | None = 90.0
    """Maximum temperature in degrees Celsius."""
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
        """Return the value of the Retry-After header: whole seconds, rounded up, at least 1."""
        return max(1, -(-self.retry_after // 1000))
