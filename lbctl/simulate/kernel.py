"""The events of a simulation in chronological order: ends of iterations, clients that give up, and arrivals."""

from __future__ import annotations

import math

from lbctl.simulate.balancing import NONE, PICKED, choose
from lbctl.simulate.compiled import jit
from lbctl.simulate.engines import begin, finish, note, pop, reschedule, shorten
from lbctl.simulate.limits import count_in_flight, dispatch, forget, refuse, release
from lbctl.simulate.state import (
    AT_PICKER,
    DECODE,
    DONE,
    GAVE_UP,
    IDLE,
    LAST,
    NOWHERE,
    PENDING,
    EngineColumns,
    ProxyColumns,
    Requests,
    RunProgress,
    RunSettings,
)


@jit
def advance(
    requests: Requests,
    engines: EngineColumns,
    proxies: ProxyColumns,
    settings: RunSettings,
    progress: RunProgress,
    until: float,
) -> float:
    """Run all events up to and including a time. Return the time reached.

    Returns early at an arrival for which the picker must choose a replica or whose chosen replica is dead (`refused`).
    While requests are waiting at the picker, it also returns after each event that is relevant to the picker.
    """
    arrivals = len(requests.arrived)
    progress.refused[0] = -1
    while True:
        arrival = requests.arrived[progress.arrival[0]] if progress.arrival[0] < arrivals else math.inf
        leaving = math.inf
        if progress.leaving[0] < progress.arrival[0]:
            leaving = requests.arrived[progress.leaving[0]] + settings.patience
        expiring = next_expiry(requests, settings, progress)
        engine = engines.heap[0]
        now: float = min(engines.end[engine], leaving, expiring, arrival)
        if now > until or now == math.inf:
            return until
        if engines.end[engine] <= now:
            end_of_iteration(requests, engines, proxies, settings, progress, engine)
        elif leaving <= now:
            give_up(requests, engines, proxies, settings, progress, now)
        elif expiring <= now:
            expire(requests, proxies, settings, progress)
        elif settings.policy == PICKED:
            return now
        else:
            request = progress.arrival[0]
            replica = choose(proxies, requests, settings, request)
            if replica >= 0 and engines.up[replica] == 0:
                progress.refused[0] = replica
                return now
            progress.arrival[0] += 1
            dispatch(requests, engines, proxies, settings, progress, request, replica, now)
        if progress.queued[0] and progress.logged[0]:
            return now


@jit
def next_expiry(requests: Requests, settings: RunSettings, progress: RunProgress) -> float:
    """Return the time at which the next request that still waits in a proxy is rejected; infinite if none waits."""
    if settings.waits == NOWHERE or progress.expiring[0] >= progress.arrival[0]:
        return math.inf
    time: float = requests.arrived[progress.expiring[0]] + settings.waiting_time
    return time


@jit
def end_of_iteration(
    requests: Requests,
    engines: EngineColumns,
    proxies: ProxyColumns,
    settings: RunSettings,
    progress: RunProgress,
    replica: int,
) -> None:
    """End an engine's iteration: completed requests leave, and the next iteration begins."""
    now = engines.end[replica]
    finish(engines, requests, settings, progress, replica)
    engines.kind[replica] = LAST
    base = replica * settings.slots
    while engines.running[replica] and engines.run_done[base] <= engines.step[replica]:
        request = pop(engines, settings, replica)
        requests.last[request] = now
        engines.context[replica] -= requests.need[request] + requests.rest[request] - 1
        if requests.state[request] != GAVE_UP:
            requests.state[request] = DONE
            note(requests, settings, progress, 2 * request + 1)
            proxy = requests.proxy[request]
            count_in_flight(proxies, settings, progress, proxy, replica, -1)
            release(requests, engines, proxies, settings, progress, proxy, replica, now)
    begin(engines, requests, settings, progress, replica, now)
    reschedule(engines, replica)


@jit
def give_up(
    requests: Requests,
    engines: EngineColumns,
    proxies: ProxyColumns,
    settings: RunSettings,
    progress: RunProgress,
    now: float,
) -> None:
    """Let the oldest request's client leave if it has no first token."""
    request = progress.leaving[0]
    progress.leaving[0] += 1
    if requests.first[request] >= 0.0 or requests.state[request] != PENDING:
        return
    requests.state[request] = GAVE_UP
    note(requests, settings, progress, 2 * request + 1)
    replica, proxy = requests.replica[request], requests.proxy[request]
    if replica == AT_PICKER:
        return
    if replica < 0:
        forget(proxies, proxy)
        return
    count_in_flight(proxies, settings, progress, proxy, replica, -1)
    if requests.admitted[request] == 0:
        engines.left[replica] += 1
        if engines.head[replica] == request:
            shorten(engines, replica, now)
            reschedule(engines, replica)
    release(requests, engines, proxies, settings, progress, proxy, replica, now)


@jit
def expire(requests: Requests, proxies: ProxyColumns, settings: RunSettings, progress: RunProgress) -> None:
    """Reject the request whose wait in a proxy has reached the limit."""
    request = progress.expiring[0]
    progress.expiring[0] += 1
    if requests.state[request] == PENDING and requests.replica[request] == NONE:
        forget(proxies, requests.proxy[request])
        refuse(requests, settings, progress, request)


@jit
def change_speed(
    requests: Requests,
    engines: EngineColumns,
    settings: RunSettings,
    progress: RunProgress,
    replica: int,
    factor: float,
    now: float,
) -> None:
    """Change an engine's speed, starting with its next iteration. A speed of 0 stops the engine at that point."""
    standing = engines.factor[replica] <= 0.0
    if engines.kind[replica] == DECODE:
        shorten(engines, replica, now)
        engines.kind[replica] = LAST
    engines.factor[replica] = factor
    if standing and factor > 0.0 and engines.kind[replica] == IDLE:
        begin(engines, requests, settings, progress, replica, now)
    reschedule(engines, replica)
