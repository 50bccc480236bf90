"""The health checks of a pool, and what is done while too few replicas are healthy. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpCheck:
    """A health check by HTTP request."""

    path: str = "/health"
    """The path that is requested."""
    host: str | None = None
    """The Host header; None: the replica's address."""
    statuses: tuple[int, ...] = (200,)
    """The statuses of a healthy replica."""
    body_contains: str | None = None
    """The text that the body of a healthy replica contains; None: any body."""


@dataclass(frozen=True, slots=True)
class GrpcCheck:
    """A health check by the gRPC health protocol."""

    service: str = ""
    """The service that the check asks for; empty: the server as a whole."""


@dataclass(frozen=True, slots=True)
class TcpCheck:
    """A health check that only opens a connection."""


@dataclass(frozen=True, slots=True)
class ActiveCheck:
    """Active health checks of the replicas."""

    probe: HttpCheck | GrpcCheck | TcpCheck
    """The request that is made."""
    port: int | None = None
    """None: the replica's own port."""
    interval: int = 10_000
    """The time between two checks of a replica."""
    timeout: int = 3_000
    """How long a check may take."""
    jitter: float = 10.0
    """Percent of the interval."""
    unhealthy_threshold: int = 3
    """The number of failed checks in a row after which a replica gets no requests."""
    healthy_threshold: int = 2
    """The number of passed checks in a row after which a replica gets requests again."""


@dataclass(frozen=True, slots=True)
class PassiveCheck:
    """Outlier detection."""

    consecutive_5xx: int = 5
    """The number of statuses ≥ 500 in a row that eject a replica."""
    consecutive_connect_failures: int = 3
    """The number of failed connections in a row that eject a replica."""
    error_percent: float = 50.0
    """The error rate of a window, in percent, that ejects a replica."""
    error_window: int = 10_000
    """The error rate is counted in windows of this length."""
    error_min_requests: int = 20
    """The error rate is evaluated only in windows with at least this many requests."""
    ejection_time: int = 30_000
    """How long a replica stays ejected."""
    max_ejection: float = 50.0
    """The percentage of the pool that may be ejected at once."""
    is_5xx_written: bool = False
    """Whether the files write `consecutive_5xx`."""

    @property
    def ejects_without_bound(self) -> bool:
        """Whether a proxy that knows no `max_ejection` ejects by answers.

        It does where the files ask for it, and where all of the pool may be ejected. By default it does not: the
        failing requests of one client would take the whole pool from everybody.
        """
        return self.is_5xx_written or self.max_ejection >= 100


@dataclass(frozen=True, slots=True)
class DeepCheck:
    """Health from telemetry; a limit of None is not checked."""

    min_free_memory: int | None = None
    """Free GPU memory in bytes."""
    max_temperature: float | None = 90.0
    """Degrees Celsius."""
    fatal_xids: tuple[int, ...] = (48, 64, 74, 79, 95)
    """XID errors after which a GPU cannot serve."""
    stalled_after: int | None = 15_000
    """How long a replica may finish nothing while requests are in flight."""


@dataclass(frozen=True, slots=True)
class LoadShedding:
    """Fast refusal while too few replicas are healthy."""

    min_healthy: float = 50.0
    """The percentage of healthy replicas below which requests are refused."""
    retry_after: int = 5_000
    """Milliseconds after which a client may try again."""

    @property
    def retry_after_seconds(self) -> int:
        """The value of the Retry-After header: whole seconds, rounded up, at least 1."""
        return max(1, -(-self.retry_after // 1000))
