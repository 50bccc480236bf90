"""What the picker knows about replicas: one `Candidate` for each, in a `PoolTable` for each pool.

The control plane composes the tables from what it sends to proxies; the picker decides nothing about fitness itself,
except for the limit of requests in flight, which only its own books know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from lbctl.ir.locality import Place, distance
from lbctl.ir.pools import Locality, PickPolicy, Pool, SlowStart

KV_FULL = 0.95
"""The used share of a KV cache above which an engine has to preempt requests, or lets new ones wait."""
_SPILL_BELOW = 70.0
"""Below this percentage of fit replicas of a priority the next one helps, where `locality` says nothing else."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica as the control plane sees it. Signals are None where they are unknown, never 0."""

    name: str
    """The name of the replica, unique in its pool."""
    address: str
    """`ip:port`, IPv6 in brackets, as proxies and gateways write it."""
    weight: float = 1.0
    """What the weighting law gives it, on the scale of the capacities of its pool; 0: nothing."""
    fit: bool = True
    """Whether it may get requests at all."""
    reason: str = ""
    """Why it is not fit, for people; empty when it is."""
    priority: int = 0
    """0 is preferred; higher numbers are standbys."""
    region: str | None = None
    """Its region; None: outside every region."""
    zone: str | None = None
    """Its zone within the region."""
    queue: float | None = None
    """Requests that wait in the engine, as last scraped."""
    kv: float | None = None
    """The used share of the KV cache, 0 to 1, as last scraped."""
    speed: float | None = None
    """A measured correction of `weight`, 1.0 for none; None where `weight` already has it or nothing is measured."""
    limit: int | None = None
    """The most requests in flight at this replica; None: no limit."""
    started: float | None = None
    """When it began to take requests, by the clock of the picker's `now`; None: longer ago than any slow start."""

    @property
    def is_congested(self) -> bool:
        """Whether requests are known to wait in its engine, or its KV cache is full."""
        return bool(self.queue) or (self.kv is not None and self.kv >= KV_FULL)


class Tier:
    """Replicas that are used together, with what every decision needs of them in parallel sequences."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self.candidates = tuple(candidates)
        """The replicas; all are fit."""
        self.names = [item.name for item in self.candidates]
        """Their names."""
        self.rates = [item.weight * (item.speed or 1.0) for item in self.candidates]
        """What each can do, relative to the others, without slow start."""
        self.total_rate = sum(self.rates)
        """What they can do together."""
        self.ramping = [index for index, item in enumerate(self.candidates) if item.started is not None]
        """The places of those that may be in their slow start."""
        self.limits = [(place, item.limit) for place, item in enumerate(self.candidates) if item.limit is not None]
        """The places of those that have a limit of requests in flight, and the limits."""

    @cached_property
    def some_have_room(self) -> bool:
        """Whether one of them is known to have neither a queue nor a full KV cache."""
        return any(item.queue == 0 and not item.is_congested for item in self.candidates)

    @cached_property
    def places(self) -> dict[str, int]:
        """Name → its place in the sequences."""
        return {name: index for index, name in enumerate(self.names)}


@dataclasses.dataclass(frozen=True)
class PoolTable:
    """The replicas of one pool, and how the pool is picked."""

    pool: str
    policy: PickPolicy
    """The section `balance.pick`."""
    candidates: tuple[Candidate, ...]
    """All replicas of the pool, the unfit ones too, by name."""
    model: str | None = None
    """The name of the pool's model; None where the fleet names none."""
    adapters: frozenset[str] = frozenset()
    """The names under which clients request the model's LoRA adapters."""
    locality: Locality | None = None
    """The preference for replicas near the proxy; None: there is none."""
    slow_start: SlowStart | None = None
    """The ramp of new replicas; None: they take their whole share at once."""
    _tiers: dict[tuple[Place, frozenset[str]], tuple[Tier, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, pool: Pool, candidates: Iterable[Candidate]) -> PoolTable:
        """Return the table of a pool with the algorithm `pick`."""
        assert pool.balance.pick is not None, f"the pool {pool.name} has another algorithm"
        return cls(
            pool=pool.name,
            policy=pool.balance.pick,
            candidates=tuple(sorted(candidates, key=lambda item: item.name)),
            model=pool.model.name if pool.model else None,
            adapters=frozenset(pool.model.adapters if pool.model else ()),
            locality=pool.locality,
            slow_start=pool.slow_start,
        )

    def ramp(self, candidate: Candidate, now: float) -> float:
        """Return the factor of slow start on what a replica can do, from 0 to 1; 1 where it does not ramp."""
        if self.slow_start is None or candidate.started is None:
            return 1.0
        return self.slow_start.factor(now - candidate.started)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all replicas."""
        return frozenset(item.name for item in self.candidates)

    def tiers(self, place: Place, regions: frozenset[str]) -> tuple[Tier, ...]:
        """Return the fit replicas in the order in which they are used, seen from a proxy at `place`.

        The replicas of one tier are used together: the nearest of the lowest priority and, where too few of them are
        fit, the next ones too. `regions` limits all of them; empty: any region.
        """
        key = (place, regions)
        if key not in self._tiers:
            self._tiers[key] = tuple(self._grouped(place, regions))
        return self._tiers[key]

    def rank(self, candidate: Candidate, place: Place) -> tuple[int, int]:
        """Return (priority, distance) of a replica; the lowest rank serves first."""
        if self.locality is None:
            return candidate.priority, 0
        return candidate.priority, distance(self.locality.prefer, place, Place(candidate.region, candidate.zone))

    def _grouped(self, place: Place, regions: frozenset[str]) -> Iterator[Tier]:
        spill_below = self.locality.spill_below if self.locality else _SPILL_BELOW
        ranks: dict[tuple[int, int], list[Candidate]] = {}
        for candidate in self.candidates:
            if not regions or candidate.region in regions:
                ranks.setdefault(self.rank(candidate, place), []).append(candidate)
        tier: list[Candidate] = []
        for _, members in sorted(ranks.items()):
            fit = [item for item in members if item.fit and item.weight > 0]
            tier += fit
            if tier and len(fit) * 100 >= spill_below * len(members):
                yield Tier(tier)
                tier = []
        if tier:
            yield Tier(tier)
