"""The running fleet's traffic: the ledger, and the sources that report to it.

lbctl polls HAProxies, nginx sends one log line per request, and each Envoy reports under its node ID. A source for
another kind of proxy would follow the published fleet from here and report under the proxy's name. Replicas that are
not in the fleet are ignored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from lbctl.base.errors import reason_of
from lbctl.control.inputs import ProxyRequests
from lbctl.control.loop_output import shortest_interval
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.rollout_metrics import measured
from lbctl.ir.snapshot import pools_of
from lbctl.ir.topology import Topology
from lbctl.runtime import log
from lbctl.runtime.guard import Guard, Work
from lbctl.serve.drivers.eligibility import driven
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.traffic.interface import LOGGING, TIMED, Assigned, PolledSource, polled_source
from lbctl.serve.traffic.ledger import ReplicaKey, TrafficLedger
from lbctl.serve.traffic.log_line import ReplicaAddresses
from lbctl.serve.traffic.log_receiver import LogReceiver
from lbctl.serve.traffic.pace import Pace

_INTERVAL = 5.0
"""Seconds between two polls of a proxy; less if a pool's telemetry is read more often."""
_COLLECT_INTERVAL = 1.0
"""Seconds between reports from the traffic log."""
COUNTERS = "traffic counters"
"""Name of the task that polls proxies."""
_V = TypeVar("_V")


class Traffic:
    """Owns the ledger. `clock`: the ledger's clock."""

    def __init__(
        self,
        nodes: Callable[[], Iterable[str]] = lambda: (),
        connected: Callable[[], Collection[str]] = frozenset,
        log_bind: Callable[[], Address | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        guard: Guard | None = None,
    ) -> None:
        """Start without a fleet.

        `nodes` returns the IDs of known Envoys, `connected` returns the driven proxies that are running, and `log_bind`
        returns the address for the traffic log, or None if nothing may listen.
        """
        self.ledger = TrafficLedger()
        self.clock = clock
        self.pace = Pace()
        """The polling pace for the proxies' counters and checks."""
        self.log = LogReceiver()
        self._nodes = nodes
        self._connected = connected
        self._log_bind = log_bind
        self._guard = guard or Guard()
        self._log_problem = ""
        self._logging: set[str] = set()
        self.proxies: Mapping[str, Proxy] = {}
        """The fleet's proxies by name."""
        self._polled: dict[str, PolledSource] = {}
        self._assigned: dict[str, tuple[Assigned, ...]] = {}
        """Maps each proxy to its last report."""
        self._places: tuple[tuple[Pool, ...], Mapping[str, tuple[str, ...]]] = ((), {})
        """The pools, and the IP addresses of host names, from which the next two attributes are built."""
        self._replicas: frozenset[ReplicaKey] = frozenset()
        self._addresses = ReplicaAddresses((), {})
        self._with_websockets: frozenset[str] = frozenset()
        self._interval = _INTERVAL
        self._news = asyncio.Event()

    def use_fleet(self, served: PublishedFleet) -> None:
        """From now on, read the traffic of this fleet's proxies."""
        whole, topology = served.composed.whole, served.composed.whole.topology
        self._with_websockets = with_websockets(topology)
        self._interval = min(_INTERVAL, shortest_interval(topology) or _INTERVAL)
        self._use_proxies(topology.proxies)
        if (topology.pools, whole.addresses) != self._places:
            self._places = topology.pools, whole.addresses
            self._replicas = frozenset(
                ReplicaKey(pool.name, item.name) for pool in topology.pools for item in pool.replicas
            )
            self._addresses = ReplicaAddresses(*self._places)
        logging = {item.name for item in topology.proxies if item.kind in LOGGING}
        self._logging &= logging
        wanted = measured(topology.routes)
        timed = {item.name for item in topology.proxies if item.kind in TIMED}
        self.log.use_proxies(logging, self._addresses, timed, self._replicas, wanted)
        self.ledger.keep([*self.proxies, *self._nodes()])
        self.ledger.keep_replicas(self._replicas, wanted)
        self._news.set()

    def requests_of(self, pool: str, replica: str) -> ProxyRequests:
        """Return a replica's requests at all proxies that report them.

        Requests in flight are unknown for pools that may have WebSocket connections, because an idle connection is
        counted as a request.
        """
        key = ReplicaKey(pool, replica)
        in_flight = None if pool in self._with_websockets else self.ledger.in_flight(key, self.clock())
        return ProxyRequests(in_flight, self.ledger.answered(key))

    def assigned(self) -> list[Assigned]:
        """Return each polled proxy's requests for each replica, according to its last report.

        Proxies with several instances are omitted, because only one instance is polled.
        """
        single = (name for name, proxy in self.proxies.items() if proxy.instances == 1)
        return [item for name in single for item in self._assigned.get(name, ())]

    def tasks(self) -> Mapping[str, Work]:
        """Return the sources' tasks by name; they run until the process exits."""
        return {COUNTERS: self._poll, "traffic log": self._collect}

    def log_address(self, topology: Topology) -> Address | None:
        """Return the address for the traffic log of this fleet's driven proxies; None if nothing can listen.

        The first fleet with such a log opens the socket. If the files do not set a port and another process is using
        the default port, any free port is used.
        """
        bind = self._log_bind()
        if self.log.address is not None or bind is None or not _sends_log(topology):
            return self.log.address
        for each in (bind,) if topology.control.logs_written else (bind, replace(bind, port=0)):
            try:
                self.log.open(each)
                log.event("receiving the traffic log", address=self.log.address)
                return self.log.address
            except OSError as error:
                problem = f"{each}: {reason_of(error)}"
        self._warn(problem)
        return None

    def close(self) -> None:
        """Stop receiving."""
        self.log.close()

    def _warn(self, problem: str) -> None:
        if problem != self._log_problem:
            log.warn(
                "the traffic log cannot be received, so nginx's traffic and HAProxy's latencies are unknown",
                why=problem,
            )
        self._log_problem = problem

    def _use_proxies(self, proxies: tuple[Proxy, ...]) -> None:
        before, self.proxies = self.proxies, {item.name: item for item in proxies}
        for name in [name for name in self._polled if before.get(name) != self.proxies.get(name)]:
            del self._polled[name]
            self._assigned.pop(name, None)
        for name, proxy in self.proxies.items():
            if before.get(name) != proxy and (source := polled_source(proxy)) is not None:
                self._polled[name] = source

    async def _poll(self) -> None:
        while True:
            if not self._polled:
                self._news.clear()
                await self._news.wait()
                continue
            await asyncio.gather(*(self._report(name, source) for name, source in self._polled.items()))
            await self.pace.pause(self._interval)

    async def _report(self, proxy: str, source: PolledSource) -> None:
        try:
            report = await source.poll()
        except Exception:  # noqa: BLE001 -- the other proxies are still polled
            self._guard.record("a proxy's counters cannot be read", COUNTERS, proxy=proxy)
            report = None
        if self._polled.get(proxy) is not source:
            return
        if report is None:
            self.ledger.lost(proxy)
            self._assigned.pop(proxy, None)
            return
        now = self.clock()
        assigned = self._of_fleet(report.assigned).items()
        self._assigned[proxy] = tuple(Assigned(proxy, key, requests, now) for key, requests in assigned)
        self.log.set_slots(proxy, report.slots)
        answered = None if report.answered is None else report.answered & self._replicas
        self.ledger.add(proxy, self._of_fleet(report.counts), now, answered)
        self.ledger.add_own_errors(proxy, self._of_pools(report.own_errors), now)
        self.ledger.set_in_flight(proxy, self._of_fleet(report.in_flight), now)
        self.ledger.set_conditions(proxy, self._of_fleet(report.conditions), now)

    async def _collect(self) -> None:
        """Report the counts from the traffic log.

        A running proxy that has sent lines before but is not sending any now is considered idle.
        """
        while True:
            await asyncio.sleep(_COLLECT_INTERVAL)
            counts, answered = self.log.collect(), self.log.collect_answered()
            self._logging |= counts.keys()
            for proxy in counts.keys() | (self._logging & frozenset(self._connected())):
                self.ledger.add(proxy, counts.get(proxy, {}), self.clock(), answered.get(proxy, ()))
            for proxy, errors in self.log.collect_own_errors().items():
                self.ledger.add_own_errors(proxy, errors, self.clock())
            for proxy, latencies in self.log.collect_latencies().items():
                self.ledger.add_latencies(proxy, latencies, self.clock())
            for proxy, first_bytes in self.log.collect_first_bytes().items():
                self.ledger.add_first_bytes(proxy, first_bytes, self.clock())

    def _of_pools(self, values: Mapping[str, int]) -> dict[str, int]:
        pools = {key.pool for key in self._replicas}
        return {name: value for name, value in values.items() if name in pools}

    def _of_fleet(self, values: Mapping[ReplicaKey, _V]) -> dict[ReplicaKey, _V]:
        return {key: value for key, value in values.items() if key in self._replicas}


def with_websockets(topology: Topology) -> frozenset[str]:
    """Return the pools that a route with WebSockets may use."""
    return frozenset(name for route in topology.routes if route.websocket for name in pools_of(route))


def _sends_log(topology: Topology) -> bool:
    """Return whether one of the fleet's proxies sends its traffic log.

    If `control.logs` is set, all proxies of certain kinds send it; otherwise, only driven proxies with `reload` do.
    """
    written = topology.control.logs_written
    proxies = topology.proxies if written else [item for item in driven(topology) if item.reload is not None]
    return any(item.kind in LOGGING | TIMED for item in proxies)
