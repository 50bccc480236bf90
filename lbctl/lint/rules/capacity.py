"""Rules about capacities: weights against GPUs, and dependence on one replica."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from lbctl.compile.gpus import GPUS
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.shares import of_pools, serving
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import sample

_FACTOR = 2.0


@rule(
    "LB216",
    "warning",
    "a weight that contradicts the GPU",
    what="A replica has a weight and a gpu, and beside the others of its pool the weight is more than twice or less "
    "than half of what the GPU table says. The one that is furthest off is shown, with the number of the others.",
    why="With wrong weights the fast GPU idles and the slow one queues. In simulation a factor of two was worth twenty "
    "times the 99th percentile of the time to the first token.",
    before=sample(
        replicas="""\
- {name: a, address: "10.0.0.1:8000", gpu: A100-80GB, weight: 5}
- {name: b, address: "10.0.0.2:8000", gpu: A100-80GB, weight: 5}
- {name: c, address: "10.0.0.3:8000", gpu: L4, weight: 4}
"""
    ),
    after=sample(
        replicas="""\
- {name: a, address: "10.0.0.1:8000", gpu: A100-80GB}
- {name: b, address: "10.0.0.2:8000", gpu: A100-80GB}
- {name: c, address: "10.0.0.3:8000", gpu: L4}
"""
    ),
    ignore="The weight was measured with this model; better still, say so once under `gpus:`.",
)
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


@rule(
    "LB217",
    "note",
    "one replica that carries more than half",
    what="In a pool of three replicas or more, one has more than half of the capacity.",
    why="The pool looks redundant and is not: when that replica goes, the rest gets more than twice what it can carry, "
    "queues for minutes, and fails its health checks one after the other.",
    before=sample(
        replicas="""\
- {name: a, address: "10.0.0.1:8000", gpu: H100-SXM, gpu_count: 8}
- {name: b, address: "10.0.0.2:8000", gpu: A100-80GB}
- {name: c, address: "10.0.0.3:8000", gpu: A100-80GB}
"""
    ),
    after=sample(
        replicas="""\
- {name: a, address: "10.0.0.1:8000", gpu: H100-SXM}
- {name: b, address: "10.0.0.2:8000", gpu: H100-SXM}
- {name: c, address: "10.0.0.3:8000", gpu: A100-80GB}
- {name: d, address: "10.0.0.4:8000", gpu: A100-80GB}
"""
    ),
    ignore="The rest is there to shed politely, not to take over; give the pool `load_shedding`.",
)
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


@rule(
    "LB218",
    "warning",
    "a single replica",
    what="A pool that gets at least half of a route's requests has one replica, and the route has no fallback.",
    why="A model takes minutes to load. Every restart, driver fault and rollout of that one process is an outage of "
    "the route for as long.",
    before=sample(replicas='- {name: a, address: "10.0.0.1:8000", gpu: H100-SXM}\n'),
    after=sample(),
    ignore="Development, or what may be away for minutes.",
)
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
