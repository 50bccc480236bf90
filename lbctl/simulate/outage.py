"""What the death of a replica does to its engine, and to those that wait for it."""

from __future__ import annotations

import math

from lbctl.simulate.columns import FOR_ONE, IDLE, PENDING, EngineColumns, ProxyColumns, Requests, RunSettings
from lbctl.simulate.engines import WAYS, reschedule


def break_off(requests: Requests, engines: EngineColumns, settings: RunSettings, replica: int, now: float) -> list[int]:
    """Empty a dead engine and close its port; return the requests whose clients still waited, by their arrival."""
    base = replica * settings.slots
    inside = [int(engines.run_request[base + slot]) for slot in range(engines.running[replica])]
    inside += [int(engines.read_request[base + slot]) for slot in range(engines.reading[replica])]
    request = int(engines.head[replica])
    for _ in range(engines.waiting[replica]):
        inside.append(request)
        request = int(requests.follower[request])
    if engines.kind[replica] != IDLE:
        engines.busy_seconds[replica] += now - engines.begun[replica]
    engines.up[replica] = engines.running[replica] = engines.reading[replica] = 0
    engines.waiting[replica] = engines.left[replica] = engines.context[replica] = 0
    engines.kind[replica], engines.end[replica] = IDLE, math.inf
    reschedule(engines, replica)
    start = int(engines.cache_start[replica])
    for slot in range(start, start + WAYS * int(engines.cache_sets[replica]) if settings.block else start):
        engines.cached_block[slot] = -1
    broken = sorted(request for request in inside if requests.state[request] == PENDING)
    for request in broken:
        requests.replica[request], requests.admitted[request] = -1, 0
        requests.need[request], requests.rest[request] = requests.prompt[request], requests.answer[request]
    return broken


def revive(engines: EngineColumns, replica: int) -> None:
    """Open the port of a replica again."""
    engines.up[replica] = 1


def waiting_for(requests: Requests, proxies: ProxyColumns, settings: RunSettings, replica: int) -> list[int]:
    """Take out and return the requests that wait in proxies for this replica and no other."""
    taken = []
    for slot in range(replica, len(proxies.head), settings.replicas) if settings.waits == FOR_ONE else ():
        request = int(proxies.head[slot])
        proxies.head[slot] = -1
        while request >= 0:
            if requests.state[request] == PENDING:
                taken.append(request)
            request = int(requests.follower[request])
    return sorted(taken)
