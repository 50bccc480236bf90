"""Pools: replicas that serve the same model, and how a proxy treats them. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lbctl.ir.address import Address

Algorithm = Literal["round_robin", "least_request", "least_time", "random", "hash"]
Protocol = Literal["http1", "http2", "grpc"]


@dataclass(frozen=True, slots=True)
class Replica:
    """One model server."""

    name: str
    address: Address
    capacity: float = 1.0
    """The load that it can carry, relative to the other replicas of its pool; > 0."""
    priority: int = 0
    """0 is preferred; higher numbers are standbys."""
    drain: bool = False
    """Whether the files take it out of new traffic."""
    region: str | None = None
    zone: str | None = None
    gpu: str | None = None
    gpu_count: int = 1
    devices: tuple[str, ...] = ()
    """Identifiers of its GPUs, to find their metrics."""
    labels: tuple[tuple[str, str], ...] = ()
    telemetry: Telemetry | None = None
    """Its own sources of metrics; None: those of the pool."""


@dataclass(frozen=True, slots=True)
class HashKey:
    """What a hash of a request is computed from."""

    kind: Literal["header", "cookie", "query", "source_ip", "json_body", "prompt_prefix"]
    name: str = ""
    """Empty for source_ip; a path such as `$.user` for json_body."""
    bytes: int = 0
    """The length of a prompt_prefix."""


@dataclass(frozen=True, slots=True)
class Balance:
    """How a pool's replica is chosen for a request."""

    algorithm: Algorithm = "least_request"
    key: HashKey | None = None
    bounded_load: float | None = None
    """> 1: no replica carries more than this many times the mean load."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """A cookie that keeps a client on one replica."""

    cookie: str
    ttl: int = 1_800_000


@dataclass(frozen=True, slots=True)
class Locality:
    """Preference for replicas in the proxy's own zone or region."""

    prefer: Literal["zone", "region"] = "zone"
    spill_below: float = 70.0
    """The percentage of healthy local replicas below which requests leave the locality."""


@dataclass(frozen=True, slots=True)
class Connections:
    """Keep-alive connections from a proxy to the replicas."""

    idle: int = 4_000
    """How long an idle connection is kept."""
    max_requests: int | None = None
    """How many requests one connection carries; None: unlimited."""


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Limits for the whole fleet; a `View` holds one proxy's part."""

    max_connections: int
    max_pending_requests: int
    max_requests: int
    max_retries: int
    replica_max_connections: int | None = None
    """None: unlimited."""
    replica_max_requests: int | None = None
    """None: unlimited."""


@dataclass(frozen=True, slots=True)
class SlowStart:
    """The gradual increase of a new replica's weight."""

    window: int = 60_000
    min_weight: float = 10.0
    """The initial weight, in percent."""
    aggression: float = 1.0
    """The exponent of the ramp; 1.0 is linear."""


@dataclass(frozen=True, slots=True)
class HttpCheck:
    """A health check by HTTP request."""

    path: str = "/health"
    host: str | None = None
    statuses: tuple[int, ...] = (200,)
    body_contains: str | None = None


@dataclass(frozen=True, slots=True)
class GrpcCheck:
    """A health check by the gRPC health protocol."""

    service: str = ""


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
    timeout: int = 3_000
    jitter: float = 10.0
    """Percent of the interval."""
    unhealthy_threshold: int = 3
    healthy_threshold: int = 2


@dataclass(frozen=True, slots=True)
class PassiveCheck:
    """Outlier detection."""

    consecutive_5xx: int = 5
    consecutive_connect_failures: int = 3
    error_percent: float = 50.0
    error_window: int = 10_000
    """The error rate is counted in windows of this length."""
    error_min_requests: int = 20
    """The error rate is evaluated only in windows with at least this many requests."""
    ejection_time: int = 30_000
    max_ejection: float = 50.0
    """The percentage of the pool that may be ejected at once."""


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


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """One endpoint of metrics, by URL template."""

    kind: str
    url: str
    signal: str | None = None
    """For the kinds custom and prometheus: the signal that the value is."""
    metric: str | None = None
    query: str | None = None
    unit: str | None = None
    match_labels: tuple[tuple[str, str], ...] = ()
    """Labels that a sample must have, with placeholders filled per replica."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """How often and where metrics of a replica are read. The first source with a value wins."""

    interval: int = 5_000
    timeout: int = 2_000
    stale_after: int = 15_000
    """The age at which a value is no longer used."""
    sources: tuple[MetricsSource, ...] = ()


@dataclass(frozen=True, slots=True)
class Weighting:
    """How a replica's weight follows its signals. Percentages unless noted."""

    strategy: str = "static"
    smoothing: int = 20_000
    """The time constant of the moving average, in milliseconds."""
    act_above: float = 25.0
    release_below: float = 15.0
    across_types: float = 45.0
    composite: tuple[tuple[str, float], ...] = ()
    """(signal, relative part) of the strategy composite, sorted."""
    max_step_down: float = 50.0
    max_step_up: float = 10.0
    deadband: float = 10.0
    floor: float = 5.0
    ceiling: float = 400.0


class Discovery:
    """A source of replicas; each kind is a subclass."""

    __slots__ = ()
    kind: ClassVar[str]
    """The source, and its key under `discovery`."""
    compiled: ClassVar[bool] = False
    """Whether the compiler reads the replicas, so that a topology has them without `serve`."""


@dataclass(frozen=True, slots=True)
class DnsDiscovery(Discovery):
    """Replicas that a DNS name resolves to."""

    kind: ClassVar[str] = "dns"
    name: str
    port: int
    refresh: int = 10_000
    max_replicas: int = 32
    gpu: str | None = None
    resolvers: tuple[Address, ...] = ()
    capacity: float = 1.0
    """The capacity of each replica, from `gpu`."""


@dataclass(frozen=True, slots=True)
class FileDiscovery(Discovery):
    """Replicas listed in a file of Prometheus' file_sd form."""

    kind: ClassVar[str] = "file"
    compiled: ClassVar[bool] = True
    path: str


@dataclass(frozen=True, slots=True)
class PoolTls:
    """TLS to the replicas. Without `ca` certificates are not verified."""

    ca: str | None = None
    server_name: str | None = None
    certificate: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """The model that a pool serves."""

    name: str
    version: str | None = None
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas of one model, with everything that a proxy needs to balance over them."""

    name: str
    replicas: tuple[Replica, ...] = ()
    discovery: Discovery | None = None
    protocol: Protocol = "http1"
    model: Model | None = None
    labels: tuple[tuple[str, str], ...] = ()
    balance: Balance = Balance()
    affinity: Affinity | None = None
    drain_deadline: int = 120_000
    """How long requests of a drained replica may continue."""
    locality: Locality | None = None
    connections: Connections = Connections()
    connect_timeout: int = 2_000
    queue_timeout: int = 10_000
    circuit_breaker: CircuitBreaker = field(default_factory=lambda: CircuitBreaker(1024, 512, 1024, 3))
    few_slots: bool = False
    """Whether each replica processes only a few requests at once and queues the others.

    The number is the same for every replica, whatever its capacity.
    """
    slow_start: SlowStart | None = None
    active: ActiveCheck | None = None
    passive: PassiveCheck | None = PassiveCheck()
    deep: DeepCheck = DeepCheck()
    load_shedding: LoadShedding | None = None
    telemetry: Telemetry | None = None
    weighting: Weighting = Weighting()
    tls: PoolTls | None = None
