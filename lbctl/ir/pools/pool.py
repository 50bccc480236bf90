"""Pools of replicas that serve one model, and how a proxy treats them. Durations are in milliseconds."""

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
    """A model server."""

    name: str
    """The name, unique in its pool."""
    address: Address
    capacity: float = 1.0
    """Load that the replica can handle, relative to the other replicas in its pool. Greater than 0."""
    priority: int = 0
    """Priority, which is 0 for a preferred replica. Replicas with higher numbers are standbys."""
    drain: bool = False
    """Whether the replica is drained in the files."""
    region: str | None = None
    """Region, or None if the files do not specify one."""
    zone: str | None = None
    """Zone, or None if the files do not specify one."""
    gpu: str | None = None
    """Name of the replica's GPU in the GPU table, or None if the files do not specify it."""
    gpu_count: int = 1
    devices: tuple[str, ...] = ()
    """Identifiers of the replica's GPUs, used to find their metrics."""
    labels: tuple[tuple[str, str], ...] = ()
    """(name, value) pairs, sorted, which replace the placeholders in metrics sources."""
    telemetry: Telemetry | None = None
    """The replica's own metrics sources, or None for the pool's sources."""
    agent_port: int | None = None
    """HTTP port of the replica's agent, or None for the port used by the pool's agents."""


@dataclass(frozen=True, slots=True)
class Model:
    """The model that a pool serves."""

    name: str
    """The name that clients request."""
    version: str | None = None
    """Version, or None if the files do not specify one."""
    adapters: tuple[str, ...] = ()
    """Names of the model's LoRA adapters, which clients request like models."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas that serve one model, with all settings that a proxy needs to balance load across them."""

    name: str
    """The name, unique in the fleet."""
    replicas: tuple[Replica, ...] = ()
    """Replicas, by name. Discovered replicas are added at run time."""
    discovery: Discovery | None = None
    """Source of additional replicas, or None if the files list all of them."""
    protocol: Protocol = "http1"
    """Protocol that the replicas use."""
    model: Model | None = None
    """Model, or None if the files do not name one."""
    labels: tuple[tuple[str, str], ...] = ()
    """(name, value) pairs, sorted."""
    balance: Balance = Balance()
    """Load-balancing settings."""
    affinity: Affinity | None = None
    """Cookie that keeps a client on one replica, or None if none is used."""
    session: SessionHeader | None = None
    """Header in which replicas send session IDs, or None if none is used."""
    drain_deadline: int = 120_000
    """Time after which a drained replica's requests are aborted."""
    locality: Locality | None = None
    """Preference for nearby replicas, or None for no preference."""
    connections: Connections = Connections()
    """Keep-alive connections to the replicas."""
    connect_timeout: int = 2_000
    """Timeout for opening a connection to a replica."""
    queue_timeout: int = 10_000
    """Maximum time that a request waits for a replica."""
    circuit_breaker: CircuitBreaker = field(default_factory=lambda: CircuitBreaker(1024, 512, 1024, 3))
    """Limits on connections and requests."""
    is_limited: bool = False
    """Whether the files limit connections or requests for the whole pool. If not, the limits act as a fuse."""
    few_slots: bool = False
    """Whether each replica processes only a few requests at a time and queues the others.

    This number is the same for every replica, regardless of its capacity.
    """
    slow_start: SlowStart | None = None
    """Ramp for new replicas. If None, new replicas get their full weight immediately."""
    active: ActiveCheck | None = None
    """Active health checks, or None if disabled. With `agent`, they query the agent."""
    agent: AgentCheck | None = None
    """The agent next to each replica, or None if no agents are used."""
    passive: PassiveCheck | None = PassiveCheck()
    """Outlier detection, or None if disabled."""
    deep: DeepCheck = DeepCheck()
    """Limits for the deep health check."""
    fail_open: bool = False
    """Whether replicas are used even if all of them fail their active checks."""
    load_shedding: LoadShedding | None = None
    """Conditions for rejecting requests, or None if disabled."""
    telemetry: Telemetry | None = None
    """Metrics sources. If None, no metrics are read, and weights are static."""
    weighting: Weighting = Weighting()
    """How weights follow the signals."""
    tls: PoolTls | None = None
    """TLS settings for connections to the replicas, or None for plain connections."""
    upstream: Upstream | None = None
    """Replacements for parts of a request to a hosted API, or None for self-hosted replicas."""
    credentials: UpstreamHeader | None = None
    """Header with the key that self-hosted replicas require, or None if no key is used."""

    @property
    def engine_probe(self) -> HttpCheck | GrpcCheck | TcpCheck | None:
        """Return the engine check set in the files, run by proxies or agents, or None if they do not set one."""
        if self.agent is not None:
            return self.agent.probe
        return self.active.probe if self.active is not None else None

    def check_port(self, replica: Replica) -> int | None:
        """Return the port for the replica's active checks, or None for its own port or if checks are disabled."""
        if self.active is None:
            return None
        return self.active.port if replica.agent_port is None else replica.agent_port

    @property
    def sent(self) -> Upstream | None:
        """Return the replacements for parts of a request, including the replicas' credentials."""
        if self.credentials is not None:
            return Upstream("", headers=(self.credentials,))
        return self.upstream
