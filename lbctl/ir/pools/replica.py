"""One replica, and the ramp of a new one. Durations are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.ir.address import Address
from lbctl.ir.pools.telemetry import Telemetry


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
