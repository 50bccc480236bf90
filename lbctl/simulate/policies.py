"""A simulation's policies: how each proxy implements each `balance.algorithm` and uses weights.

A hash is looked up among the points of a ring (HAProxy, nginx) or in Envoy's Maglev table, which is represented as a
ring.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lbctl.ir.pools import Pool
from lbctl.ir.weight import Weight
from lbctl.simulate import balancing
from lbctl.simulate.state import FOR_ANY, FOR_ONE, NOWHERE
from lbctl.targets import replica_weights

_HASH_KEYS = 1 << 32
"""Number of hash keys; all keys are below it."""
_POINTS_OF_REPLICA = 128
"""Ring points for a replica of mean capacity."""
_MAGLEV_PLACES = 65_537
"""Size of Envoy's Maglev table."""
_Convert = Callable[[Pool], Callable[[Sequence[Weight]], Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Policy:
    """How one kind of proxy chooses a replica with one algorithm."""

    proxy: str
    """Kind of proxy."""
    algorithm: str
    """The algorithm's name in a fleet file."""
    rule: int
    """Chooser for different capacities, one of `choosers`."""
    convert: _Convert
    """Converts a pool's published weights to the proxy's weights."""
    push_every: float = 0.0
    """Minimum time between two weight changes in seconds, because of nginx reloads."""

    even_rule: int | None = None
    """Chooser for equal capacities; None if it is the same."""

    def chooser(self, pool: Pool) -> int:
        """Return the chooser for a pool, one of `choosers`."""
        uneven = len({replica.capacity for replica in pool.replicas}) > 1
        return self.rule if uneven or self.even_rule is None else self.even_rule

    @property
    def skips_full(self) -> bool:
        """Whether the proxy chooses only among replicas that are not full.

        This is the case for nginx, and for HAProxy except with a hash.
        """
        return self.proxy == "nginx" or self.waits == FOR_ANY

    @property
    def waits(self) -> int:
        """Return where requests wait if the replica is full.

        nginx rejects them, and Envoy queues them for the chosen replica.
        """
        if self.proxy == "nginx":
            return NOWHERE
        return FOR_ANY if self.proxy == "haproxy" and self.algorithm not in ("hash", "pick") else FOR_ONE

    @property
    def bounds_waiting(self) -> bool:
        """Whether `timeouts.queue` has an effect."""
        return self.proxy == "haproxy"

    @property
    def repeats(self) -> bool:
        """Whether a retry goes back to the same replica if no other replica has capacity."""
        return self.proxy == "haproxy"

    @property
    def has_alternatives(self) -> bool:
        """Whether retries of picked requests go to the picker's alternatives.

        In that case, the start of the response reports the chosen replica.
        """
        return self.proxy == "envoy"

    def ramps(self, pool: Pool) -> bool:
        """Return whether a joining replica starts with a low weight."""
        return pool.slow_start is not None and self.rule not in (balancing.RING, balancing.PICKED)

    @property
    def bounds_load(self) -> bool:
        """Whether `bounded_load` has an effect. nginx does not support it."""
        return self.proxy != "nginx"

    @property
    def jumps(self) -> bool:
        """Whether requests beyond the bound go to any replica with capacity rather than to the next one on the ring."""
        return self.proxy == "envoy"

    def lookup(self, pool: Pool) -> list[tuple[int, int]]:
        """Return (point, replica index) pairs for hash lookups, or a single pair for other algorithms."""
        if self.rule != balancing.RING:
            return [(0, 0)]
        return _maglev_points(pool) if self.proxy == "envoy" else _ring_points(pool)

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
"""Seconds between reloads."""

POLICIES = {
    policy.name: policy
    for policy in (
        Policy("envoy", "round_robin", balancing.DEADLINES_BY_WEIGHT, _rates),
        Policy("envoy", "least_request", balancing.DEADLINES, _deadlines),
        Policy("envoy", "random", balancing.DEADLINES_BY_WEIGHT, _rates, even_rule=balancing.RANDOM),
        Policy("envoy", "hash", balancing.RING, _rates),
        Policy("envoy", "pick", balancing.PICKED, _rates),
        Policy("haproxy", "round_robin", balancing.SMOOTH, _rates),
        Policy("haproxy", "least_request", balancing.LEASTCONN, _in_flight),
        Policy("haproxy", "random", balancing.RANDOM, _rates),
        Policy("haproxy", "hash", balancing.RING, _rates),
        Policy("haproxy", "pick", balancing.PICKED, _rates),
        Policy("nginx", "round_robin", balancing.SMOOTH, _rates, _NGINX_RELOAD),
        Policy("nginx", "least_request", balancing.LEAST_CONN, _in_flight, _NGINX_RELOAD),
        Policy("nginx", "random", balancing.RANDOM, _rates, _NGINX_RELOAD),
        Policy("nginx", "hash", balancing.RING, _rates, _NGINX_RELOAD),
        Policy("nginx", "pick", balancing.PICKED, _rates, _NGINX_RELOAD),
    )
}
"""Name → policy."""


def _ring_points(pool: Pool) -> list[tuple[int, int]]:
    """Return sorted (point, replica index) pairs, in proportion to the replicas' capacities."""
    total = sum(replica.capacity for replica in pool.replicas)
    result = []
    for index, replica in enumerate(pool.replicas):
        share = max(1, round(_POINTS_OF_REPLICA * len(pool.replicas) * replica.capacity / total))
        result += [(zlib.crc32(f"{replica.name}_{number}".encode()), index) for number in range(share)]
    return sorted(result)


def _maglev_points(pool: Pool) -> list[tuple[int, int]]:
    """Return Envoy's Maglev table as evenly spaced points."""
    return [
        ((place + 1) * _HASH_KEYS // _MAGLEV_PLACES - 1, replica) for place, replica in enumerate(_maglev_table(pool))
    ]


def _maglev_table(pool: Pool) -> list[int]:
    """Return Envoy's Maglev table.

    Replicas claim entries in turn, each in its own order and in proportion to its capacity.
    """
    largest = max(replica.capacity for replica in pool.replicas)
    seeds = [zlib.crc32(replica.name.encode()) for replica in pool.replicas]
    place = [seed % _MAGLEV_PLACES for seed in seeds]
    skip = [zlib.crc32(replica.name[::-1].encode(), 1) % (_MAGLEV_PLACES - 1) + 1 for replica in pool.replicas]
    due = [0.0] * len(seeds)
    table, free = [-1] * _MAGLEV_PLACES, _MAGLEV_PLACES
    while free:
        for index, replica in enumerate(pool.replicas):
            due[index] += replica.capacity / largest
            if due[index] < 1.0 or not free:
                continue
            due[index] -= 1.0
            while table[place[index]] >= 0:
                place[index] = (place[index] + skip[index]) % _MAGLEV_PLACES
            table[place[index]] = index
            free -= 1
    return table
