"""Builds the initial columns for a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, chain
from random import Random
from typing import Any

from lbctl.ir.pools import CircuitBreaker, Pool
from lbctl.ir.snapshot import part
from lbctl.simulate import balancing, state
from lbctl.simulate.compiled import BYTE, FLOAT, INTEGER, LONG, NATURAL, SHORT, column, filled, shared
from lbctl.simulate.engine import CostModel
from lbctl.simulate.engines import WAYS
from lbctl.simulate.setup import Setup
from lbctl.simulate.trace import Trace

_BUDGET = 2048
_WIDE = ("run_request", "run_done", "read_request", "read_left")
_SECONDS = ("begun", "itl_seconds", "busy_seconds")


def settings(setup: Setup, trace: Trace) -> state.RunSettings:
    """Return the constant settings of a run."""
    pool, policy, chooser = setup.pool, setup.policy, setup.policy.chooser(setup.pool)
    is_queued = chooser == balancing.PICKED and pool.balance.pick is not None and pool.balance.pick.queue is not None
    limit = replica_limit(pool, 1 if is_queued else setup.proxies)  # the picker counts all proxies' requests
    breaker = pool.circuit_breaker
    total = min(breaker.max_requests, breaker.max_connections) if pool.protocol == "http1" else breaker.max_requests
    return state.RunSettings(
        len(pool.replicas),
        _BUDGET,
        max(cost.sequences for cost in setup.costs),
        setup.patience,
        chooser,
        float(pool.balance.bounded_load or 0.0) if policy.bounds_load else 0.0,
        policy.jumps,
        trace.block,
        limit,
        bool(limit) and policy.skips_full,
        policy.waits if limit else state.NOWHERE,
        part(total, setup.proxies),
        part(breaker.max_pending_requests, setup.proxies),
        pool.queue_timeout / 1000 if policy.bounds_waiting else math.inf,
    )


def replica_limit(pool: Pool, proxies: int) -> int:
    """Return the maximum number of requests per proxy at a replica; 0 for unlimited."""
    breaker: CircuitBreaker = pool.circuit_breaker
    limits = [breaker.replica_max_requests]
    if pool.protocol == "http1":
        limits.append(breaker.replica_max_connections)
    limit = min((item for item in limits if item is not None), default=None)
    return 0 if limit is None else part(limit, proxies)


def requests(trace: Trace, setup: Setup, rule: int, rng: Random) -> state.Requests:
    """Return the requests of a trace."""
    count = len(trace.times)
    lengths = [len(blocks) for blocks in trace.blocks]
    is_hashed, draws = rule == balancing.RING, count if rule in balancing.DRAWING else 1
    keys: Sequence[int] = trace.keys or [rng.getrandbits(32) for _ in range(count)] if is_hashed else [0]
    return state.Requests(
        arrived=shared(FLOAT, trace.times),
        prompt=shared(INTEGER, trace.prompts),
        answer=shared(INTEGER, trace.answers),
        proxy=column(SHORT, (rng.randrange(setup.proxies) for _ in range(count))),
        key=shared(NATURAL, keys),
        draw=column(NATURAL, (rng.getrandbits(32) for _ in range(draws))),
        second_draw=column(NATURAL, (rng.getrandbits(32) for _ in range(draws))),
        block_start=column(INTEGER, [0, *accumulate(lengths)]),
        block_count=column(INTEGER, lengths or [0]),
        blocks=column(LONG, chain.from_iterable(trace.blocks) if lengths else [0]),
        replica=filled(INTEGER, count, -1),
        first=filled(FLOAT, count, -1.0),
        last=filled(FLOAT, count, -1.0),
        state=filled(BYTE, count),
        hit=filled(INTEGER, count if lengths else 1),
        need=column(INTEGER, trace.prompts),
        rest=column(INTEGER, trace.answers),
        follower=filled(INTEGER, count, -1),
        admitted=filled(INTEGER, count),
        log=filled(INTEGER, 2 * count if rule == balancing.PICKED else 1),
    )


def engines(costs: Sequence[CostModel], of_run: state.RunSettings) -> state.EngineColumns:
    """Return idle engines."""
    size = len(costs)
    sets = [max(1, cost.cache // (WAYS * of_run.block)) if of_run.block else 1 for cost in costs]
    starts = [0, *accumulate(count * WAYS for count in sets)]
    numbers = {
        "a": column(FLOAT, (cost.a for cost in costs)),
        "b": column(FLOAT, (cost.b for cost in costs)),
        "c": column(FLOAT, (cost.c for cost in costs)),
        "p": column(FLOAT, (cost.p for cost in costs)),
        "sequences": column(LONG, (cost.sequences for cost in costs)),
        "cache": column(LONG, (cost.cache for cost in costs)),
        "up": filled(LONG, size, 1),
        "factor": filled(FLOAT, size, 1.0),
        "end": filled(FLOAT, size, math.inf),
        "heap": column(LONG, range(size)),
        "place": column(LONG, range(size)),
        "cache_sets": column(LONG, sets),
        "cache_start": column(LONG, starts),
        "cached_block": filled(LONG, starts[-1], -1),
        "cached_at": filled(LONG, starts[-1]),
    }
    for name in state.EngineColumns._fields:
        if name not in numbers:
            length = size * of_run.slots if name in _WIDE else size
            numbers[name] = filled(FLOAT if name in _SECONDS else LONG, length)
    return state.EngineColumns(**numbers)


def counter() -> Any:
    """Return a column whose only element is 0."""
    return filled(LONG, 1)


def proxies(setup: Setup, rng: Random) -> state.ProxyColumns:
    """Return the state of the proxies, without any weights."""
    pairs = len(setup.pool.replicas) * setup.proxies
    points = setup.policy.lookup(setup.pool)
    return state.ProxyColumns(
        active=filled(LONG, pairs),
        total=filled(LONG, setup.proxies),
        given=filled(FLOAT, pairs),
        weight=filled(FLOAT, pairs),
        head=filled(LONG, pairs, -1),
        tail=filled(LONG, pairs, -1),
        waiting=filled(LONG, setup.proxies),
        refusing=filled(LONG, 1),
        current=column(FLOAT, (rng.random() for _ in range(pairs))),
        due=filled(FLOAT, pairs),
        now=filled(FLOAT, setup.proxies),
        turn=filled(LONG, pairs),
        ring_point=column(LONG, (point for point, _ in points)),
        ring_replica=column(LONG, (replica for _, replica in points)),
    )
