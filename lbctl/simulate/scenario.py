"""What is simulated: a fleet, how true its capacities are, what goes wrong, and how old the samples are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lbctl.ir.pools import DeepCheck, SlowStart, Weighting
from lbctl.simulate.engine import Fault


@dataclass(frozen=True, slots=True)
class Member:
    """`speed`: what it really does; `capacity`: what the fleet file says. `joins`: when it comes into the pool."""

    speed: float = 1.0
    capacity: float = 1.0
    gpu: str = "H100-SXM"
    faults: tuple[Fault, ...] = ()
    joins: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load`: offered ÷ saturated, of the members that are there from the start, at their true speed. Seconds:
    `interval` between looks, `delay` until a sample arrives, `stale_after`, `push_every` (the least time between two
    changes at the proxies, nginx's reload). `loss`: part of the samples that never come; `noise`: standard deviation of
    the logarithm of the measured times. `burst`: > 1 makes arrivals come in bunches of that mean size."""

    members: tuple[Member, ...]
    load: float = 0.75
    seconds: float = 300.0
    interval: float = 5.0
    delay: float = 1.0
    stale_after: float = 15.0
    push_every: float = 0.0
    loss: float = 0.0
    noise: float = 0.0
    proxies: int = 2
    algorithm: str = "least_conn"
    weighting: Weighting = field(default_factory=lambda: Weighting(strategy="adaptive"))
    deep: DeepCheck = field(default_factory=DeepCheck)
    slow_start: SlowStart | None = field(default_factory=SlowStart)
    warm_up: float = 30.0
    burst: float = 1.0
    patience: float = 60.0
    """A client leaves after so long without a first token."""


def unaided(scenario: Scenario) -> Scenario:
    """The same with capacities alone: no weights and no health from telemetry."""
    return replace(scenario, weighting=Weighting(), deep=DeepCheck(stalled_after=None))


def even(count: int, *others: Member) -> tuple[Member, ...]:
    """So many healthy replicas of the same kind, and then `others`."""
    return (*(Member() for _ in range(count)), *others)


def mixed(small: float = 0.2, middle: float = 0.4, big: float = 1.0) -> tuple[Member, ...]:
    """2 big, 3 middle and 3 small GPUs whose true speeds are 5 : 2 : 1; the arguments are their capacities."""
    return (
        *(Member(1.0, big, "H100-SXM") for _ in range(2)),
        *(Member(0.4, middle, "A100-80GB") for _ in range(3)),
        *(Member(0.2, small, "L40S") for _ in range(3)),
    )
