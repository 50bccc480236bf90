"""How many requests the proxies have at each replica, where a proxy reports it: a HAProxy by its Runtime API.

A stalled engine may not report the requests that wait for it. An Envoy reports them only in its load reports, which
lbctl does not receive, and nginx not at all: their requests are unknown. A number that a proxy does not report is
unknown, never 0. It is also unknown for a pool that may get WebSockets: HAProxy counts an idle one as a request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping

from lbctl.control.loop_output import controlled
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import pools_of
from lbctl.ir.topology import Topology
from lbctl.serve.drivers.base import RequestCounter
from lbctl.serve.drivers.registry import driver_kind
from lbctl.serve.fleet.publisher import PublishedFleet


class InFlight:
    """Reads the requests in flight once in the shortest telemetry interval of the controlled pools."""

    def __init__(self) -> None:
        self._proxies: tuple[Proxy, ...] = ()
        self._counters: tuple[RequestCounter, ...] = ()
        self._interval: float | None = None
        self._requests: Mapping[tuple[str, str], int] = {}
        self._with_websockets: frozenset[str] = frozenset()
        self._news = asyncio.Event()

    def follow(self, served: PublishedFleet) -> None:
        """Read the requests of this fleet from now on."""
        topology = served.composed.whole.topology
        if topology.proxies != self._proxies:
            self._proxies, self._counters = topology.proxies, _counters(topology.proxies)
        self._interval = _interval(topology)
        self._with_websockets = with_websockets(topology)
        self._news.set()

    def of(self, pool: str, replica: str) -> int | None:
        """The requests in all proxies that reported last; None where none did."""
        return None if pool in self._with_websockets else self._requests.get((pool, replica))

    async def run(self) -> None:
        """Read the counters until the task is cancelled."""
        while True:
            interval = self._interval if self._counters else None
            if interval is None:
                self._requests = {}
                self._news.clear()
                await self._news.wait()
                continue
            self._requests = await in_flight(self._counters)
            await asyncio.sleep(interval)


def with_websockets(topology: Topology) -> frozenset[str]:
    """The pools that a route with WebSockets may lead to."""
    return frozenset(name for route in topology.routes if route.websocket for name in pools_of(route))


def _counters(proxies: Iterable[Proxy]) -> tuple[RequestCounter, ...]:
    kinds = ((item, driver_kind(item.kind)) for item in proxies)
    return tuple(counter for item, kind in kinds if kind and (counter := kind.counter(item)) is not None)


def _interval(topology: Topology) -> float | None:
    """The shortest telemetry interval in seconds; None where no pool has telemetry."""
    pools = controlled(topology)
    telemetry = [pool.telemetry for pool in pools] + [item.telemetry for pool in pools for item in pool.replicas]
    return min((item.interval / 1000 for item in telemetry if item is not None), default=None)


async def in_flight(counters: Iterable[RequestCounter]) -> Mapping[tuple[str, str], int]:
    """(pool, replica) → requests there, of all proxies that answer."""
    requests: Counter[tuple[str, str]] = Counter()
    for counts in await asyncio.gather(*(item.count() for item in counters)):
        requests.update(counts)
    return requests
