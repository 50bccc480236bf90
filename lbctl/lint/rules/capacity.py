"""Rules about capacities: weights against GPUs, and dependence on one replica."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from lbctl.compile.gpus import GPUS
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.shares import of_pools, serving
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule

_FACTOR = 2.0


@rule("LB216")
def weight_contradicts_gpu(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB216: weights that differ from the GPU table by more than a factor of two."""
    table = {name: gpu.throughput for name, gpu in GPUS.items()} | dict(fleet.loaded.source.fleet.gpus)
    for pool in fleet.pools:
        ratios = {replica.name: _ratio(replica, table) for replica in pool.replicas if replica.gpu in table}
        median = median_low(ratios.values()) if ratios else 1.0
        outliers = [
            (name, ratio / median) for name, ratio in ratios.items() if not 1 / _FACTOR <= ratio / median <= _FACTOR
        ]
        for name, deviation in sorted(outliers, key=lambda outlier: -max(outlier[1], 1 / outlier[1])):
            times = f"{deviation:.1f} times" if deviation > 1 else f"1/{1 / deviation:.1f} of"
            message = f"beside its pool this weight is {times} what the GPU table says"
            yield RuleFinding(("pools", pool.name, "replicas", name, "weight"), message, "leave the weight to the gpu")


def _ratio(replica: Replica, table: dict[str, float]) -> float:
    return replica.capacity / (table[replica.gpu or ""] * replica.gpu_count)


@rule("LB217")
def dominant_replica(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB217: a replica with more than half of its pool's capacity."""
    for pool in fleet.pools:
        replicas = serving(pool)
        total = sum(replica.capacity for replica in replicas)
        for replica in replicas if len(replicas) > 2 else ():
            if replica.capacity > total / 2:
                message = (
                    f"this replica carries {replica.capacity / total:.0%} of its pool: the others cannot take over"
                )
                hint = "several smaller replicas, or a fallback for the route"
                yield RuleFinding(("pools", pool.name, "replicas", replica.name), message, hint)


@rule("LB218")
def single_replica(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB218: pools of one replica that a route depends on."""
    for pool in fleet.pools:
        routes = [route for route, share in _shares_of_routes(fleet, pool) if share >= 0.5]
        active = [replica for replica in pool.replicas if not replica.drain]
        if routes and len(active) == 1 and (pool.discovery is None):
            message = f"route {routes[0]} has this one replica: while it restarts, all requests fail"
            path = ("pools", pool.name, "replicas", active[0].name)
            yield RuleFinding(path, message, "a second replica, or a fallback for the route")


def _shares_of_routes(fleet: FleetView, pool: Pool) -> Iterator[tuple[str, float]]:
    """Yield routes without a fallback, and the part of their requests that the pool gets."""
    for route, action in fleet.forwards:
        share = of_pools(action).get(pool.name)
        if share is not None and action.fallback is None:
            yield route.name, share
