"""The policies of a simulation: what each proxy makes of each `balance.algorithm`, and of the weights it is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lbctl.ir.pools import Pool
from lbctl.ir.weight import Weight
from lbctl.simulate import choosers, rings
from lbctl.simulate.columns import FOR_ANY, FOR_ONE, NOWHERE
from lbctl.targets import replica_weights

_Convert = Callable[[Pool], Callable[[Sequence[Weight]], Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a kind of proxy chooses a replica for one algorithm."""

    proxy: str
    """The kind of proxy."""
    algorithm: str
    """The algorithm as a fleet file names it."""
    rule: int
    """The chooser, one of `choosers`, where the capacities differ."""
    convert: _Convert
    """Returns for a pool how published weights become those of the proxy."""
    push_every: float = 0.0
    """The least seconds between two changes of weights: nginx's reload."""

    even_rule: int | None = None
    """The chooser where all capacities are equal; None: the same."""

    def chooser(self, pool: Pool) -> int:
        """Return the chooser for a pool, one of `choosers`."""
        uneven = len({replica.capacity for replica in pool.replicas}) > 1
        return self.rule if uneven or self.even_rule is None else self.even_rule

    @property
    def skips_full(self) -> bool:
        """Whether it chooses only among replicas that are not full: HAProxy does, but for a hash, and nginx does."""
        return self.proxy == "nginx" or self.waits == FOR_ANY

    @property
    def waits(self) -> int:
        """Where requests wait that find no room: nginx refuses them, Envoy lets them wait for the chosen replica."""
        if self.proxy == "nginx":
            return NOWHERE
        return FOR_ANY if self.proxy == "haproxy" and self.algorithm not in ("hash", "pick") else FOR_ONE

    @property
    def bounds_waiting(self) -> bool:
        """Whether `timeouts.queue` has an effect."""
        return self.proxy == "haproxy"

    @property
    def repeats(self) -> bool:
        """Whether a retry ends at the replica that has refused it where no other has room."""
        return self.proxy == "haproxy"

    @property
    def has_alternatives(self) -> bool:
        """Whether retries of picked requests go to the picker's next choices, and the answer's beginning tells it."""
        return self.proxy == "envoy"

    def ramps(self, pool: Pool) -> bool:
        """Return whether a replica that joins begins with a low weight."""
        return pool.slow_start is not None and self.rule not in (choosers.RING, choosers.PICKED)

    @property
    def bounds_load(self) -> bool:
        """Whether `bounded_load` has an effect: nginx has no such bound."""
        return self.proxy != "nginx"

    @property
    def jumps(self) -> bool:
        """Whether what is beyond the bound goes to any replica with room, and not to the next one of the ring."""
        return self.proxy == "envoy"

    def lookup(self, pool: Pool) -> list[tuple[int, int]]:
        """Return (point, number of the replica) of what hashes are looked up in; a single one for other algorithms."""
        if self.rule != choosers.RING:
            return [(0, 0)]
        return rings.maglev(pool) if self.proxy == "envoy" else rings.points(pool)

    @property
    def name(self) -> str:
        """`proxy:algorithm`."""
        return f"{self.proxy}:{self.algorithm}"


def _rates(_: Pool) -> Callable[[Sequence[Weight]], Sequence[float]]:
    return replica_weights.rates


def _in_flight(pool: Pool) -> Callable[[Sequence[Weight]], Sequence[float]]:
    return lambda weights: replica_weights.in_flight(weights, few_slots=pool.few_slots)


def _deadlines(pool: Pool) -> Callable[[Sequence[Weight]], Sequence[float]]:
    return lambda weights: replica_weights.deadlines(weights, few_slots=pool.few_slots)


_NGINX_RELOAD = 30.0
"""Seconds between two reloads."""

POLICIES = {
    policy.name: policy
    for policy in (
        Policy("envoy", "round_robin", choosers.DEADLINES_BY_WEIGHT, _rates),
        Policy("envoy", "least_request", choosers.DEADLINES, _deadlines),
        Policy("envoy", "random", choosers.DEADLINES_BY_WEIGHT, _rates, even_rule=choosers.RANDOM),
        Policy("envoy", "hash", choosers.RING, _rates),
        Policy("envoy", "pick", choosers.PICKED, _rates),
        Policy("haproxy", "round_robin", choosers.SMOOTH, _rates),
        Policy("haproxy", "least_request", choosers.LEASTCONN, _in_flight),
        Policy("haproxy", "random", choosers.RANDOM, _rates),
        Policy("haproxy", "hash", choosers.RING, _rates),
        Policy("haproxy", "pick", choosers.PICKED, _rates),
        Policy("nginx", "round_robin", choosers.SMOOTH, _rates, _NGINX_RELOAD),
        Policy("nginx", "least_request", choosers.LEAST_CONN, _in_flight, _NGINX_RELOAD),
        Policy("nginx", "random", choosers.RANDOM, _rates, _NGINX_RELOAD),
        Policy("nginx", "hash", choosers.RING, _rates, _NGINX_RELOAD),
        Policy("nginx", "pick", choosers.PICKED, _rates, _NGINX_RELOAD),
    )
}
"""Name → policy."""
