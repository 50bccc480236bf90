"""The picker's view of replicas: one `PoolTable` per pool, with one `Candidate` per replica.

The control plane builds the tables from the same state that it sends to proxies. The picker itself does not decide
which replicas are fit. The only exception is the limit on requests in flight, because only the picker itself knows
their number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from lbctl.ir.locality import NOWHERE, Place, distance
from lbctl.ir.pools import Locality, PickPolicy, Pool, SlowStart, relief

KV_FULL = 0.95
"""Share of the KV cache in use above which an engine has to preempt requests or queue new ones."""
_MIN_FACTOR = 1e-3
"""Minimum slow-start factor, even with `min_weight: 0%`, because a factor of 0 would make expected waits infinite."""
_SPILL_BELOW = 70.0
"""If fewer than this percentage of a priority's replicas are fit, the next priority is used too, unless `locality` sets
another percentage."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica as seen by the control plane. Unknown signals are None, never 0."""

    name: str
    """Name of the replica, unique in its pool."""
    address: str
    """`ip:port`, with IPv6 addresses in brackets, as proxies and gateways write it."""
    weight: float = 1.0
    """Weight set by the weighting strategy, on the scale of the pool's capacities; 0 means no requests."""
    fit: bool = True
    """Whether the replica may get requests."""
    reason: str = ""
    """Reason why the replica is not fit, for display; empty if it is fit."""
    priority: int = 0
    """0 is the preferred priority; replicas with higher numbers are standbys."""
    region: str | None = None
    """Region of the replica; None if it is not in a region."""
    zone: str | None = None
    """Zone of the replica within the region."""
    queue: float | None = None
    """Requests waiting in the engine, as of the last scrape."""
    kv: float | None = None
    """Share of the KV cache in use, from 0 to 1, as of the last scrape."""
    speed: float | None = None
    """Measured correction to `weight`; 1.0 means no correction. None if the correction is already included in `weight`
    or nothing has been measured."""
    limit: int | None = None
    """Maximum number of requests in flight at this replica; None if unlimited."""
    started: float | None = None
    """Time at which the replica began to get requests, on the same clock as the picker's `now`; None if it began before
    any slow start."""

    @property
    def rate(self) -> float:
        """Rate of the replica relative to the others, without slow start."""
        return self.weight * (self.speed or 1.0)

    @property
    def has_full_cache(self) -> bool:
        """Return whether the replica's KV cache is known to be full."""
        return self.kv is not None and self.kv >= KV_FULL


class Tier:
    """Replicas that are used together, with their decision data in parallel sequences."""

    def __init__(self, candidates: Iterable[Candidate], capacity: float) -> None:
        self.candidates = tuple(candidates)
        """The tier's replicas. All of them are fit."""
        self.names = [item.name for item in self.candidates]
        """The names of the replicas."""
        self.rates = [item.rate for item in self.candidates]
        """Rate of each replica relative to the others, without slow start."""
        self.total_rate = sum(self.rates)
        """Sum of the rates."""
        self.capacity = capacity
        """Sum of the rates if all replicas with these ranks were fit."""
        self.ramping = [index for index, item in enumerate(self.candidates) if item.started is not None]
        """Indexes of the replicas that may be in slow start."""
        self.limits = [(place, item.limit) for place, item in enumerate(self.candidates) if item.limit is not None]
        """Indexes of the replicas with a limit on requests in flight, each with its limit."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Maps each name to its index in the sequences."""
        return {name: index for index, name in enumerate(self.names)}


@dataclasses.dataclass(frozen=True)
class PoolTable:
    """One pool's replicas and the rules for picking among them."""

    pool: str
    policy: PickPolicy
    """The `balance.pick` section."""
    candidates: tuple[Candidate, ...]
    """All replicas of the pool, including unfit ones, sorted by name."""
    model: str | None = None
    """Name of the pool's model; None if the fleet does not specify one."""
    adapters: frozenset[str] = frozenset()
    """The names that clients use to request the model's LoRA adapters."""
    locality: Locality | None = None
    """Preference for replicas close to the proxy; None if not set."""
    slow_start: SlowStart | None = None
    """Slow start for new replicas; None if they get their full share immediately."""
    stalled_after: float | None = None
    """Seconds without progress after which the deep health check ejects a replica; None if it never does."""
    _tiers: dict[tuple[Place, frozenset[str]], tuple[Tier, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, pool: Pool, candidates: Iterable[Candidate]) -> PoolTable:
        """Return the table for a pool that uses the `pick` algorithm."""
        assert pool.balance.pick is not None, f"pool {pool.name} uses a different algorithm"
        return cls(
            pool=pool.name,
            policy=pool.balance.pick,
            candidates=tuple(sorted(candidates, key=lambda item: item.name)),
            model=pool.model.name if pool.model else None,
            adapters=frozenset(pool.model.adapters if pool.model else ()),
            locality=pool.locality,
            slow_start=pool.slow_start,
            stalled_after=pool.deep.stalled_after / 1000 if pool.deep.stalled_after is not None else None,
        )

    def rates(self, tier: Tier, now: float) -> list[float]:
        """Return the rates of a tier's replicas including slow start; `tier.rates` itself if none may be in slow start.

        If slow start would leave too little of the tier's capacity in use, all replicas in slow start get a higher
        rate, in proportion to what they lack.
        """
        if self.slow_start is None or not tier.ramping:
            return tier.rates
        rates = tier.rates.copy()
        for index in tier.ramping:
            started = tier.candidates[index].started
            assert started is not None
            rates[index] *= max(_MIN_FACTOR, self.slow_start.factor(now - started))
        part = relief(sum(rates), tier.total_rate, tier.capacity)
        if part in (0.0, 1.0):
            return tier.rates if part else rates
        return [rate + part * (full - rate) for rate, full in zip(rates, tier.rates, strict=True)]

    def ramps(self, now: float) -> dict[str, float]:
        """Return the fit replicas in slow start, each with the factor (below 1) applied to its rate."""
        return {
            name: rate / full
            for tier in self.tiers(NOWHERE, frozenset())
            for name, rate, full in zip(tier.names, self.rates(tier, now), tier.rates, strict=True)
            if rate < full
        }

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all replicas."""
        return frozenset(item.name for item in self.candidates)

    def tiers(self, place: Place, regions: frozenset[str]) -> tuple[Tier, ...]:
        """Return the fit replicas as tiers, in order of use by a proxy at `place`.

        The replicas in a tier are used together: the nearest replicas of the lowest priority, plus the next ones if too
        few of the nearest are fit. All replicas are in one of `regions`; if `regions` is empty, in any region.
        """
        key = (place, regions)
        if key not in self._tiers:
            self._tiers[key] = tuple(self._grouped(place, regions))
        return self._tiers[key]

    def rank(self, candidate: Candidate, place: Place) -> tuple[int, int]:
        """Return a replica's priority and distance. Replicas with the lowest rank are used first."""
        if self.locality is None:
            return candidate.priority, 0
        return candidate.priority, distance(self.locality.prefer, place, Place(candidate.region, candidate.zone))

    def _grouped(self, place: Place, regions: frozenset[str]) -> Iterator[Tier]:
        spill_below = self.locality.spill_below if self.locality else _SPILL_BELOW
        ranks: dict[tuple[int, int], list[Candidate]] = {}
        for candidate in self.candidates:
            if not regions or candidate.region in regions:
                ranks.setdefault(self.rank(candidate, place), []).append(candidate)
        tier, capacity = list[Candidate](), 0.0
        for _, members in sorted(ranks.items()):
            fit = [item for item in members if item.fit and item.weight > 0]
            tier += fit
            capacity += sum(item.rate for item in members)
            if tier and len(fit) * 100 >= spill_below * len(members):
                yield Tier(tier, capacity)
                tier, capacity = [], 0.0
        if tier:
            yield Tier(tier, capacity)
