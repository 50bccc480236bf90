"""How many requests the proxies have at each replica, where a proxy can be asked: a HAProxy by its Runtime API.

An engine that stands still may not know that anybody waits for it. An Envoy tells this only by its load reports, which
lbctl does not take, and nginx nowhere: of these nothing is known. What a proxy does not answer is unknown, never 0.
Nor is anything known of a pool that WebSockets may come to: HAProxy counts one that is silent as a request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping

from lbctl.apply.haproxy import running
from lbctl.apply.haproxy.running import Place, UnreadableError
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import pools_of
from lbctl.ir.topology import Topology
from lbctl.serve.live import controlled
from lbctl.serve.publisher import Served
from lbctl.targets.haproxy import desired

_TIMEOUT = 2.0


class InFlight:
    """Asked once in the shortest interval of the pools that are looked at."""

    def __init__(self) -> None:
        self._runtimes: tuple[Runtime, ...] = ()
        self._interval: float | None = None
        self._known: Mapping[tuple[str, str], int] = {}
        self._unsure: frozenset[str] = frozenset()
        self._news = asyncio.Event()

    def follow(self, served: Served) -> None:
        """The fleet from now on."""
        topology = served.whole.topology
        places = _places(topology.proxies)
        if places != [item.place for item in self._runtimes]:
            self._runtimes = tuple(Runtime(place, _TIMEOUT) for place in places)
        self._interval = _interval(topology)
        self._unsure = with_websockets(topology)
        self._news.set()

    def of(self, pool: str, replica: str) -> int | None:
        """At the last look, in all proxies that told; None where none did."""
        return None if pool in self._unsure else self._known.get((pool, replica))

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            interval = self._interval if self._runtimes else None
            if interval is None:
                self._known = {}
                self._news.clear()
                await self._news.wait()
                continue
            self._known = await held(self._runtimes)
            await asyncio.sleep(interval)


def with_websockets(topology: Topology) -> frozenset[str]:
    """The pools that a route with WebSockets may lead to."""
    return frozenset(name for route in topology.routes if route.websocket for name in pools_of(route))


def _places(proxies: Iterable[Proxy]) -> list[str]:
    return [item.runtime_api for item in proxies if item.kind == "haproxy" and item.runtime_api]


def _interval(topology: Topology) -> float | None:
    """Seconds; None where no pool is looked at."""
    pools = controlled(topology)
    told = [pool.telemetry for pool in pools] + [item.telemetry for pool in pools for item in pool.replicas]
    return min((item.interval / 1000 for item in told if item is not None), default=None)


async def held(runtimes: Iterable[Runtime]) -> Mapping[tuple[str, str], int]:
    """(pool, replica) → requests there, of all proxies and all backends that a replica stands in."""
    found: Counter[tuple[str, str]] = Counter()
    for answer in await asyncio.gather(*map(_sessions, runtimes)):
        for (backend, server), sessions in answer.items():
            found[desired.pool_name(backend), server] += sessions
    return found


async def _sessions(runtime: Runtime) -> Mapping[Place, int]:
    answer = await runtime.ask(running.SESSIONS)
    try:
        return {} if answer.failure else await asyncio.to_thread(running.sessions, answer.texts[0])
    except UnreadableError:
        return {}
