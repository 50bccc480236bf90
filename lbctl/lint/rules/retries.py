"""Rules about retries: their conditions, number, amplification, and busy replicas' responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod

from lbctl.base.hosts import from_here
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import overlaps
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route, busy_statuses
from lbctl.lint.fleet_view import FleetView, sources_of
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.targets import target

_MAX_ATTEMPTS = 2


@rule("LB313")
def excessive_retries(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report more than two retries (LB313)."""
    for route, _ in fleet.forwards:
        if route.retry.attempts > _MAX_ATTEMPTS:
            path = ("routes", route.name, "retry", "attempts")
            message = (
                f"{route.retry.attempts} retries: two are enough to find a working replica, and more only add load"
            )
            yield RuleFinding(path, message, "attempts: 2", Edit(path, _MAX_ATTEMPTS))


@rule("LB314")
def retried_generation(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report retries of requests that a generative model may already have received (LB314)."""
    for route, _ in fleet.forwards:
        if route.retry.idempotent and route.retry.attempts and fleet.streams(route):
            path = ("routes", route.name, "retry", "idempotent")
            message = "an interrupted generation restarts from the beginning"
            yield RuleFinding(path, message, "idempotent: false", Edit(path, False))


@rule("LB315")
def retries_without_budget(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report risky retries without a budget (LB315)."""
    for route, _ in fleet.forwards:
        retry = route.retry
        risky = (retry.idempotent and retry.attempts > 0) or retry.attempts > _MAX_ATTEMPTS
        if risky and retry.budget is None:
            path = ("routes", route.name, "retry", "budget")
            yield RuleFinding(path, "nothing limits the load that retries add to an overload", "budget: 20%")


@rule("LB316")
def retry_amplification(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report routes on which a single request may be multiplied (LB316)."""
    for route, action in fleet.forwards:
        factors = _factors(fleet, route, action, frozenset())
        product = _product(factors)
        if product > (3 if route.retry.idempotent else 6):
            explanation = " × ".join(f"{number} ({cause})" for number, cause in factors)
            message = f"one request may become {product} requests: {explanation}"
            yield RuleFinding(
                ("routes", route.name, "retry"), message, "reduce the number of tries, and retry in only one layer"
            )


def _factors(fleet: FleetView, route: Route, action: Forward, visited: frozenset[str]) -> list[tuple[int, str]]:
    factors = [(1 + route.retry.attempts, "tries")]
    if action.fallback:
        factors.append((2, "with the fallback"))
    inner = [
        _factors(fleet, next_route, next_action, visited | {route.name})
        for next_route, next_action in _next_hop_routes(fleet, route, action)
        if next_route.name not in visited | {route.name}
    ]
    worst = max(inner, key=_product, default=[])
    return [*factors, *((number, f"{cause} of the next proxy") for number, cause in worst if number > 1)]


def _product(factors: Iterable[tuple[int, str]]) -> int:
    return prod(number for number, _ in factors)


def _next_hop_routes(fleet: FleetView, route: Route, action: Forward) -> Iterator[tuple[Route, Forward]]:
    """Yield the routes on the fleet's own listeners that this route may reach through its replicas' addresses."""
    inner = [rule for listener in _own_listeners(fleet, action) for rule in listener.rules]
    if not inner:
        return iter(())
    rewrites = route.rewrite is not None and route.rewrite.path_prefix is not None
    own_rules = [rule for listener in fleet.topology.listeners for rule in listener.rules if rule.route == route.name]
    names = {rule.route for rule in inner if rewrites or any(_overlap_ignoring_hosts(rule, own) for own in own_rules)}
    return ((other, other_action) for other, other_action in fleet.forwards if other.name in names)


def _overlap_ignoring_hosts(one: Rule, other: Rule) -> bool:
    """Return whether the rules overlap when hosts are ignored, because the first proxy may change the host."""
    return overlaps(replace(one, host=""), replace(other, host=""))


def _own_listeners(fleet: FleetView, action: Forward) -> list[Listener]:
    listeners = fleet.topology.listeners
    binds, ports = {listener.bind for listener in listeners}, {listener.bind.port for listener in listeners}
    addresses = {
        replica.address
        for name in action.pools
        for replica in fleet.pool(name).replicas
        if replica.address in binds or (replica.address.port in ports and replica.address.on_loopback)
    }
    loopback_ports = {address.port for address in addresses if address.on_loopback}
    return [
        listener
        for listener in listeners
        if listener.bind in addresses
        or (from_here(listener.bind.host) != listener.bind.host and listener.bind.port in loopback_ports)
    ]


_DECLINES: Mapping[str, frozenset[int]] = {
    "vllm": frozenset({503}),
    "sglang": frozenset({503}),
    "triton": frozenset({503}),
    "nim": frozenset({503}),
    "torchserve": frozenset({503}),
    "llamacpp": frozenset({503}),
    "ray": frozenset({429, 503}),
    "tgi": frozenset({429}),
}
"""Maps an engine to the statuses it returns when it rejects a request before processing it."""
_HOSTED = frozenset({429, 503, 529})
"""Statuses that hosted APIs return when they reject a request before processing it."""


@rule("LB317")
def status_that_need_not_mean_busy(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report statuses that the engine is not known to send before processing a request (LB317)."""
    for route, action in fleet.forwards:
        for name in action.pools:
            pool = fleet.pool(name)
            engine, declines = _declines(pool)
            doubtful = sorted(set(busy_statuses(route, pool)) - declines)
            if doubtful:
                statuses = " and ".join(map(str, doubtful))
                message = (
                    f"{engine} is not known to send {statuses} before it starts work, "
                    "so a retry may repeat the same work"
                )
                hint = f"busy_statuses: {sorted(declines)}" if declines else "remove replica_busy"
                yield RuleFinding(("routes", route.name, "retry", "busy_statuses"), message, hint)


@rule("LB318")
def busy_without_another_replica(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report retries of busy replicas that have no other replica to go to (LB318)."""
    retries_grpc = bool(fleet.kinds) and all(target(kind).retries_grpc for kind in fleet.kinds)
    for route, action in fleet.forwards:
        for pool in map(fleet.pool, action.pools):
            if not route.retry.busy_statuses or not route.retry.attempts:
                continue
            path, remedy = ("routes", route.name, "retry", "when"), "remove replica_busy"
            if pool.protocol == "grpc" and not retries_grpc:
                yield RuleFinding(path, f"pool {pool.name} uses gRPC, and a gRPC status is not retried", remedy)
            elif len(pool.replicas) == 1 and pool.discovery is None:
                message = f"pool {pool.name} has only one replica, so no other replica can take the request"
                yield RuleFinding(path, message, remedy)


def _declines(pool: Pool) -> tuple[str, frozenset[int]]:
    """Return a name for the pool's replicas, and the statuses with which they reject requests.

    A replica sends such a status before it processes the request.
    """
    if pool.upstream is not None:
        return "a hosted API", _HOSTED
    engines = sorted({source.kind for source in sources_of(pool)} & _DECLINES.keys())
    if not engines:
        return f"the engine of pool {pool.name}", frozenset()
    return " or ".join(engines), frozenset.intersection(*(_DECLINES[engine] for engine in engines))
