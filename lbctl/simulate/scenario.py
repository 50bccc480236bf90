"""The parameters of a simulation: a fleet, errors in its capacities, faults, and sample age."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lbctl.ir.pools import DeepCheck, SlowStart, Weighting
from lbctl.simulate.engine import CostModel, SpeedFault


@dataclass(frozen=True, slots=True)
class SimulatedReplica:
    """A replica of the simulated pool."""

    speed: float = 1.0
    """Actual speed."""
    capacity: float = 1.0
    """Capacity in the fleet file."""
    gpu: str = "H100-SXM"
    """GPU type."""
    curve: CostModel = field(default_factory=CostModel)
    """Costs of the replica's iterations at a speed of 1."""
    faults: tuple[SpeedFault, ...] = ()
    """Faults that slow down or stop the replica."""
    joins: float = 0.0
    """Time at which the replica joins the pool, in seconds."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The parameters of one run. Times are in seconds."""

    members: tuple[SimulatedReplica, ...]
    load: float = 0.75
    """Offered load ÷ saturated load of the initially present replicas, at their actual speed."""
    seconds: float = 300.0
    """Duration of the run."""
    interval: float = 5.0
    """Scrape interval."""
    delay: float = 1.0
    """Time that a sample takes to arrive."""
    stale_after: float = 15.0
    """Age at which a sample stops being used."""
    push_every: float = 0.0
    """Minimum time between two changes at the proxies (nginx's reload)."""
    loss: float = 0.0
    """Share of samples that are lost."""
    noise: float = 0.0
    """Standard deviation of the logarithm of measured times."""
    proxies: int = 2
    """Number of proxies that share the load."""
    algorithm: str = "least_conn"
    """A proxy's algorithm, one of `simulate.proxies`."""
    weighting: Weighting = field(default_factory=lambda: Weighting(strategy="adaptive"))
    """How weights follow samples."""
    deep: DeepCheck = field(default_factory=DeepCheck)
    """Deep-health limits."""
    slow_start: SlowStart | None = field(default_factory=SlowStart)
    """Ramp of a joining replica; None for no ramp."""
    warm_up: float = 30.0
    """Warm-up time, which is not measured."""
    burst: float = 1.0
    """Mean size of arrival bursts, if above 1."""
    patience: float = 60.0
    """Time without a first token after which a client gives up."""


def with_static_weights(scenario: Scenario) -> Scenario:
    """Return the scenario with capacities only, without telemetry-based weights and health."""
    return replace(scenario, weighting=Weighting(), deep=DeepCheck(stalled_after=None))


def homogeneous(count: int, *others: SimulatedReplica) -> tuple[SimulatedReplica, ...]:
    """Return `count` healthy replicas of the same kind, followed by `others`."""
    return (*(SimulatedReplica() for _ in range(count)), *others)


def heterogeneous(small: float = 0.2, middle: float = 0.4, big: float = 1.0) -> tuple[SimulatedReplica, ...]:
    """Return 2 large, 3 medium and 3 small GPUs with actual speeds of 5 : 2 : 1. The arguments are their capacities."""
    return (
        *(SimulatedReplica(1.0, big, "H100-SXM") for _ in range(2)),
        *(SimulatedReplica(0.4, middle, "A100-80GB") for _ in range(3)),
        *(SimulatedReplica(0.2, small, "L40S") for _ in range(3)),
    )
