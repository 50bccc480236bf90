"""The parameters of a simulation: a fleet, the errors of its capacities, faults, and the age of samples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lbctl.ir.pools import DeepCheck, SlowStart, Weighting
from lbctl.simulate.engine import CostModel, SpeedFault


@dataclass(frozen=True, slots=True)
class SimulatedReplica:
    """A replica of the simulated pool."""

    speed: float = 1.0
    """Its real speed."""
    capacity: float = 1.0
    """Its capacity in the fleet file."""
    gpu: str = "H100-SXM"
    """Its type of GPU."""
    curve: CostModel = field(default_factory=CostModel)
    """The costs of its iterations at a speed of 1."""
    faults: tuple[SpeedFault, ...] = ()
    """What slows or stops it, and when."""
    joins: float = 0.0
    """When it joins the pool, in seconds."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The parameters of one run. Times are in seconds."""

    members: tuple[SimulatedReplica, ...]
    load: float = 0.75
    """Offered ÷ saturated load of the replicas that are present from the start, at their real speed."""
    seconds: float = 300.0
    """How long the run lasts."""
    interval: float = 5.0
    """The scrape interval."""
    delay: float = 1.0
    """The time until a sample arrives."""
    stale_after: float = 15.0
    """The age at which a sample is no longer used."""
    push_every: float = 0.0
    """The least time between two changes at the proxies (nginx's reload)."""
    loss: float = 0.0
    """The part of samples that is lost."""
    noise: float = 0.0
    """The standard deviation of the logarithm of measured times."""
    proxies: int = 2
    """The number of proxies that share the load."""
    algorithm: str = "least_conn"
    """How a proxy chooses, as one of `simulate.proxies`."""
    weighting: Weighting = field(default_factory=lambda: Weighting(strategy="adaptive"))
    """How weights follow the samples."""
    deep: DeepCheck = field(default_factory=DeepCheck)
    """The limits of deep health."""
    slow_start: SlowStart | None = field(default_factory=SlowStart)
    """The ramp of a replica that joins; None: it has none."""
    warm_up: float = 30.0
    """The time at the beginning that is not measured."""
    burst: float = 1.0
    """> 1: arrivals come in bursts of that mean size."""
    patience: float = 60.0
    """A client gives up after this time without a first token."""


def with_static_weights(scenario: Scenario) -> Scenario:
    """The same scenario with capacities only: no weights and no health from telemetry."""
    return replace(scenario, weighting=Weighting(), deep=DeepCheck(stalled_after=None))


def homogeneous(count: int, *others: SimulatedReplica) -> tuple[SimulatedReplica, ...]:
    """`count` healthy replicas of the same kind, then `others`."""
    return (*(SimulatedReplica() for _ in range(count)), *others)


def heterogeneous(small: float = 0.2, middle: float = 0.4, big: float = 1.0) -> tuple[SimulatedReplica, ...]:
    """2 big, 3 middle and 3 small GPUs with real speeds of 5 : 2 : 1; the arguments are their capacities."""
    return (
        *(SimulatedReplica(1.0, big, "H100-SXM") for _ in range(2)),
        *(SimulatedReplica(0.4, middle, "A100-80GB") for _ in range(3)),
        *(SimulatedReplica(0.2, small, "L40S") for _ in range(3)),
    )
