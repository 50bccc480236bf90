"""The events of a simulation in the order of time: iterations that end, clients that give up, arrivals."""

from __future__ import annotations

import math

from lbctl.simulate.choosers import NONE, PICKED, choose
from lbctl.simulate.columns import DECODE, DONE, GAVE_UP, IDLE, LAST, Engines, Progress, Proxies, Requests, Settings
from lbctl.simulate.compiled import jit
from lbctl.simulate.engines import begin, enqueue, finish, note, pop, reschedule, shorten


@jit
def advance(
    requests: Requests, engines: Engines, proxies: Proxies, settings: Settings, progress: Progress, until: float
) -> None:
    """Run all events up to and including a time; where the picker chooses, up to the next arrival."""
    arrivals = len(requests.arrived)
    while True:
        arrival = requests.arrived[progress.arrival[0]] if progress.arrival[0] < arrivals else math.inf
        leaving = math.inf
        if progress.leaving[0] < progress.arrival[0]:
            leaving = requests.arrived[progress.leaving[0]] + settings.patience
        engine = engines.heap[0]
        now = min(engines.end[engine], leaving, arrival)
        if now > until or now == math.inf:
            return
        if engines.end[engine] <= now:
            end_of_iteration(requests, engines, proxies, settings, progress, engine)
        elif leaving <= now:
            give_up(requests, engines, proxies, settings, progress, now)
        elif settings.policy == PICKED:
            return
        else:
            request = progress.arrival[0]
            place(requests, engines, proxies, settings, progress, request, choose(proxies, requests, settings, request))


@jit
def place(
    requests: Requests,
    engines: Engines,
    proxies: Proxies,
    settings: Settings,
    progress: Progress,
    request: int,
    replica: int,
) -> None:
    """Send the request that arrives now to a replica; NONE: nobody takes it, and it fails at once."""
    progress.arrival[0] += 1
    if replica == NONE:
        requests.state[request] = GAVE_UP
        return
    now = requests.arrived[request]
    requests.replica[request] = replica
    book(proxies, settings, progress, requests.proxy[request], replica, 1)
    blocked = engines.waiting[replica] > 0
    enqueue(engines, requests, replica, request)
    if engines.kind[replica] == IDLE:
        begin(engines, requests, settings, progress, replica, now)
    elif not blocked:
        shorten(engines, replica, now)
    reschedule(engines, replica)


@jit
def book(proxies: Proxies, settings: Settings, progress: Progress, proxy: int, replica: int, change: int) -> None:
    """Change a proxy's count of the requests in flight at a replica."""
    slot = proxy * settings.replicas + replica
    proxies.active[slot] += change
    progress.turns[0] += 1
    proxies.turn[slot] = progress.turns[0]


@jit
def end_of_iteration(
    requests: Requests, engines: Engines, proxies: Proxies, settings: Settings, progress: Progress, replica: int
) -> None:
    """End the iteration of an engine: finished answers leave, and the next iteration begins."""
    now = engines.end[replica]
    finish(engines, requests, settings, progress, replica)
    base = replica * settings.slots
    while engines.running[replica] and engines.run_done[base] <= engines.step[replica]:
        request = pop(engines, settings, replica)
        requests.last[request] = now
        engines.context[replica] -= requests.need[request] + requests.rest[request] - 1
        if requests.state[request] != GAVE_UP:
            requests.state[request] = DONE
            note(requests, progress, 2 * request + 1)
            book(proxies, settings, progress, requests.proxy[request], replica, -1)
    begin(engines, requests, settings, progress, replica, now)
    reschedule(engines, replica)


@jit
def give_up(
    requests: Requests, engines: Engines, proxies: Proxies, settings: Settings, progress: Progress, now: float
) -> None:
    """The client of the oldest request leaves where it has no first token."""
    request = progress.leaving[0]
    progress.leaving[0] += 1
    if requests.first[request] >= 0.0 or requests.state[request] == GAVE_UP:
        return
    requests.state[request] = GAVE_UP
    note(requests, progress, 2 * request + 1)
    replica = requests.replica[request]
    book(proxies, settings, progress, requests.proxy[request], replica, -1)
    if requests.admitted[request] == 0:
        engines.left[replica] += 1
        if engines.head[replica] == request:
            shorten(engines, replica, now)
            reschedule(engines, replica)


@jit
def change_speed(
    requests: Requests,
    engines: Engines,
    settings: Settings,
    progress: Progress,
    replica: int,
    factor: float,
    now: float,
) -> None:
    """Change the speed of an engine, from its next iteration on; 0 stops it there."""
    standing = engines.factor[replica] <= 0.0
    if engines.kind[replica] == DECODE:
        shorten(engines, replica, now)
        engines.kind[replica] = LAST
    engines.factor[replica] = factor
    if standing and factor > 0.0 and engines.kind[replica] == IDLE:
        begin(engines, requests, settings, progress, replica, now)
    reschedule(engines, replica)
