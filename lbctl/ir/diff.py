"""Two fleets, and what differs between them in the words of those who run one: pools, replicas, the share of traffic
that each gains or loses, requests that go elsewhere, settings with their old and new value.

It compares what the fleets mean. Order, comments, defaults that are written out and equal values that are written
otherwise are no difference, since none of them reaches the Topology or its facts. It does not say what a proxy will do
with requests under way, and it knows nothing of a running fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from lbctl.base.diagnostics import Path
from lbctl.ir import facts
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import covers, order, overlaps
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Route
from lbctl.ir.shares import Portion, of_pools
from lbctl.ir.topology import Topology

_Named = TypeVar("_Named", Listener, Route, Pool, Proxy)


@dataclass(frozen=True, slots=True)
class Thing:
    """A listener, route, pool, replica or proxy that one side lacks. `path` names it; `words` say what it is."""

    kind: Literal["added", "removed"]
    path: Path
    words: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that differs; None where that side has none."""

    path: Path
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """The share of a route's requests, 0…1, by weight; `replica` is empty for the pool as a whole."""

    route: str
    pool: str
    replica: str
    old: float
    new: float


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Requests of one kind that go to another route. `rule` says which requests; `old` and `new`: routes, the most
    specific first, of which the last takes the rest; "" is no route (404)."""

    listener: str
    rule: Rule
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Each in the order of names; empty where there is none of it."""

    things: tuple[Thing, ...] = ()
    settings: tuple[Setting, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.things or self.settings or self.traffic or self.elsewhere)


def difference(old: Topology, new: Topology) -> Difference:
    found = _Found()
    found.objects(old.pools, new.pools, "pools", facts.of_pool, _pool_words)
    for before, after in _both(old.pools, new.pools):
        found.replicas(before, after)
    _compare_routes(found, old, new)
    found.objects(old.listeners, new.listeners, "listeners", facts.of_listener, lambda item: str(item.bind))
    found.objects(old.proxies, new.proxies, "proxies", facts.of_proxy, lambda item: item.kind)
    found.settings += _settings(facts.of_control(old.control), facts.of_control(new.control))
    return Difference(
        things=tuple(found.things),
        settings=tuple(found.settings),
        traffic=tuple(_traffic(old, new)),
        elsewhere=tuple(_elsewhere(old, new)),
    )


# ── Things and their settings ────────────────────────────────────────────────────────────────────────────────────────


class _Found:
    """Grows while the fleets are compared."""

    def __init__(self) -> None:
        self.things: list[Thing] = []
        self.settings: list[Setting] = []

    def objects(
        self,
        old: tuple[_Named, ...],
        new: tuple[_Named, ...],
        section: str,
        told: Callable[[_Named], facts.Facts],
        words: Callable[[_Named], str],
    ) -> None:
        before, after = {item.name: item for item in old}, {item.name: item for item in new}
        for name in sorted(before.keys() - after.keys()):
            self.things.append(Thing("removed", (section, name), words(before[name])))
        for name in sorted(after.keys() - before.keys()):
            self.things.append(Thing("added", (section, name), words(after[name])))
        for one, other in _both(old, new):
            self.settings += _settings(told(one), told(other))

    def replicas(self, old: Pool, new: Pool) -> None:
        if old.replicas == new.replicas:
            return
        before, after = {item.name: item for item in old.replicas}, {item.name: item for item in new.replicas}
        here: Path = ("pools", new.name, "replicas")
        for name in sorted(before.keys() - after.keys()):
            self.things.append(Thing("removed", (*here, name), _replica_words(before[name])))
        for name in sorted(after.keys() - before.keys()):
            self.things.append(Thing("added", (*here, name), _replica_words(after[name])))
        for name in sorted(before.keys() & after.keys()):
            if before[name] != after[name]:
                told = (facts.of_replica(new.name, side[name]) for side in (before, after))
                self.settings += _settings(*told)


def _both(old: tuple[_Named, ...], new: tuple[_Named, ...]) -> Iterator[tuple[_Named, _Named]]:
    """Those that both sides have and that are not equal, by name."""
    before = {item.name: item for item in old}
    for item in sorted(new, key=lambda item: item.name):
        if item.name in before and before[item.name] != item:
            yield before[item.name], item


def _settings(old: Mapping[Path, str], new: Mapping[Path, str]) -> list[Setting]:
    """In the order of the new side, what it lacks last."""
    paths = [*new, *(path for path in old if path not in new)]
    return [Setting(path, old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)]


def _compare_routes(found: _Found, old: Topology, new: Topology) -> None:
    """What a route matches stands in the listeners' rules."""
    before, after = facts.rules_by_route(old), facts.rules_by_route(new)
    known = {item.name: item for item in old.routes}
    found.objects(old.routes, new.routes, "routes", lambda _: {}, destination)
    for route in new.routes:
        earlier = known.get(route.name)
        rules = before.get(route.name, ()), after.get(route.name, ())
        if earlier is not None and (earlier != route or rules[0] != rules[1]):
            found.settings += _settings(facts.of_route(earlier, rules[0]), facts.of_route(route, rules[1]))


def destination(route: Route) -> str:
    """Where a route leads, in words."""
    shares = of_pools(route)
    if len(shares) == 1:
        return f"to {next(iter(shares))}"
    if shares:
        return "to " + ", ".join(f"{pool} {share:.4g}%" for pool, share in ((p, 100 * s) for p, s in shares.items()))
    status = getattr(route.action, "status", None)
    return f"answers {status}" if status else "redirects to https"


def _replica_words(item: Replica) -> str:
    return f"{item.address}, capacity {item.capacity:g}" + (f", {item.gpu}" if item.gpu else "")


def _pool_words(pool: Pool) -> str:
    if pool.discovery and not pool.replicas:
        return "replicas by discovery"
    return f"{len(pool.replicas)} replica{'' if len(pool.replicas) == 1 else 's'}"


# ── Traffic ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _traffic(old: Topology, new: Topology) -> Iterator[Traffic]:
    """Of the routes that both sides have: what a new route gets is not known."""
    before, after = Portion(old.pools), Portion(new.pools)
    known = {item.name: item for item in old.routes}
    for route in new.routes:
        earlier = known.get(route.name)
        if earlier is not None:
            yield from _moved(route.name, of_pools(earlier), of_pools(route), before, after, earlier, route)


def _moved(
    name: str,
    old: Mapping[str, float],
    new: Mapping[str, float],
    before: Portion,
    after: Portion,
    earlier: Route,
    route: Route,
) -> Iterator[Traffic]:
    for pool in sorted(old.keys() | new.keys()):
        share = old.get(pool, 0.0), new.get(pool, 0.0)
        if _differ(*share):
            yield Traffic(name, pool, "", *share)
        parts = before.of(pool, earlier.regions), after.of(pool, route.regions)
        if not _differ(*share) and parts[0] == parts[1]:
            continue
        for replica in sorted(parts[0].keys() | parts[1].keys()):
            each = share[0] * parts[0].get(replica, 0.0), share[1] * parts[1].get(replica, 0.0)
            if _differ(*each):
                yield Traffic(name, pool, replica, *each)


def _differ(old: float, new: float) -> bool:
    return abs(old - new) > 1e-9


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _elsewhere(old: Topology, new: Topology) -> Iterator[Elsewhere]:
    """By listener, the most specific first. A listener that one side lacks is a thing, not a way."""
    before = {item.name: item for item in old.listeners}
    for listener in new.listeners:
        earlier = before.get(listener.name)
        if earlier is not None and earlier.rules != listener.rules:
            yield from _moved_rules(listener.name, earlier.rules, listener.rules)


def _moved_rules(listener: str, old: tuple[Rule, ...], new: tuple[Rule, ...]) -> Iterator[Elsewhere]:
    """Only conditions that not both tables give to the same route can have moved."""
    before, after = _by_conditions(old), _by_conditions(new)
    moved = [each for each in before.keys() | after.keys() if before.get(each) != after.get(each)]
    for conditions in sorted(moved, key=order):
        was, now = _takers(conditions, old), _takers(conditions, new)
        if was != now:
            yield Elsewhere(listener, conditions, was, now)


def _by_conditions(rules: Iterable[Rule]) -> dict[Rule, str]:
    """Conditions, as a rule without a route, → the first route that has them."""
    found: dict[Rule, str] = {}
    for rule in rules:
        found.setdefault(replace(rule, route=""), rule.route)
    return found


def _takers(conditions: Rule, table: tuple[Rule, ...]) -> tuple[str, ...]:
    """Who takes the requests of `conditions` that no more specific rule has taken before."""
    found: dict[str, None] = {}
    place = order(conditions)
    for rule in table:
        if order(rule) >= place and overlaps(rule, conditions):
            found.setdefault(rule.route)
            if covers(rule, conditions):
                return tuple(found)
    return (*found, "")
