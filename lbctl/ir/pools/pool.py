"""Replicas of one model, and how a proxy treats them. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lbctl.ir.address import Address
from lbctl.ir.pools.balance import Affinity, Balance, Locality, SessionHeader
from lbctl.ir.pools.connections import CircuitBreaker, Connections, PoolTls, Upstream, UpstreamHeader
from lbctl.ir.pools.discovery import Discovery
from lbctl.ir.pools.health import (
    ActiveCheck,
    AgentCheck,
    DeepCheck,
    GrpcCheck,
    HttpCheck,
    LoadShedding,
    PassiveCheck,
    TcpCheck,
)
from lbctl.ir.pools.slow_start import SlowStart
from lbctl.ir.pools.telemetry import Telemetry, Weighting

Protocol = Literal["http1", "http2", "grpc"]


@dataclass(frozen=True, slots=True)
class Replica:
    """One model server."""

    name: str
    """The name, unique in its pool."""
    address: Address
    capacity: float = 1.0
    """Load that the replica can carry, relative to the other replicas of its pool; > 0."""
    priority: int = 0
    """0 for a preferred replica; higher numbers are standbys."""
    drain: bool = False
    """Whether the files drain the replica."""
    region: str | None = None
    """None if the files do not state a region."""
    zone: str | None = None
    """None if the files do not state a zone."""
    gpu: str | None = None
    """Name of the replica's GPU in the GPU table; None if the files do not state it."""
    gpu_count: int = 1
    devices: tuple[str, ...] = ()
    """Identifiers of its GPUs, to find their metrics."""
    labels: tuple[tuple[str, str], ...] = ()
    """(name, value), sorted; they fill the placeholders of metrics sources."""
    telemetry: Telemetry | None = None
    """The replica's own sources of metrics; None: the pool's sources."""
    agent_port: int | None = None
    """HTTP port of its agent; None: the port of the pool's agents."""


@dataclass(frozen=True, slots=True)
class Model:
    """Model that a pool serves."""

    name: str
    """The name that clients request."""
    version: str | None = None
    """None if the files do not state a version."""
    adapters: tuple[str, ...] = ()
    """Names of the model's LoRA adapters, which clients request as models."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas of one model, with all settings that a proxy needs to balance over them."""

    name: str
    """The name, unique in the fleet."""
    replicas: tuple[Replica, ...] = ()
    """Replicas, by name; discovered replicas are added at run time."""
    discovery: Discovery | None = None
    """Source of further replicas; None: the files list all of them."""
    protocol: Protocol = "http1"
    """Protocol of the replicas."""
    model: Model | None = None
    """None if the files do not name a model."""
    labels: tuple[tuple[str, str], ...] = ()
    """(name, value), sorted."""
    balance: Balance = Balance()
    """Load-balancing settings."""
    affinity: Affinity | None = None
    """Cookie that keeps a client on one replica; None: no cookie."""
    session: SessionHeader | None = None
    """Header that replicas use to send session IDs; None: no such header."""
    drain_deadline: int = 120_000
    """Time after which the requests of a drained replica are aborted."""
    locality: Locality | None = None
    """Preference for near replicas; None: no preference."""
    connections: Connections = Connections()
    """Keep-alive connections to the replicas."""
    connect_timeout: int = 2_000
    """Timeout for opening a connection to a replica."""
    queue_timeout: int = 10_000
    """Maximum time that a request waits for a replica."""
    circuit_breaker: CircuitBreaker = field(default_factory=lambda: CircuitBreaker(1024, 512, 1024, 3))
    """Limits of connections and requests."""
    is_limited: bool = False
    """Whether the files limit the connections or requests of the whole pool; otherwise the limits are a fuse."""
    few_slots: bool = False
    """Whether each replica processes only a few requests at a time and queues the others.

    The number is the same for every replica, regardless of its capacity.
    """
    slow_start: SlowStart | None = None
    """Ramp of new replicas; None: new replicas get their full weight immediately."""
    active: ActiveCheck | None = None
    """Active health checks; None: disabled. With `agent`, they query the agent."""
    agent: AgentCheck | None = None
    """The agent next to each replica; None: no agent."""
    passive: PassiveCheck | None = PassiveCheck()
    """Outlier detection; None: disabled."""
    deep: DeepCheck = DeepCheck()
    """Limits of deep health."""
    fail_open: bool = False
    """Whether replicas are used if all of them fail their active checks."""
    load_shedding: LoadShedding | None = None
    """Conditions for rejecting requests; None: disabled."""
    telemetry: Telemetry | None = None
    """Sources of metrics; None: no metrics are read, and weights are static."""
    weighting: Weighting = Weighting()
    """How weights follow the signals."""
    tls: PoolTls | None = None
    """TLS to the replicas; None: plain connections."""
    upstream: Upstream | None = None
    """Replacements for parts of a request to a hosted API; None for self-hosted replicas."""
    credentials: UpstreamHeader | None = None
    """Header with the key that self-hosted replicas require; None: no key."""

    @property
    def engine_probe(self) -> HttpCheck | GrpcCheck | TcpCheck | None:
        """Return the engine check that the files set, run by proxies or agents; None if they set none."""
        if self.agent is not None:
            return self.agent.probe
        return self.active.probe if self.active is not None else None

    def check_port(self, replica: Replica) -> int | None:
        """Return the port of the replica's active checks; None: its own port, or no checks."""
        if self.active is None:
            return None
        return self.active.port if replica.agent_port is None else replica.agent_port

    @property
    def sent(self) -> Upstream | None:
        """Return the replacements for parts of a request, including the credentials of replicas."""
        if self.credentials is not None:
            return Upstream("", headers=(self.credentials,))
        return self.upstream
