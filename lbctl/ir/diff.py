"""Compares two fleets, in terms that an operator understands.

The differences are added and removed objects, settings with their old and new values, the share of traffic that pools
and replicas gain or lose, and requests that reach a different route. Order, comments, explicitly set defaults and
different spellings of equal values are not differences, because they do not affect the Topology or its settings.
Requests in flight and the state of a running fleet are not considered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from lbctl.base.diagnostics import Path
from lbctl.ir import settings
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import covers, order, overlaps
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Route
from lbctl.ir.shares import ReplicaShares, of_pools
from lbctl.ir.topology import Topology

_Named = TypeVar("_Named", Listener, Route, Pool, Proxy)


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A listener, route, pool, replica or proxy that exists on one side only."""

    kind: Literal["added", "removed"]
    """`added` if only the new side has it, or `removed` if only the old side has it."""
    path: Path

    description: str
    """Short human-readable description, such as the address or the number of replicas."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting whose value differs."""

    path: Path
    """Path in the YAML."""
    old: str | None
    """None if the setting is missing on the old side."""
    new: str | None
    """None if the setting is missing on the new side."""


@dataclass(frozen=True, slots=True)
class TrafficChange:
    """A change in how a route's traffic is split by weight. `old` and `new` are shares from 0 to 1."""

    route: str
    pool: str
    replica: str
    """The replica, or an empty string for the pool as a whole."""
    old: float
    new: float


@dataclass(frozen=True, slots=True)
class ReroutedRequests:
    """Requests of one kind that reach a different route."""

    listener: str
    rule: Rule
    """The conditions that the requests meet."""
    old: tuple[str, ...]
    """Routes, most specific first, where the last one gets the remaining requests. "" means that no route matches
    (404)."""
    new: tuple[str, ...]
    """Routes on the new side, in the same order."""


@dataclass(frozen=True, slots=True)
class Difference:
    """All differences, with each tuple sorted by name."""

    objects: tuple[ObjectChange, ...] = ()
    """Objects that exist on one side only."""
    settings: tuple[SettingChange, ...] = ()
    traffic: tuple[TrafficChange, ...] = ()
    rerouted: tuple[ReroutedRequests, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.objects or self.settings or self.traffic or self.rerouted)


def difference(old: Topology, new: Topology) -> Difference:
    """Compare two fleets."""
    builder = _DifferenceBuilder()
    builder.add_objects(old.pools, new.pools, "pools", settings.of_pool, _describe_pool)
    for old_pool, new_pool in _changed_pairs(old.pools, new.pools):
        builder.add_replicas(old_pool, new_pool)
    _compare_routes(builder, old, new)
    builder.add_objects(old.listeners, new.listeners, "listeners", settings.of_listener, lambda item: str(item.bind))
    builder.add_objects(old.proxies, new.proxies, "proxies", settings.of_proxy, lambda item: item.kind)
    builder.settings += _settings(settings.of_control(old.control), settings.of_control(new.control))
    return Difference(
        objects=tuple(builder.objects),
        settings=tuple(builder.settings),
        traffic=tuple(_traffic(old, new)),
        rerouted=tuple(_rerouted_requests(old, new)),
    )


# ── Objects and their settings ───────────────────────────────────────────────────────────────────────────────────────


class _DifferenceBuilder:
    """Collects differences while the fleets are compared."""

    def __init__(self) -> None:
        self.objects: list[ObjectChange] = []
        self.settings: list[SettingChange] = []

    def add_objects(
        self,
        old: tuple[_Named, ...],
        new: tuple[_Named, ...],
        section: str,
        settings_of: Callable[[_Named], settings.Settings],
        describe: Callable[[_Named], str],
    ) -> None:
        """Add the objects that exist on only one side, and the changed settings of all others."""
        before, after = {item.name: item for item in old}, {item.name: item for item in new}
        for name in sorted(before.keys() - after.keys()):
            self.objects.append(ObjectChange("removed", (section, name), describe(before[name])))
        for name in sorted(after.keys() - before.keys()):
            self.objects.append(ObjectChange("added", (section, name), describe(after[name])))
        for old_object, new_object in _changed_pairs(old, new):
            self.settings += _settings(settings_of(old_object), settings_of(new_object))

    def add_replicas(self, old: Pool, new: Pool) -> None:
        """Add the replicas that exist on only one side of a pool, and the changed settings of all others."""
        if old.replicas == new.replicas:
            return
        before, after = (
            {replica.name: replica for replica in old.replicas},
            {replica.name: replica for replica in new.replicas},
        )
        here: Path = ("pools", new.name, "replicas")
        for name in sorted(before.keys() - after.keys()):
            self.objects.append(ObjectChange("removed", (*here, name), _describe_replica(before[name])))
        for name in sorted(after.keys() - before.keys()):
            self.objects.append(ObjectChange("added", (*here, name), _describe_replica(after[name])))
        for name in sorted(before.keys() & after.keys()):
            if before[name] != after[name]:
                sides = (settings.of_replica(new.name, side[name]) for side in (before, after))
                self.settings += _settings(*sides)


def _changed_pairs(old: tuple[_Named, ...], new: tuple[_Named, ...]) -> Iterator[tuple[_Named, _Named]]:
    """Yield the objects that exist on both sides but differ, sorted by name."""
    before = {item.name: item for item in old}
    for item in sorted(new, key=lambda item: item.name):
        if item.name in before and before[item.name] != item:
            yield before[item.name], item


def _settings(old: Mapping[Path, str], new: Mapping[Path, str]) -> list[SettingChange]:
    """Compare settings in the new side's order. Settings missing on the new side come last."""
    paths = [*new, *(path for path in old if path not in new)]
    return [SettingChange(path, old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)]


def _compare_routes(builder: _DifferenceBuilder, old: Topology, new: Topology) -> None:
    """Compare routes with their matches, which are part of the listeners' rules."""
    before, after = settings.rules_by_route(old), settings.rules_by_route(new)
    old_routes = {item.name: item for item in old.routes}
    builder.add_objects(old.routes, new.routes, "routes", lambda _: {}, destination)
    for route in new.routes:
        earlier = old_routes.get(route.name)
        rules = before.get(route.name, ()), after.get(route.name, ())
        if earlier is not None and (earlier != route or rules[0] != rules[1]):
            builder.settings += _settings(settings.of_route(earlier, rules[0]), settings.of_route(route, rules[1]))


def destination(route: Route) -> str:
    """Describe where a route leads."""
    shares = of_pools(route.action)
    if len(shares) == 1:
        return f"to {next(iter(shares))}"
    if shares:
        return "to " + ", ".join(f"{pool} {share:.4g}%" for pool, share in ((p, 100 * s) for p, s in shares.items()))
    status = getattr(route.action, "status", None)
    return f"answers {status}" if status else "redirects to https"


def _describe_replica(replica: Replica) -> str:
    return f"{replica.address}, capacity {replica.capacity:g}" + (f", {replica.gpu}" if replica.gpu else "")


def _describe_pool(pool: Pool) -> str:
    if pool.discovery and not pool.replicas:
        return "replicas by discovery"
    return f"{len(pool.replicas)} replica{'' if len(pool.replicas) == 1 else 's'}"


# ── Traffic ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _traffic(old: Topology, new: Topology) -> Iterator[TrafficChange]:
    """Compare traffic on routes that exist on both sides. The traffic on a new route cannot be known."""
    before, after = ReplicaShares(old.pools), ReplicaShares(new.pools)
    old_routes = {route.name: route for route in old.routes}
    for route in new.routes:
        earlier = old_routes.get(route.name)
        if earlier is not None:
            yield from _traffic_of_route(
                route.name, of_pools(earlier.action), of_pools(route.action), before, after, earlier, route
            )


def _traffic_of_route(
    name: str,
    old: Mapping[str, float],
    new: Mapping[str, float],
    before: ReplicaShares,
    after: ReplicaShares,
    earlier: Route,
    route: Route,
) -> Iterator[TrafficChange]:
    for pool in sorted(old.keys() | new.keys()):
        share = old.get(pool, 0.0), new.get(pool, 0.0)
        if _differ(*share):
            yield TrafficChange(name, pool, "", *share)
        replica_shares = before.of(pool, earlier.regions), after.of(pool, route.regions)
        if not _differ(*share) and replica_shares[0] == replica_shares[1]:
            continue
        for replica in sorted(replica_shares[0].keys() | replica_shares[1].keys()):
            change = share[0] * replica_shares[0].get(replica, 0.0), share[1] * replica_shares[1].get(replica, 0.0)
            if _differ(*change):
                yield TrafficChange(name, pool, replica, *change)


def _differ(old: float, new: float) -> bool:
    return abs(old - new) > 1e-9


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rerouted_requests(old: Topology, new: Topology) -> Iterator[ReroutedRequests]:
    """Compare the rules of listeners that exist on both sides, starting with the most specific rules."""
    before = {item.name: item for item in old.listeners}
    for listener in new.listeners:
        earlier = before.get(listener.name)
        if earlier is not None and earlier.rules != listener.rules:
            yield from _rerouted_of_listener(listener.name, earlier.rules, listener.rules)


def _rerouted_of_listener(listener: str, old: tuple[Rule, ...], new: tuple[Rule, ...]) -> Iterator[ReroutedRequests]:
    """Compare one listener's rules. Only requests whose conditions lead to different routes can be rerouted."""
    before, after = _by_conditions(old), _by_conditions(new)
    changed = [rule for rule in before.keys() | after.keys() if before.get(rule) != after.get(rule)]
    for conditions in sorted(changed, key=order):
        old_routes, new_routes = _receiving_routes(conditions, old), _receiving_routes(conditions, new)
        if old_routes != new_routes:
            yield ReroutedRequests(listener, conditions, old_routes, new_routes)


def _by_conditions(rules: Iterable[Rule]) -> dict[Rule, str]:
    """Map conditions, as a rule without a route, to the first route that has these conditions."""
    routes: dict[Rule, str] = {}
    for rule in rules:
        routes.setdefault(replace(rule, route=""), rule.route)
    return routes


def _receiving_routes(conditions: Rule, table: tuple[Rule, ...]) -> tuple[str, ...]:
    """Return the routes that receive requests that match `conditions` but no more specific rule."""
    routes: dict[str, None] = {}
    rank = order(conditions)
    for rule in table:
        if order(rule) >= rank and overlaps(rule, conditions):
            routes.setdefault(rule.route)
            if covers(rule, conditions):
                return tuple(routes)
    return (*routes, "")
