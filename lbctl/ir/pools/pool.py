"""Replicas of one model, and how a proxy treats them. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lbctl.ir.address import Address
from lbctl.ir.pools.balance import Affinity, Balance, Locality, SessionHeader
from lbctl.ir.pools.connections import CircuitBreaker, Connections, PoolTls, Upstream, UpstreamHeader
from lbctl.ir.pools.discovery import Discovery
from lbctl.ir.pools.health import ActiveCheck, DeepCheck, LoadShedding, PassiveCheck
from lbctl.ir.pools.telemetry import Telemetry, Weighting

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
    devices: tuple[str, ...] = ()
    """Identifiers of its GPUs, to find their metrics."""
    labels: tuple[tuple[str, str], ...] = ()
    """(name, value), sorted; placeholders of metrics sources are filled from them."""
    telemetry: Telemetry | None = None
    """Its own sources of metrics; None: those of the pool."""


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
    session: SessionHeader | None = None
    """The header in which replicas name sessions; None: they name none that lasts."""
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
    is_limited: bool = False
    """Whether the files limit the connections or requests of the whole pool; else the limits are a fuse."""
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
    fail_open: bool = False
    """Whether the replicas are used when all of them fail their active checks."""
    load_shedding: LoadShedding | None = None
    """When requests are refused; None: they never are."""
    telemetry: Telemetry | None = None
    """Where metrics are read; None: none are, and weights are static."""
    weighting: Weighting = Weighting()
    """How weights follow the signals."""
    tls: PoolTls | None = None
    """TLS to the replicas; None: plain connections."""
    upstream: Upstream | None = None
    """What requests to a hosted API have in place of the client's own; None for replicas of one's own."""
    credentials: UpstreamHeader | None = None
    """The header with the key that replicas of one's own ask for; None: they ask for none."""

    @property
    def sent(self) -> Upstream | None:
        """What requests have in place of the client's own, those to replicas with credentials included."""
        if self.credentials is not None:
            return Upstream("", headers=(self.credentials,))
        return self.upstream
