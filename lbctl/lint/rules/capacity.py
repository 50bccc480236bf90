"""Rules about capacity: weights compared with GPUs, dependence on one replica, and utilisation under a given load."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from lbctl.compile.gpus import GPUS
from lbctl.ir import load_bound
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.shares import of_pools, serving
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule

_FACTOR = 2.0


@rule("LB216")
def weight_contradicts_gpu(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report weights that differ from the GPU table by more than a factor of two (LB216)."""
    table = {name: gpu.throughput for name, gpu in GPUS.items()} | dict(fleet.loaded.source.fleet.gpus)
    for pool in fleet.pools:
        ratios = {replica.name: _ratio(replica, table) for replica in pool.replicas if replica.gpu in table}
        median = median_low(ratios.values()) if ratios else 1.0
        outliers = [
            (name, ratio / median) for name, ratio in ratios.items() if not 1 / _FACTOR <= ratio / median <= _FACTOR
        ]
        for name, deviation in sorted(outliers, key=lambda outlier: -max(outlier[1], 1 / outlier[1])):
            times = f"{deviation:.1f} times" if deviation > 1 else f"1/{1 / deviation:.1f} of"
            message = f"relative to its pool, this weight is {times} the value in the GPU table"
            hint = "remove weight: lbctl then derives it from gpu"
            yield RuleFinding(("pools", pool.name, "replicas", name, "weight"), message, hint)


def _ratio(replica: Replica, table: dict[str, float]) -> float:
    return replica.capacity / (table[replica.gpu or ""] * replica.gpu_count)


@rule("LB217")
def dominant_replica(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report replicas with more than half of their pool's capacity (LB217)."""
    for pool in fleet.pools:
        replicas = serving(pool)
        total = sum(replica.capacity for replica in replicas)
        for replica in replicas if len(replicas) > 2 else ():
            if replica.capacity > total / 2:
                share = f"{replica.capacity / total:.0%}"
                message = (
                    f"this replica has {share} of the pool's capacity, so the other replicas cannot take over its load"
                )
                hint = "use several smaller replicas, or give the route a fallback"
                yield RuleFinding(("pools", pool.name, "replicas", replica.name), message, hint)


@rule("LB218")
def single_replica(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report pools with a single replica that a route depends on (LB218)."""
    for pool in fleet.pools:
        routes = [route for route, share in _shares_of_routes(fleet, pool) if share >= 0.5]
        active = [replica for replica in pool.replicas if not replica.drain]
        if routes and len(active) == 1 and (pool.discovery is None):
            message = f"route {routes[0]} depends on this single replica, so requests fail while it restarts"
            path = ("pools", pool.name, "replicas", active[0].name)
            yield RuleFinding(path, message, "add a second replica, or give the route a fallback")


def _shares_of_routes(fleet: FleetView, pool: Pool) -> Iterator[tuple[str, float]]:
    """Yield each route without a fallback, and the share of its requests that goes to the pool."""
    for route, action in fleet.forwards:
        share = of_pools(action).get(pool.name)
        if share is not None and action.fallback is None:
            yield route.name, share


@rule("LB221", needs_load=True)
def high_utilisation(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report a utilisation from 80 % to 100 % (LB221)."""
    utilisation = _utilisation(fleet)
    if utilisation is not None and load_bound.BUSY <= utilisation[0] < 1:
        yield RuleFinding(
            ("pools",),
            f"{utilisation[1]}: utilisation is {utilisation[0]:.0%}, and queues build up at 80 % or more",
            load_bound.advice(utilisation[0]),
        )


@rule("LB222", needs_load=True)
def overload(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report a utilisation of 100 % or more (LB222)."""
    utilisation = _utilisation(fleet)
    if utilisation is not None and utilisation[0] >= 1:
        yield RuleFinding(
            ("pools",),
            f"{utilisation[1]}: utilisation is {utilisation[0]:.0%}, which no algorithm can handle",
            load_bound.advice(utilisation[0]),
        )


def _utilisation(fleet: FleetView) -> tuple[float, str] | None:
    """Return the utilisation of the fleet as a number and as text; None if no load is given."""
    load = fleet.load
    used_pools = {share.pool for _, action in fleet.forwards for share in action.shares if share.weight}
    slots = [_slots(fleet, name) for name in used_pools]
    if load is None or not any(slots):
        return None
    offered = load.rate * load.mean_service
    description = (
        f"{load.rate:g}/s × {load.mean_service:g} s = {offered:g} concurrent requests, "
        f"and the fleet can process {sum(slots)} at a time"
    )
    return load_bound.utilisation(load.rate, (number / load.mean_service for number in slots)), description


def _slots(fleet: FleetView, name: str) -> int:
    pool = fleet.pool(name)
    per_replica = pool.circuit_breaker.replica_max_requests or 1
    return per_replica * sum(not replica.drain for replica in pool.replicas)
