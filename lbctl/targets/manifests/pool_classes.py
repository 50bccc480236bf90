"""The classes of all pools whose replicas lbctl renders, within the maximum number of backends per rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.hosts import is_ip
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.routes import Forward, Route
from lbctl.ir.shares import in_regions
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.manifests.classes import MAX_WEIGHT, WeightClasses, limits, weight_classes
from lbctl.targets.replica_weights import quantise

MAX_BACKENDS = 16
"""Maximum number of backends in a rule."""
_TOLERANCE = 0.02
"""Relative error of a replica's share above which a warning is given."""

Group = tuple[str, tuple[str, ...]]
"""A pool, and the regions whose replicas may serve (empty: all)."""


class PoolClasses:
    """The classes of each group of a view, sorted by group."""

    def __init__(
        self, view: View, *, is_rendered: Callable[[Pool], bool], ranks: int = 1, by_host_name: bool = False
    ) -> None:
        """Find the classes of pools for which `is_rendered` returns true. The others have one backend.

        `ranks` is the number of priorities that receive requests. Each priority has separate classes. With
        `by_host_name`, replicas with a host name also have separate classes.
        """
        self._view = view
        self._is_rendered = is_rendered
        self._ranks = ranks
        self._by_host_name = by_host_name
        self.groups: Mapping[Group, WeightClasses] = {
            group: weight_classes(self._members(group), view.drained[group[0]], most, self._kind(group))
            for group, most in self._max_classes().items()
        }

    def of(self, route: Route, pool: str) -> WeightClasses:
        """Return the classes of a rendered pool for the requests of a route."""
        return self.groups[group_of(route, pool)]

    def is_standby(self, group: Group, replica: Replica) -> bool:
        """Return whether the replica receives requests only while replicas of the first priority are unavailable."""
        return replica.priority != self._priorities(group)[0]

    def warnings(self) -> Iterator[Diagnostic]:
        """Yield warnings about replicas whose share is inaccurate because classes were joined."""
        for (pool, _), found in self.groups.items():
            if found.error > _TOLERANCE:
                message = (
                    f"a rule can have at most {MAX_BACKENDS} backends, so classes of replicas with similar weights are "
                    f"joined: the share of a replica is off by up to {found.error:.0%}"
                )
                hint = "use fewer different weights"
                yield Diagnostic("LB206", message, path=("pools", pool, "replicas"), hint=hint, severity="warning")

    def _kind(self, group: Group) -> Callable[[Replica], tuple[bool, ...]]:
        first, by_host_name = self._priorities(group)[0], self._by_host_name
        return lambda replica: (replica.priority != first, by_host_name and not is_ip(replica.address.host))

    def _max_classes(self) -> dict[Group, int]:
        """Return the maximum number of classes per rendered group, considering all rules that use it."""
        allowed: dict[Group, int] = {}
        for route in self._view.routes.values():
            for pools in _rules(route):
                groups = [group_of(route, pool) for pool in pools]
                counts = [self._count(group) for group in groups]
                for group, most in zip(groups, limits(counts, max(MAX_BACKENDS, len(groups))), strict=True):
                    allowed[group] = min(most, allowed.get(group, most))
        return {group: most for group, most in sorted(allowed.items()) if self._is_rendered(self._view.pools[group[0]])}

    def _count(self, group: Group) -> int:
        if not self._is_rendered(self._view.pools[group[0]]):
            return 1
        kind = self._kind(group)
        return len({(kind(replica), weight.rate) for replica, weight in self._members(group)}) or 1

    def _members(self, group: Group) -> list[tuple[Replica, Weight]]:
        """Return the replicas of the first priorities in these regions, with their weights."""
        priorities = self._priorities(group)
        return [(replica, weight) for replica, weight in self._in_regions(group) if replica.priority in priorities]

    def _priorities(self, group: Group) -> list[int]:
        """Return the first priorities that have a replica in these regions that is not drained."""
        drained = self._view.drained[group[0]]
        ready = {replica.priority for replica, _ in self._in_regions(group) if replica.name not in drained}
        return sorted(ready)[: self._ranks] or [0]

    def _in_regions(self, group: Group) -> list[tuple[Replica, Weight]]:
        name, regions = group
        pairs = zip(self._view.pools[name].replicas, self._view.weights[name], strict=True)
        return [(replica, weight) for replica, weight in pairs if in_regions(replica, regions)]


def group_of(route: Route, pool: str) -> Group:
    """Return the group of a pool's replicas that may serve a route's requests."""
    return pool, route.regions


def shared_weights(shares: Mapping[str, int], backends: Sequence[tuple[str, bool, int]]) -> list[int]:
    """Return the weights of a rule's backends, given as (pool, is standby, weight within the pool)."""
    if len(shares) == 1:
        return [weight for *_, weight in backends]
    totals: Counter[tuple[str, bool]] = Counter()
    for pool, is_standby, weight in backends:
        totals[pool, is_standby] += weight
    exact = [Fraction(shares[pool] * weight, totals[pool, is_standby]) for pool, is_standby, weight in backends]
    scale = math.lcm(*(item.denominator for item in exact))
    weights = [int(item * scale) for item in exact]
    if max(weights) <= MAX_WEIGHT:
        return weights
    scaled = iter(quantise([float(item) for item in exact if item], MAX_WEIGHT))
    return [next(scaled) if item else 0 for item in exact]


def _rules(route: Route) -> Iterator[list[str]]:
    """Yield the pools of each rule of a route."""
    if isinstance(route.action, Forward):
        yield [share.pool for share in route.action.shares]
        yield from ([pin.pool] for pin in route.action.pins)
        if route.action.mirror:
            yield [route.action.mirror.pool]
