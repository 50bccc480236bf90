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
    """The name, unique in its pool."""
    address: Address
    """Where it listens."""
    capacity: float = 1.0
    """The load that it can carry, relative to the other replicas of its pool; > 0."""
    priority: int = 0
    """0 is preferred; higher numbers are standbys."""
    drain: bool = False
    """Whether the files take it out of new traffic."""
    region: str | None = None
    """The region that it runs in; None where the files give none."""
    zone: str | None = None
    """The zone that it runs in; None where the files give none."""
    gpu: str | None = None
    """The name of its GPU in the GPU table; None where the files give none."""
    gpu_count: int = 1
    """The number of its GPUs."""
    devices: tuple[str, ...] = ()
    """Identifiers of its GPUs, to find their metrics."""
    labels: tuple[tuple[str, str], ...] = ()
    """(name, value), sorted; placeholders of metrics sources are filled from them."""
    telemetry: Telemetry | None = None
    """Its own sources of metrics; None: those of the pool."""


@dataclass(frozen=True, slots=True)
class HashKey:
    """What a hash of a request is computed from."""

    kind: Literal["header", "cookie", "query", "source_ip", "json_body", "prompt_prefix"]
    """The part of the request that is hashed."""
    name: str = ""
    """Empty for source_ip; a path such as `$.user` for json_body."""
    bytes: int = 0
    """The length of a prompt_prefix."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What names the session of a request: a header or a field of the JSON body."""

    header: str = ""
    """The header's name in lower case; empty for a field of the body."""
    body: str = ""
    """The field as `$.user`; empty for a header."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """How the beginning of a prompt is recognised."""

    block: int = 256
    """The size of a block in bytes."""
    blocks: int = 128
    """The largest number of blocks of one prompt."""


@dataclass(frozen=True, slots=True)
class PickPolicy:
    """How the picker chooses a replica for each request, for the algorithm `pick`."""

    session: tuple[SessionKey, ...]
    """What names a session; the first one that a request has counts."""
    prefix: Prefix | None = Prefix()
    """How prompts are recognised; None: they are not."""
    bound: float = 1.25
    """> 1: affinity ends at this many times the mean load by capacity."""
    timeout: int = 200
    """How long a proxy waits for the picker, in milliseconds."""

    @property
    def reads_bodies(self) -> bool:
        """Whether the picker needs the beginning of the request's body."""
        return self.prefix is not None or any(key.body for key in self.session)

    @property
    def session_headers(self) -> tuple[str, ...]:
        """The headers that may name a session, in order."""
        return tuple(key.header for key in self.session if key.header)


@dataclass(frozen=True, slots=True)
class Balance:
    """How a pool's replica is chosen for a request."""

    algorithm: Algorithm = "least_request"
    """How the proxy chooses by itself; with `pick`, the requests that the picker does not answer."""
    key: HashKey | None = None
    """What is hashed; None for every algorithm but `hash`."""
    bounded_load: float | None = None
    """> 1: no replica carries more than this many times the mean load."""
    pick: PickPolicy | None = None
    """How the picker chooses; None: the proxy alone does."""

    @property
    def name(self) -> str:
        """The algorithm as it is written in a fleet file."""
        return "pick" if self.pick else self.algorithm


@dataclass(frozen=True, slots=True)
class Affinity:
    """A cookie that keeps a client on one replica."""

    cookie: str
    """The name of the cookie."""
    ttl: int = 1_800_000
    """How long the client keeps the cookie."""


@dataclass(frozen=True, slots=True)
class Locality:
    """Preference for replicas in the proxy's own zone or region."""

    prefer: Literal["zone", "region"] = "zone"
    """Which replicas are local: those of the proxy's zone, or of its region."""
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
class SlowStart:
    """The gradual increase of a new replica's weight."""

    window: int = 60_000
    """How long the ramp lasts."""
    min_weight: float = 10.0
    """The initial weight, in percent."""
    aggression: float = 1.0
    """The exponent of the ramp; 1.0 is linear."""

    def factor(self, age: float) -> float:
        """Envoy's factor on the weight of a replica that joined `age` seconds ago; 1 when it has ramped up."""
        part = age * 1000 / self.window if self.window else 1.0
        if part >= 1.0:
            return 1.0
        ramped: float = max(part, 0.0) ** (1.0 / self.aggression)
        return max(self.min_weight / 100, ramped)


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


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """One endpoint of metrics, by URL template."""

    kind: str
    """The name of the source in the registry of metrics sources."""
    url: str
    """The URL, with placeholders that are filled per replica."""
    signal: str | None = None
    """For the kinds custom and prometheus: the signal that the value is."""
    metric: str | None = None
    """For the kind custom: the name of the metric."""
    query: str | None = None
    """For the kind prometheus: the PromQL expression."""
    unit: str | None = None
    """For the kinds custom and prometheus: the unit of the value; None: that of the signal."""
    match_labels: tuple[tuple[str, str], ...] = ()
    """Labels that a sample must have, with placeholders filled per replica."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """How often and where metrics of a replica are read. The first source with a value wins."""

    interval: int = 5_000
    """The time between two scrapes of a source."""
    timeout: int = 2_000
    """How long a scrape may take."""
    stale_after: int = 15_000
    """The age at which a value is no longer used."""
    sources: tuple[MetricsSource, ...] = ()
    """The sources, the preferred one first."""


@dataclass(frozen=True, slots=True)
class Weighting:
    """How a replica's weight follows its signals. Percentages unless noted."""

    strategy: str = "static"
    """The name of the strategy in the registry."""
    smoothing: int = 20_000
    """The time constant of the moving average, in milliseconds."""
    act_above: float = 25.0
    """How far a replica's speed must be off that of its peers before its weight moves."""
    release_below: float = 15.0
    """How near its speed must be again before it gets the weight of its capacity back."""
    across_types: float = 45.0
    """The same as `act_above` between types of GPU."""
    composite: tuple[tuple[str, float], ...] = ()
    """(signal, relative part) of the strategy composite, sorted."""
    max_step_down: float = 50.0
    """The largest decrease of a weight in one interval."""
    max_step_up: float = 10.0
    """The largest increase of a weight in one interval."""
    deadband: float = 10.0
    """The smallest change of a weight that is published."""
    floor: float = 5.0
    """The lowest weight, relative to the capacity."""
    ceiling: float = 400.0
    """The highest weight, relative to the capacity."""


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
    """The name of the source."""
    name: str
    """The DNS name."""
    port: int
    """The port of each replica."""
    refresh: int = 10_000
    """The longest time between two lookups."""
    max_replicas: int = 32
    """The number of addresses beyond which an answer is cut off."""
    gpu: str | None = None
    """The GPU of each replica; None where the files give none."""
    resolvers: tuple[Address, ...] = ()
    """The DNS servers that are asked; empty: those of the machine."""
    capacity: float = 1.0
    """The capacity of each replica, from `gpu`."""


@dataclass(frozen=True, slots=True)
class FileDiscovery(Discovery):
    """Replicas listed in a file of Prometheus' file_sd form."""

    kind: ClassVar[str] = "file"
    """The name of the source."""
    compiled: ClassVar[bool] = True
    """The compiler reads the file."""
    path: str
    """The path of the file, relative to the fleet file."""


@dataclass(frozen=True, slots=True)
class LabelSource:
    """A label that says something about a replica."""

    of: Literal["node", "pod"]
    """Whose label it is."""
    label: str
    """The name of the label."""


@dataclass(frozen=True, slots=True)
class KubernetesDiscovery(Discovery):
    """Replicas that are the endpoints of a Kubernetes service."""

    kind: ClassVar[str] = "kubernetes"
    """The name of the source."""
    namespace: str
    """The namespace of the service."""
    service: str
    """The name of the service."""
    port: str = ""
    """The name of the service's port, or the number of the pods' port; empty: the service's only port."""
    kubeconfig: str | None = None
    """The path of the kubeconfig, relative to the fleet file; None: the service account of the own pod."""
    kubeconfig_file: str | None = None
    """The path of the kubeconfig on this machine."""
    context: str | None = None
    """The context of the kubeconfig; None: its current one."""
    gpu_from: LabelSource | None = None
    """Where the type of the GPU is written; None: every replica has the same capacity."""
    zone_from: LabelSource | Literal["endpoint"] | None = None
    """Where the zone is written: a label, or the EndpointSlice; None: no replica has a zone."""
    max_replicas: int = 1024
    """The number of endpoints beyond which an answer is cut off."""
    gpus: tuple[tuple[str, float], ...] = ()
    """(type, throughput): the fleet's own figures, which come before those of the GPU table; sorted."""


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
class Model:
    """The model that a pool serves."""

    name: str
    """The name that clients request."""
    version: str | None = None
    """The version; None where the files give none."""
    adapters: tuple[str, ...] = ()
    """The names of its LoRA adapters, which clients request as models."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas of one model, with everything that a proxy needs to balance over them."""

    name: str
    """The name, unique in the fleet."""
    replicas: tuple[Replica, ...] = ()
    """The replicas, by name; those of discovery are added while it runs."""
    discovery: Discovery | None = None
    """Where further replicas come from; None: the files list all of them."""
    protocol: Protocol = "http1"
    """The protocol that the replicas speak."""
    model: Model | None = None
    """The model that the replicas serve; None where the files name none."""
    labels: tuple[tuple[str, str], ...] = ()
    """(name, value), sorted."""
    balance: Balance = Balance()
    """How a replica is chosen."""
    affinity: Affinity | None = None
    """The cookie that keeps a client on one replica; None: there is none."""
    drain_deadline: int = 120_000
    """How long requests of a drained replica may continue."""
    locality: Locality | None = None
    """The preference for near replicas; None: there is none."""
    connections: Connections = Connections()
    """The keep-alive connections to the replicas."""
    connect_timeout: int = 2_000
    """How long a connection to a replica may take."""
    queue_timeout: int = 10_000
    """How long a request may wait for a replica."""
    circuit_breaker: CircuitBreaker = field(default_factory=lambda: CircuitBreaker(1024, 512, 1024, 3))
    """The limits of connections and requests."""
    few_slots: bool = False
    """Whether each replica processes only a few requests at once and queues the others.

    The number is the same for every replica, whatever its capacity.
    """
    slow_start: SlowStart | None = None
    """The ramp of new replicas; None: they get their whole weight at once."""
    active: ActiveCheck | None = None
    """The active health checks; None: there are none."""
    passive: PassiveCheck | None = PassiveCheck()
    """The outlier detection; None: there is none."""
    deep: DeepCheck = DeepCheck()
    """The limits of deep health."""
    load_shedding: LoadShedding | None = None
    """When requests are refused; None: they never are."""
    telemetry: Telemetry | None = None
    """Where metrics are read; None: none are, and weights are static."""
    weighting: Weighting = Weighting()
    """How weights follow the signals."""
    tls: PoolTls | None = None
    """TLS to the replicas; None: plain connections."""
