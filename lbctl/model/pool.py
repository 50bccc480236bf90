"""`pools`: replicas that serve the same model, and how a proxy treats them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Choice, Section
from lbctl.model.telemetry import Telemetry, Weighting


class Model(Section):
    name: v.ModelName
    version: v.Label | None = None
    adapters: list[v.ModelName] = []


class Nothing(Section):
    """An empty map: `tcp: {}`, `source_ip: {}`."""


class HashKey(Section):
    CHOICES: ClassVar = (Choice(("prompt_prefix", "header", "cookie", "query", "source_ip", "json_body")),)

    prompt_prefix: Annotated[int, Field(ge=1, le=65536)] | None = None
    header: v.HeaderName | None = None
    cookie: v.CookieName | None = None
    query: v.QueryName | None = None
    source_ip: Nothing | None = None
    json_body: v.JsonPath | None = None


class Hash(Section):
    key: HashKey
    bounded_load: v.PositiveNumber | None = None


class Balance(Section):
    algorithm: Literal["round_robin", "least_request", "least_time", "random", "hash"] = "least_request"
    hash: Hash | None = None


class Affinity(Section):
    cookie: v.CookieName
    ttl: v.Duration = q.Duration(1_800_000)


class Replica(Section):
    address: v.Address
    name: v.Name | None = None
    gpu: v.Gpu | None = None
    gpu_count: Annotated[int, Field(ge=1, le=1024)] | None = None
    devices: list[v.Device] = []
    weight: v.Capacity | None = None
    region: v.Place | None = None
    zone: v.Place | None = None
    priority: Annotated[int, Field(ge=0, le=127)] = 0
    drain: bool = False
    labels: dict[v.Label, v.LabelValue] = {}
    telemetry: Telemetry | None = None


class Locality(Section):
    prefer: Literal["zone", "region"] = "zone"
    spill_below: v.Percent = q.Percent(70)


class Connections(Section):
    idle: v.Duration = q.Duration(4_000)
    max_requests: v.Positive | None = None


class PoolTimeouts(Section):
    connect: v.Duration = q.Duration(2_000)
    queue: v.Duration = q.Duration(10_000)


class PerReplica(Section):
    max_connections: v.Positive | None = None
    max_requests: v.Positive | None = None


class CircuitBreaker(Section):
    max_connections: v.Positive | None = None
    max_pending_requests: v.Positive | None = None
    max_requests: v.Positive | None = None
    max_retries: v.Positive | None = None
    per_replica: PerReplica = PerReplica()


class SlowStart(Section):
    window: v.Duration = q.Duration(60_000)
    min_weight: v.Percent = q.Percent(10)
    aggression: v.PositiveNumber = 1.0


class HttpCheck(Section):
    path: v.CheckPath = "/health"
    host: v.Host | None = None
    statuses: Annotated[list[v.Status], Field(min_length=1)] = [200]
    body_contains: v.TextOrNone = ""


class GrpcCheck(Section):
    service: v.ServiceOrNone = ""


class Active(Section):
    CHOICES: ClassVar = (Choice(("http", "grpc", "tcp")),)

    port: v.Port | None = None
    http: HttpCheck | None = None
    grpc: GrpcCheck | None = None
    tcp: Nothing | None = None
    interval: v.Duration = q.Duration(10_000)
    timeout: v.Duration = q.Duration(3_000)
    jitter: v.Percent = q.Percent(10)
    unhealthy_threshold: v.Positive = 3
    healthy_threshold: v.Positive = 2


class ErrorRate(Section):
    percent: v.Percent = q.Percent(50)
    window: v.Duration = q.Duration(10_000)
    min_requests: v.Positive = 20


class Passive(Section):
    consecutive_5xx: v.Positive = 5
    consecutive_connect_failures: v.Positive = 3
    error_rate: ErrorRate = ErrorRate()
    ejection_time: v.Duration = q.Duration(30_000)
    max_ejection: v.Percent = q.Percent(50)


class Deep(Section):
    min_free_memory: v.Size | None = None
    max_temperature: v.Temperature = q.Temperature(90)
    fatal_xids: list[v.Positive] = [48, 64, 74, 79, 95]
    stalled_after: v.Duration = q.Duration(15_000)


class LoadShedding(Section):
    min_healthy: v.Percent = q.Percent(50)
    retry_after: v.Duration = q.Duration(5_000)


class Health(Section):
    active: Active | None = None
    passive: Passive = Passive()
    deep: Deep = Deep()
    load_shedding: LoadShedding | None = None


class Dns(Section):
    name: v.Host
    port: v.Port
    refresh: v.Duration = q.Duration(10_000)
    max_replicas: Annotated[int, Field(ge=1, le=4096)] = 32
    gpu: v.Gpu | None = None
    resolvers: list[v.Address] = []


class FileDiscovery(Section):
    path: v.FilePath


class Discovery(Section):
    CHOICES: ClassVar = (Choice(("dns", "file")),)

    dns: Dns | None = None
    file: FileDiscovery | None = None


class PoolTls(Section):
    ca: v.FilePath | None = None
    server_name: v.Host | None = None
    certificate: v.FilePath | None = None
    key: v.FilePath | None = None


class Pool(Section):
    CHOICES: ClassVar = (Choice(("replicas", "discovery")),)

    replicas: Annotated[list[Replica], Field(min_length=1)] = []
    discovery: Discovery | None = None
    model: Model | None = None
    labels: dict[v.Label, v.LabelValue] = {}
    protocol: Literal["http1", "http2", "grpc"] = "http1"
    balance: Balance = Balance()
    affinity: Affinity | None = None
    drain_deadline: v.Duration = q.Duration(120_000)
    locality: Locality | None = None
    connections: Connections = Connections()
    timeouts: PoolTimeouts = PoolTimeouts()
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    slow_start: SlowStart | None = None
    health: Health = Health()
    telemetry: Telemetry | None = None
    weighting: Weighting | None = None
    tls: PoolTls | None = None
