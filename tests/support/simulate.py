"""Small pools, traces and replays for the simulation."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lbctl.ir.address import Address
from lbctl.ir.pools import CircuitBreaker, Pool, Replica
from lbctl.simulate.capacity import engines_of
from lbctl.simulate.engine import CostModel
from lbctl.simulate.policies import POLICIES
from lbctl.simulate.replay import Replay, replay
from lbctl.simulate.setup import Setup, SpeedChange
from lbctl.simulate.trace import Trace

UNLIMITED = CircuitBreaker(1_000_000, 1_000_000, 1_000_000, 1_000_000)
EASY = CostModel(a=0.01, b=0.0, c=1e-12, p=0.0, sequences=256, cache=1_000_000)
"""An engine whose iterations always take 10 ms."""


def pool(*capacities: float) -> Pool:
    """Return a pool with the replicas r0, r1 …, and limits that no test reaches."""
    replicas = tuple(Replica(f"r{index}", Address("127.0.0.1", 1), each) for index, each in enumerate(capacities))
    return Pool("p", replicas, circuit_breaker=UNLIMITED)


def load(count: int, rate: float, prompt: int = 500, answer: int = 50, seed: int = 3) -> Trace:
    """Return Poisson arrivals with random lengths up to twice the given ones."""
    rng, now, times = random.Random(seed), 0.0, []
    for _ in range(count):
        times.append(now)
        now += rng.expovariate(rate)
    prompts = [rng.randint(1, 2 * prompt) for _ in times]
    return Trace(times, prompts, [rng.randint(1, 2 * answer) for _ in times])


def replayed(
    where: Pool,
    trace: Trace,
    policy: str = "haproxy:round_robin",
    *changes: SpeedChange,
    cost: CostModel | None = None,
    seed: int = 1,
    progress: Callable[[float], None] | None = None,
    **more: Any,
) -> Replay:
    """Run one simulation.

    Every engine has the `cost`, or a cost in proportion to its capacity; `more` are additional arguments of the setup.
    """
    costs = (cost,) * len(where.replicas) if cost else engines_of(where, CostModel())
    setup = Setup(where, POLICIES[policy], **{"costs": costs, "proxies": 1, "changes": changes, **more})
    return replay(setup, trace, seed, progress)


def shares(result: Replay) -> list[float]:
    """Return the share of requests of each replica."""
    placed = [int(replica) for replica in result.requests.replica]
    return [placed.count(index) / len(placed) for index in range(len(result.setup.pool.replicas))]


def drained(where: Pool, name: str) -> Pool:
    """Return the pool with this replica drained."""
    return replace(where, replicas=tuple(replace(item, drain=item.name == name) for item in where.replicas))
