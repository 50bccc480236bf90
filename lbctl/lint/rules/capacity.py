"""What each replica is trusted with: weights against GPUs, and how much hangs on one of them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from lbctl.compile.gpus import GPUS
from lbctl.ir.pools import Pool, Replica
from lbctl.lint.rule import Found, rule
from lbctl.lint.sample import sample
from lbctl.lint.subject import Subject, serving

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
def contradicted(fleet: Subject) -> Iterator[Found]:
    table = {name: gpu.throughput for name, gpu in GPUS.items()} | dict(fleet.loaded.source.fleet.gpus)
    for pool in fleet.pools:
        ratios = {item.name: _ratio(item, table) for item in pool.replicas if item.gpu in table}
        usual = median_low(ratios.values()) if ratios else 1.0
        wrong = [(name, ratio / usual) for name, ratio in ratios.items() if not 1 / _FACTOR <= ratio / usual <= _FACTOR]
        for name, off in sorted(wrong, key=lambda item: -max(item[1], 1 / item[1])):
            times = f"{off:.1f} times" if off > 1 else f"1/{1 / off:.1f} of"
            message = f"beside its pool this weight is {times} what the GPU table says"
            yield Found(("pools", pool.name, "replicas", name, "weight"), message, "leave the weight to the gpu")


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
def top_heavy(fleet: Subject) -> Iterator[Found]:
    for pool in fleet.pools:
        carrying = serving(pool)
        total = sum(item.capacity for item in carrying)
        for item in carrying if len(carrying) > 2 else ():
            if item.capacity > total / 2:
                message = f"this replica carries {item.capacity / total:.0%} of its pool: the others cannot take over"
                hint = "several smaller replicas, or a fallback for the route"
                yield Found(("pools", pool.name, "replicas", item.name), message, hint)


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
def alone(fleet: Subject) -> Iterator[Found]:
    for pool in fleet.pools:
        routes = [route for route, share in _main(fleet, pool) if share >= 0.5]
        there = [item for item in pool.replicas if not item.drain]
        if routes and len(there) == 1 and (pool.discovery is None):
            message = f"route {routes[0]} has this one replica: while it restarts, nobody is served"
            path = ("pools", pool.name, "replicas", there[0].name)
            yield Found(path, message, "a second replica, or a fallback for the route")


def _main(fleet: Subject, pool: Pool) -> Iterator[tuple[str, float]]:
    """Routes without a fallback, and the part of their requests that the pool gets."""
    for route, action in fleet.forwards:
        total = sum(item.weight for item in action.shares)
        mine = sum(item.weight for item in action.shares if item.pool == pool.name)
        if mine and action.fallback is None:
            yield route.name, mine / total
