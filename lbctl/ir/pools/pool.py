"""Replicas of one model, and how a proxy treats them. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lbctl.ir.pools.balance import Affinity, Balance, Locality, SessionHeader
from lbctl.ir.pools.connections import CircuitBreaker, Connections, PoolTls
from lbctl.ir.pools.discovery import Discovery
from lbctl.ir.pools.health import ActiveCheck, DeepCheck, LoadShedding, PassiveCheck
from lbctl.ir.pools.replica import Replica, SlowStart
from lbctl.ir.pools.telemetry import Telemetry, Weighting
from lbctl.ir.upstream import Upstream, UpstreamHeader

Protocol = Literal["http1", "http2", "grpc"]


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
