"""Replica selection as implemented by each proxy. Each proxy knows only its own requests.

The rules follow nginx 1.22 (`ngx_http_upstream_round_robin.c`, `ngx_http_upstream_least_conn_module.c`), HAProxy 2.6
(`lb_fwlc.c`, `lb_fwrr.c`) and Envoy 1.40 (`load_balancing_policies`).
"""

from __future__ import annotations

import math

from lbctl.simulate.compiled import jit
from lbctl.simulate.state import ProxyColumns, Requests, RunSettings

SMOOTH, LEAST_CONN, LEASTCONN, DEADLINES, DEADLINES_BY_WEIGHT, RANDOM, RING, PICKED = range(8)
"""Smooth weighted round robin (nginx, HAProxy); nginx's least_conn; HAProxy's leastconn; Envoy's least request, and its
round robin; random by weight; a hash ring with or without bounded load; the picker.

The compiled loops do not include the picker.
"""
DRAWING = (DEADLINES, RANDOM)
"""Rules that need random numbers."""
NONE = -1
"""Returned if no replica gets requests."""
UNIT = 2.0**-32
"""Factor that converts a random integer to a number between 0 and 1."""
_MIX = 2_654_435_761
"""2³² ÷ the golden ratio, which makes a key's second choice independent of its first."""


@jit
def choose(proxies: ProxyColumns, requests: Requests, settings: RunSettings, request: int) -> int:
    """Return the replica for a request; NONE if no replica has a weight."""
    base = requests.proxy[request] * settings.replicas
    if settings.policy == SMOOTH:
        return smooth(proxies, settings, base, -1.0)
    if settings.policy == LEAST_CONN:
        return least_conn(proxies, settings, base)
    if settings.policy == LEASTCONN:
        return leastconn(proxies, settings, base)
    if settings.policy == DEADLINES:
        return least_request(proxies, requests, settings, request, base)
    if settings.policy == DEADLINES_BY_WEIGHT:
        return earliest(proxies, settings, requests.proxy[request], False)
    if settings.policy == RING:
        return ring(proxies, requests, settings, request, base)
    return by_weight(proxies, settings, base, requests.draw[request] * UNIT)


@jit
def smooth(proxies: ProxyColumns, settings: RunSettings, base: int, tied: float) -> int:
    """2³² ÷ the golden ratio, which makes a key's second choice independent of its first one.

    `tied`: consider only replicas with this load in `due`; if it is negative, consider all replicas.
    """
    total, best = 0.0, NONE
    for replica in range(settings.replicas):
        weight = proxies.weight[base + replica]
        if weight <= 0.0 or (tied >= 0.0 and proxies.due[base + replica] != tied):
            continue
        total += weight
        proxies.current[base + replica] += weight
        if best == NONE or proxies.current[base + replica] > proxies.current[base + best]:
            best = replica
    if best != NONE:
        proxies.current[base + best] -= total
    return best


@jit
def least_conn(proxies: ProxyColumns, settings: RunSettings, base: int) -> int:
    """Return nginx's choice: the fewest requests in flight relative to the weight, with smooth round robin for ties."""
    least, ties = -1.0, 0
    best = NONE
    for replica in range(settings.replicas):
        weight = proxies.weight[base + replica]
        if weight <= 0.0:
            continue
        load = proxies.active[base + replica] / weight
        proxies.due[base + replica] = load
        if least < 0.0 or load < least:
            least, ties, best = load, 1, replica
        elif load == least:
            ties += 1
    return smooth(proxies, settings, base, least) if ties > 1 else best


@jit
def leastconn(proxies: ProxyColumns, settings: RunSettings, base: int) -> int:
    """Return HAProxy's choice: the lowest (requests in flight + 1) ÷ weight; 0 for every idle server.

    Ties are resolved by the order in which the servers last changed.
    """
    best, least, oldest = NONE, 0.0, 0
    for replica in range(settings.replicas):
        weight = proxies.weight[base + replica]
        if weight <= 0.0:
            continue
        active = proxies.active[base + replica]
        load = (active + 1) / weight if active else 0.0
        turn = proxies.turn[base + replica]
        if best == NONE or load < least or (load == least and turn < oldest):
            best, least, oldest = replica, load, turn
    return best


@jit
def least_request(proxies: ProxyColumns, requests: Requests, settings: RunSettings, request: int, base: int) -> int:
    """Return Envoy's choice.

    With equal weights, the choice is the less busy of two replicas. Otherwise, it is the replica with the earliest
    deadline by weight ÷ (active + 1).
    """
    count, equal, common = 0, True, -1.0
    for replica in range(settings.replicas):
        weight = proxies.weight[base + replica]
        if weight > 0.0:
            count += 1
            equal = equal and (common < 0.0 or weight == common)
            common = weight
    if count and equal:
        first = nth(proxies, settings, base, int(requests.draw[request] * UNIT * count))
        second = nth(proxies, settings, base, int(requests.second_draw[request] * UNIT * count))
        return second if proxies.active[base + second] < proxies.active[base + first] else first
    return earliest(proxies, settings, requests.proxy[request], True)


@jit
def earliest(proxies: ProxyColumns, settings: RunSettings, proxy: int, by_active: bool) -> int:
    """Return the replica with the earliest deadline in Envoy's queue.

    The replica's next deadline is 1 ÷ weight later, or (active + 1) ÷ weight.
    """
    base, best = proxy * settings.replicas, NONE
    for replica in range(settings.replicas):
        if proxies.weight[base + replica] > 0.0 and (
            best == NONE or proxies.due[base + replica] < proxies.due[base + best]
        ):
            best = replica
    if best != NONE:
        proxies.now[proxy] = proxies.due[base + best]
        load = proxies.active[base + best] + 1 if by_active else 1
        proxies.due[base + best] += load / proxies.weight[base + best]
    return best


@jit
def nth(proxies: ProxyColumns, settings: RunSettings, base: int, number: int) -> int:
    """Return the replica at this position among the replicas that have a weight."""
    for replica in range(settings.replicas):
        if proxies.weight[base + replica] > 0.0:
            if number == 0:
                return replica
            number -= 1
    return NONE


@jit
def by_weight(proxies: ProxyColumns, settings: RunSettings, base: int, draw: float) -> int:
    """Return a replica with a probability proportional to its weight."""
    total = 0.0
    for replica in range(settings.replicas):
        total += max(0.0, proxies.weight[base + replica])
    last = NONE
    draw *= total
    for replica in range(settings.replicas):
        weight = proxies.weight[base + replica]
        if weight > 0.0:
            last = replica
            draw -= weight
            if draw < 0.0:
                return replica
    return last


@jit
def ring(proxies: ProxyColumns, requests: Requests, settings: RunSettings, request: int, base: int) -> int:
    """Return the replica of the next ring point whose replica gets requests.

    With a bound, replicas above their share of requests are skipped.
    """
    points, key = proxies.ring_point, requests.key[request]
    size = len(points)
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if points[middle] < key:
            low = middle + 1
        else:
            high = middle
    active, total = 1.0, 0.0
    for replica in range(settings.replicas):
        active += proxies.active[base + replica]
        total += max(0.0, proxies.weight[base + replica])
    first = NONE
    for ahead in range(size):
        replica = int(proxies.ring_replica[(low + ahead) % size])
        weight = proxies.weight[base + replica]
        if weight <= 0.0:
            continue
        if settings.bound <= 0.0 or has_room(settings, proxies.active[base + replica], weight / total, active):
            return replica
        if settings.jumps:
            return jump(proxies, settings, base, int(key), total, active)
        first = replica if first == NONE else first
    return first


@jit
def has_room(settings: RunSettings, own: int, share: float, active: float) -> bool:
    """Return whether a replica is below its share of `active` requests, which include the new one."""
    if settings.jumps:
        return own <= slots(settings, share, active)
    return own + 1 <= max(1.0, settings.bound * active * share)


@jit
def slots(settings: RunSettings, share: float, active: float) -> int:
    """Return the number of requests that Envoy allows a replica to have before adding the new request."""
    count: int = max(1, math.ceil(math.ceil(settings.bound * active) * share))
    return count


@jit
def jump(proxies: ProxyColumns, settings: RunSettings, base: int, key: int, total: float, active: float) -> int:
    """Return Envoy's choice beyond the bound: any replica with free capacity, by the key and regardless of its weight.

    If there is none, return the least overloaded replica.
    """
    count, best, least = 0, NONE, math.inf
    for replica in range(settings.replicas):
        weight, own = proxies.weight[base + replica], proxies.active[base + replica]
        if weight <= 0.0:
            continue
        if has_room(settings, own, weight / total, active):
            count += 1
        load = own / slots(settings, weight / total, active)
        if load < least:
            best, least = replica, load
    mixed = (key % 65536 * _MIX + key // 65536 * 40503) % 2**32
    number = int(mixed * UNIT * count)
    for replica in range(settings.replicas):
        weight = proxies.weight[base + replica]
        if weight > 0.0 and has_room(settings, proxies.active[base + replica], weight / total, active):
            if number == 0:
                return replica
            number -= 1
    return best
