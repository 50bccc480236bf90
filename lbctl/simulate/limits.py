"""Handles a request after a replica has been chosen: the proxy sends, queues or rejects the request."""

from __future__ import annotations

from lbctl.simulate.balancing import NONE
from lbctl.simulate.compiled import jit
from lbctl.simulate.engines import begin, enqueue, note, reschedule, shorten
from lbctl.simulate.state import (
    BROKEN,
    FOR_ONE,
    IDLE,
    NOWHERE,
    PENDING,
    SHED,
    EngineColumns,
    ProxyColumns,
    Requests,
    RunProgress,
    RunSettings,
)


@jit
def dispatch(
    requests: Requests,
    engines: EngineColumns,
    proxies: ProxyColumns,
    settings: RunSettings,
    progress: RunProgress,
    request: int,
    replica: int,
    now: float,
) -> None:
    """Send a request to a replica, queue it, or reject it.

    If the replica is NONE, either all replicas are full or the proxy has none.
    """
    proxy = requests.proxy[request]
    base = proxy * settings.replicas
    if proxies.refusing[0] or (settings.total_limit and proxies.total[proxy] >= settings.total_limit):
        refuse(requests, settings, progress, request)
    elif replica == NONE and not serves(proxies, settings, base):
        lose(requests, settings, progress, request)
    elif replica == NONE or (settings.limit and proxies.active[base + replica] >= settings.limit):
        wait(requests, proxies, settings, progress, request, replica)
    else:
        send(requests, engines, proxies, settings, progress, request, replica, now)


@jit
def send(
    requests: Requests,
    engines: EngineColumns,
    proxies: ProxyColumns,
    settings: RunSettings,
    progress: RunProgress,
    request: int,
    replica: int,
    now: float,
) -> None:
    """Send a request to a running engine."""
    requests.replica[request] = replica
    count_in_flight(proxies, settings, progress, requests.proxy[request], replica, 1)
    blocked = engines.waiting[replica] > 0
    enqueue(engines, requests, replica, request)
    if engines.kind[replica] == IDLE:
        begin(engines, requests, settings, progress, replica, now)
    elif not blocked:
        shorten(engines, replica, now)
    reschedule(engines, replica)


@jit
def serves(proxies: ProxyColumns, settings: RunSettings, base: int) -> bool:
    """Return whether a proxy has any replica, even a full one."""
    for replica in range(settings.replicas):  # noqa: SIM110 - numba compiles no generators
        if proxies.given[base + replica] > 0.0:
            return True
    return False


@jit
def refuse(requests: Requests, settings: RunSettings, progress: RunProgress, request: int) -> None:
    """Reject a request immediately because of one of the proxy's limits."""
    requests.state[request] = SHED
    note(requests, settings, progress, 2 * request + 1)


@jit
def lose(requests: Requests, settings: RunSettings, progress: RunProgress, request: int) -> None:
    """Fail a request whose replica has died, or that no replica can serve."""
    requests.state[request] = BROKEN
    note(requests, settings, progress, 2 * request + 1)


@jit
def wait(
    requests: Requests, proxies: ProxyColumns, settings: RunSettings, progress: RunProgress, request: int, replica: int
) -> None:
    """Queue a request in its proxy if the queue has space."""
    proxy = requests.proxy[request]
    if settings.waits == NOWHERE or proxies.waiting[proxy] >= settings.waiting_limit:
        refuse(requests, settings, progress, request)
        return
    queue = proxy * settings.replicas + (replica if settings.waits == FOR_ONE else 0)
    requests.follower[request] = -1
    if proxies.head[queue] >= 0:
        requests.follower[proxies.tail[queue]] = request
    else:
        proxies.head[queue] = request
    proxies.tail[queue] = request
    proxies.waiting[proxy] += 1


@jit
def forget(proxies: ProxyColumns, proxy: int) -> None:
    """Record that a request no longer waits. The request is dropped when it reaches the head of its queue."""
    proxies.waiting[proxy] -= 1


@jit
def release(
    requests: Requests,
    engines: EngineColumns,
    proxies: ProxyColumns,
    settings: RunSettings,
    progress: RunProgress,
    proxy: int,
    replica: int,
    now: float,
) -> None:
    """Send a proxy's queued requests to a replica that has free capacity again."""
    if settings.waits == NOWHERE or engines.up[replica] == 0:
        return
    slot = proxy * settings.replicas + replica
    queue = slot if settings.waits == FOR_ONE else proxy * settings.replicas
    while proxies.head[queue] >= 0 and proxies.given[slot] > 0.0 and proxies.active[slot] < settings.limit:
        request = proxies.head[queue]
        proxies.head[queue] = requests.follower[request]
        if requests.state[request] == PENDING:
            forget(proxies, proxy)
            send(requests, engines, proxies, settings, progress, request, replica, now)


@jit
def count_in_flight(
    proxies: ProxyColumns, settings: RunSettings, progress: RunProgress, proxy: int, replica: int, change: int
) -> None:
    """Change a proxy's count of requests in flight at a replica."""
    slot = proxy * settings.replicas + replica
    proxies.active[slot] += change
    proxies.total[proxy] += change
    progress.turns[0] += 1
    proxies.turn[slot] = progress.turns[0]
    if settings.skips_full:
        proxies.weight[slot] = proxies.given[slot] if proxies.active[slot] < settings.limit else 0.0
