"""Replicas that serve the same model, and how a proxy treats them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lbctl.ir.address import Address

Algorithm = Literal["round_robin", "least_request", "least_time", "random", "hash"]
Protocol = Literal["http1", "http2", "grpc"]


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    address: Address
    capacity: float = 1.0
    """What it can carry, relative to the others of its pool; > 0."""
    priority: int = 0
    drain: bool = False
    region: str | None = None
    zone: str | None = None
    gpu: str | None = None
    gpu_count: int = 1
    devices: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    telemetry: Telemetry | None = None
    """Its own, where it has one; else the pool's."""


@dataclass(frozen=True, slots=True)
class HashKey:
    """`kind` source_ip has no `name`; json_body's is a path as `$.user`; prompt_prefix has `bytes`."""

    kind: Literal["header", "cookie", "query", "source_ip", "json_body", "prompt_prefix"]
    name: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Balance:
    algorithm: Algorithm = "least_request"
    key: HashKey | None = None
    bounded_load: float | None = None
    """> 1: no replica above so many times the mean."""


@dataclass(frozen=True, slots=True)
class Affinity:
    cookie: str
    ttl: int = 1_800_000


@dataclass(frozen=True, slots=True)
class Locality:
    prefer: Literal["zone", "region"] = "zone"
    spill_below: float = 70.0


@dataclass(frozen=True, slots=True)
class Connections:
    """To the replicas: how long an idle one is kept, how many requests one carries (`None`: no limit)."""

    idle: int = 4_000
    max_requests: int | None = None


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """For the whole fleet; `View` holds a proxy's part. `None` for a replica: no limit."""

    max_connections: int
    max_pending_requests: int
    max_requests: int
    max_retries: int
    replica_max_connections: int | None = None
    replica_max_requests: int | None = None


@dataclass(frozen=True, slots=True)
class SlowStart:
    window: int = 60_000
    min_weight: float = 10.0
    aggression: float = 1.0


@dataclass(frozen=True, slots=True)
class HttpCheck:
    path: str = "/health"
    host: str | None = None
    statuses: tuple[int, ...] = (200,)
    body_contains: str | None = None


@dataclass(frozen=True, slots=True)
class GrpcCheck:
    service: str = ""


@dataclass(frozen=True, slots=True)
class TcpCheck:
    pass


@dataclass(frozen=True, slots=True)
class ActiveCheck:
    probe: HttpCheck | GrpcCheck | TcpCheck
    port: int | None = None
    interval: int = 10_000
    timeout: int = 3_000
    jitter: float = 10.0
    unhealthy_threshold: int = 3
    healthy_threshold: int = 2


@dataclass(frozen=True, slots=True)
class PassiveCheck:
    """Outlier detection; the error rate counts in windows of `error_window` ms from `error_min_requests` on."""

    consecutive_5xx: int = 5
    consecutive_connect_failures: int = 3
    error_percent: float = 50.0
    error_window: int = 10_000
    error_min_requests: int = 20
    ejection_time: int = 30_000
    max_ejection: float = 50.0


@dataclass(frozen=True, slots=True)
class DeepCheck:
    """From telemetry; `None`: not judged."""

    min_free_memory: int | None = None
    max_temperature: float | None = 90.0
    fatal_xids: tuple[int, ...] = (48, 64, 74, 79, 95)
    stalled_after: int | None = 15_000


@dataclass(frozen=True, slots=True)
class LoadShedding:
    min_healthy: float = 50.0
    retry_after: int = 5_000


@dataclass(frozen=True, slots=True)
class MetricsSource:
    kind: str
    url: str
    signal: str | None = None
    metric: str | None = None
    query: str | None = None
    unit: str | None = None
    match_labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Telemetry:
    interval: int = 5_000
    timeout: int = 2_000
    stale_after: int = 15_000
    sources: tuple[MetricsSource, ...] = ()


@dataclass(frozen=True, slots=True)
class Weighting:
    strategy: str = "static"
    smoothing: int = 20_000
    act_above: float = 25.0
    release_below: float = 15.0
    across_types: float = 45.0
    composite: tuple[tuple[str, float], ...] = ()
    max_step_down: float = 50.0
    max_step_up: float = 10.0
    deadband: float = 10.0
    floor: float = 5.0
    ceiling: float = 400.0


@dataclass(frozen=True, slots=True)
class DnsDiscovery:
    name: str
    port: int
    refresh: int = 10_000
    max_replicas: int = 32
    gpu: str | None = None
    resolvers: tuple[Address, ...] = ()
    capacity: float = 1.0


@dataclass(frozen=True, slots=True)
class FileDiscovery:
    path: str


@dataclass(frozen=True, slots=True)
class PoolTls:
    """To the replicas. Without `ca` nothing is verified."""

    ca: str | None = None
    server_name: str | None = None
    certificate: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    version: str | None = None
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    name: str
    replicas: tuple[Replica, ...] = ()
    discovery: DnsDiscovery | FileDiscovery | None = None
    protocol: Protocol = "http1"
    model: Model | None = None
    labels: tuple[tuple[str, str], ...] = ()
    balance: Balance = Balance()
    affinity: Affinity | None = None
    drain_deadline: int = 120_000
    locality: Locality | None = None
    connections: Connections = Connections()
    connect_timeout: int = 2_000
    queue_timeout: int = 10_000
    circuit_breaker: CircuitBreaker = field(default_factory=lambda: CircuitBreaker(1024, 512, 1024, 3))
    few_slots: bool = False
    """Its replicas answer a few requests at once and let the others wait, the same number whatever their capacity."""
    slow_start: SlowStart | None = None
    active: ActiveCheck | None = None
    passive: PassiveCheck | None = PassiveCheck()
    deep: DeepCheck = DeepCheck()
    load_shedding: LoadShedding | None = None
    telemetry: Telemetry | None = None
    weighting: Weighting = Weighting()
    tls: PoolTls | None = None
