"""lbctl's own checks of the replicas, which are used only to display their states.

lbctl opens a connection to every replica every two seconds and then closes it. This detects an unreachable replica
quickly and independently of the proxies' checks and reports. In a large fleet, at most 200 connections are opened per
second. Replicas with a host name or TLS, which may be external services, are only connected to every ten seconds.

If a pool has an active check, and no proxy that may send requests to the pool reports check results, lbctl also
performs the active check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import aiohttp

from lbctl.base.hosts import is_ip
from lbctl.compile.files import files_on_disk
from lbctl.control.check_thresholds import CheckState, initial_state, next_state
from lbctl.ir.address import Address
from lbctl.ir.pools import ActiveCheck, Pool, TcpCheck
from lbctl.ir.proxies import Proxy, xds_proxies
from lbctl.ir.snapshot import pools_reached
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard, Work
from lbctl.runtime.net.http_client import session
from lbctl.serve.drivers.eligibility import driven
from lbctl.serve.drivers.registry import driver_kind
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.health.fetch import HealthCheck, connection_probe, fetch
from lbctl.serve.health.health_check import HealthChecker, Key
from lbctl.serve.traffic.interface import polled_source
from lbctl.targets import target, xds_kinds

_ROUND = 2.0
"""Seconds between two connections to a replica."""
_MAX_RATE = 200
"""Maximum number of connections opened per second."""
_MAX_CONCURRENT = 64
_PAUSE = 0.2
"""Minimum time between two rounds, in seconds."""
_SPARED_ROUNDS = 5
"""Replicas with a host name or TLS are checked only once in this many rounds."""
_CONNECT = ActiveCheck(TcpCheck(), interval=2_000, timeout=2_000, unhealthy_threshold=1, healthy_threshold=1)


class ReplicaChecks:
    """Checks the published fleet's replicas. Readers fetch the results; there are no callbacks."""

    def __init__(self, guard: Guard) -> None:
        self._files: Mapping[str, Path] = {}
        self._checker = HealthChecker(lambda _key, _state: None, lambda path: self._files.get(path), guard)
        self._connections = Connections()

    @property
    def checks(self) -> Mapping[Key, CheckState]:
        """Results of active checks by (pool, replica), if no proxy reports a result or the reports lack a reason."""
        return self._checker.states

    @property
    def connections(self) -> Mapping[Key, CheckState]:
        """Maps each (pool, replica) pair to whether a connection to it can be opened."""
        return self._connections.states

    def use_fleet(self, served: PublishedFleet) -> None:
        """From now on, check this fleet's replicas."""
        whole = served.composed.whole.topology
        self._connections.use_pools(whole.pools)
        pools = list(unreported(whole))
        self._files = files_on_disk(served.loaded.source) if pools else {}
        self._checker.use_pools(pools, served.composed.whole.secrets)

    def tasks(self) -> Mapping[str, Work]:
        """Return the tasks by name; they run until the process exits."""
        return {"connections to replicas": self._connections.run, "checks of unreported pools": self._checker.run}


def unreported(topology: Topology) -> Iterator[Pool]:
    """Yield the pools with an active check whose results no proxy reports, except those that lbctl already checks.

    Envoy reports results without a reason, so pools with agents are also yielded if only Envoys report their results.
    """
    of_envoys, of_driven = xds_proxies(topology, xds_kinds()).all, driven(topology)
    explained = {name for proxy in of_driven if _reports(proxy) for name in pools_reached(topology, proxy)}
    reported = explained | {name for proxy in of_envoys if _reports(proxy) for name in pools_reached(topology, proxy)}
    for pool in topology.pools:
        known = reported if pool.agent is None else explained
        if pool.active is not None and pool.balance.pick is None and pool.name not in known:
            yield pool


def _reports(proxy: Proxy) -> bool:
    """Return whether the results of a proxy's active checks are known: it reports them or lbctl performs the checks."""
    if target(proxy.kind).served_by_xds:
        return proxy.admin is not None and proxy.instances == 1
    kind = driver_kind(proxy.kind)
    return (kind is not None and kind.active_checks) or polled_source(proxy) is not None


class _Target(NamedTuple):
    """An address of one or more replicas."""

    probe: HealthCheck
    is_spared: bool
    """Whether lbctl checks the address less often."""
    keys: list[Key]
    """Replicas with this address."""


class Connections:
    """Opens connections to replicas one after another; replicas with the same address share a connection."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.states: dict[Key, CheckState] = {}
        self._now = now
        self._pools: Mapping[str, Pool] = {}
        self._targets: dict[Address, _Target] = {}

    def use_pools(self, pools: Iterable[Pool]) -> None:
        """From now on, connect to the replicas in these pools.

        A replica keeps its state as long as its address is unchanged.
        """
        before, self._pools = self._pools, {pool.name: pool for pool in pools}
        states = {
            ((name, item.name), item.address): self._remove((name, item.name), item.address)
            for name, pool in before.items()
            if self._pools.get(name) is not pool
            for item in pool.replicas
        }
        new = initial_state(self._now(), trusted=True)
        for name, pool in self._pools.items():
            if before.get(name) is not pool:
                for item in pool.replicas:
                    self._add((name, item.name), item.address, has_tls=pool.tls is not None)
                    self.states[name, item.name] = states.get(((name, item.name), item.address), new)

    def _add(self, key: Key, address: Address, *, has_tls: bool) -> None:
        if address not in self._targets:
            is_spared = has_tls or not (address.path or is_ip(address.host))
            self._targets[address] = _Target(connection_probe(address, _CONNECT.timeout), is_spared, [])
        self._targets[address].keys.append(key)

    def _remove(self, key: Key, address: Address) -> CheckState:
        keys = self._targets[address].keys
        keys.remove(key)
        if not keys:
            del self._targets[address]
        return self.states.pop(key)

    async def run(self) -> None:
        """Open connections until the task is cancelled."""
        slots, number = asyncio.Semaphore(_MAX_CONCURRENT), 0
        async with session() as client:
            while True:
                began = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    for address, item in list(self._targets.items()):
                        if not (item.is_spared and number % _SPARED_ROUNDS):
                            await slots.acquire()
                            group.create_task(self._connect(address, item.probe, client, slots))
                            await asyncio.sleep(1 / _MAX_RATE)
                number += 1
                await asyncio.sleep(max(_PAUSE, began + _ROUND - time.monotonic()))

    async def _connect(
        self, address: Address, probe: HealthCheck, client: aiohttp.ClientSession, slots: asyncio.Semaphore
    ) -> None:
        try:
            result = await fetch(probe, client)
        finally:
            slots.release()
        found = self._targets.get(address)
        if result is not None and found is not None:
            for key in found.keys:
                self.states[key] = next_state(self.states[key], _CONNECT, result, self._now())
