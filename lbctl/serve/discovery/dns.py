"""Periodically resolves every host name in the fleet, so that proxies do not have to resolve names themselves.

A name is either a pool's `discovery.dns`, which resolves to the pool's replicas, or the host in a fixed address (of a
replica or the trace collector). A name is queried every `refresh`, with a jitter of 10 %. An answer stays valid until
the next one: a failure, an unknown name or an empty answer never removes an address, but is reported by `names()`.
`guard` decides how many replicas a pool may lose at once (`max_shrink`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NoReturn

from lbctl.base.hosts import is_ip
from lbctl.compile.replicas import replica_name
from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, Replica
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.runtime.net.resolve import DnsAnswer, UnresolvedError, resolve, usable_answer
from lbctl.serve.discovery.interface import NameState, PoolAnswer

_log = logging.getLogger(__name__)
_HOST_REFRESH = 10_000
"""Milliseconds between lookups of the host name in a fixed address, as in proxies that resolve names themselves."""
_FIRST_RETRY = 1.0
"""Seconds before a query is retried after its first failure; the delay doubles with each further failure, up to the
refresh interval."""
_MAX_CONCURRENT = 32
"""Maximum number of names queried concurrently."""
_MAX_SHOWN = 32
"""Maximum number of addresses shown in a log line."""
_WAIT_WITH_ANSWER = 0.5
"""Maximum number of seconds that `first` waits for a name that already has an earlier answer."""


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A name and the resolvers to query for it. Its text form is the key of the saved answer."""

    name: str
    resolvers: tuple[Address, ...] = ()
    """The resolvers; if empty, the operating system's resolver is used."""

    def __str__(self) -> str:
        return "@".join((self.name, ",".join(map(str, self.resolvers)))) if self.resolvers else self.name


@dataclass(slots=True)
class _WatchedName:
    """A name that is queried periodically, with its last answer."""

    question: DnsQuestion
    refresh: int = _HOST_REFRESH
    pools: dict[str, DnsDiscovery] = field(default_factory=dict)
    host: bool = False
    answer: DnsAnswer | None = None
    answered: float | None = None
    error: str = ""
    failed: float | None = None
    failures: int = 0
    attempted: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[NoReturn] | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses in the last answer; empty before the first answer."""
        return self.answer.addresses if self.answer else ()

    def state(self) -> NameState:
        """Return this name's state for the API."""
        max_replicas = max((item.max_replicas for item in self.pools.values()), default=len(self.addresses))
        return NameState(
            self.question.name,
            tuple(map(str, self.question.resolvers)),
            tuple(sorted(self.pools)),
            self.addresses,
            self.answer.refused if self.answer else (),
            max(0, len(self.addresses) - max_replicas),
            self.answered,
            self.error,
            self.failed,
        )


class DnsSource:
    """A DiscoverySource that also resolves the host names in fixed addresses."""

    def __init__(
        self,
        on_change: Callable[[], None],
        guard: Guard,
        *,
        timeout: float = 5.0,
        now: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """Start without any names. `on_change` is called when an answer has changed.

        `timeout`: timeout for a single query, in seconds.
        """
        self._on_change = on_change
        self._guard = guard
        self._timeout = timeout
        self._now = now
        self._rng = rng or random.Random()
        self._names: dict[DnsQuestion, _WatchedName] = {}
        self._seeds: dict[str, DnsAnswer] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Use saved answers for newly watched names until the names are resolved."""
        for question, addresses in saved.items():
            with suppress(UnresolvedError, ValueError):
                self._seeds[question] = usable_answer(addresses)

    def use_topology(self, topology: Topology) -> None:
        """Watch exactly the names of this topology. Names that were already watched keep their answers."""
        wanted = _wanted(topology)
        for question in self._names.keys() - wanted.keys():
            self._unwatch(self._names.pop(question))
        for question, name in wanted.items():
            watched = self._names.get(question)
            if watched is None:
                name.answer = self._seeds.get(str(question))
                self._names[question] = watched = name
            restart = watched.refresh != name.refresh
            watched.refresh, watched.pools, watched.host = name.refresh, name.pools, name.host
            if watched.task is None or restart:
                self._start(watched)
        self._on_change()

    async def first(self, timeout: float) -> None:
        """Wait until every name has been queried once, but at most half a second if a name has an earlier answer."""
        names = list(self._names.values())
        await _wait_for_first([name for name in names if name.answer], min(timeout, _WAIT_WITH_ANSWER))
        await _wait_for_first([name for name in names if not name.answer], timeout)

    def answers(self) -> Mapping[str, PoolAnswer]:
        """Map each pool with `discovery.dns` to its answer."""
        return {pool: _pool_answer(name, dns) for name in self._names.values() for pool, dns in name.pools.items()}

    def hosts(self) -> dict[str, tuple[str, ...]]:
        """Map each host in a fixed address that has been resolved to its addresses."""
        return {name.question.name: name.addresses for name in self._names.values() if name.host and name.addresses}

    def host_answers(self) -> dict[str, tuple[str, ...]]:
        """Map each question about a host in a fixed address to its addresses, in the format accepted by `seed`."""
        return {str(name.question): name.addresses for name in self._names.values() if name.host and name.addresses}

    def names(self) -> tuple[NameState, ...]:
        """Return the state of every watched name, sorted."""
        return tuple(self._names[question].state() for question in sorted(self._names, key=str))

    async def stop(self) -> None:
        """Stop all queries. The last answers remain in use."""
        tasks = [name.task for name in self._names.values() if name.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: _WatchedName) -> None:
        if name.task:
            name.task.cancel()
        name.task = self._guard.start("DNS lookups", partial(self._query_periodically, name), name=str(name.question))

    def _unwatch(self, name: _WatchedName) -> None:
        """Stop querying a name. Its last answer is kept as a seed, in case the name was removed by mistake."""
        if name.task:
            name.task.cancel()
        if name.answer:
            self._seeds[str(name.question)] = name.answer

    async def _query_periodically(self, name: _WatchedName) -> None:
        while True:
            await self._query(name)
            await asyncio.sleep(self._pause(name))

    async def _query(self, name: _WatchedName) -> None:
        async with self._slots:
            try:
                dns_answer = await resolve(name.question.name, name.question.resolvers, self._timeout)
            except (UnresolvedError, OSError, ValueError) as error:
                self._failed(name, str(error))
            else:
                self._answered(name, dns_answer)
        name.attempted.set()

    def _pause(self, name: _WatchedName) -> float:
        """Return the seconds until the next query, with jitter."""
        pause = name.refresh / 1000
        if name.failures:
            pause = min(pause, _FIRST_RETRY * 2 ** min(name.failures - 1, 16))
        return pause * self._rng.uniform(0.9, 1.1)

    def _failed(self, name: _WatchedName, reason: str) -> None:
        if reason != name.error:
            kept = f"; its last {len(name.addresses)} addresses stay in use" if name.addresses else ""
            _log.warning("the name %s could not be resolved: %s%s", name.question, reason, kept)
        name.error, name.failed, name.failures = reason, self._now(), name.failures + 1

    def _answered(self, name: _WatchedName, dns_answer: DnsAnswer) -> None:
        refused = dns_answer.refused
        if refused and (name.answer is None or refused != name.answer.refused):
            _log.warning(
                "the name %s also has addresses that are not valid for a replica: %s", name.question, _listed(refused)
            )
        if name.error:
            _log.info("the name %s resolves again", name.question)
        changed = dns_answer.addresses != name.addresses
        name.answer, name.answered, name.error, name.failures = dns_answer, self._now(), "", 0
        if changed:
            _log.info("the name %s has the addresses %s", name.question, _listed(dns_answer.addresses))
            self._on_change()


def _listed(addresses: Sequence[str]) -> str:
    more = f" and {len(addresses) - _MAX_SHOWN} more" if len(addresses) > _MAX_SHOWN else ""
    return ", ".join(addresses[:_MAX_SHOWN]) + more


async def _wait_for_first(names: Sequence[_WatchedName], timeout: float) -> None:
    """Wait until each name has been queried once, for at most `timeout` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            for name in names:
                await name.attempted.wait()


@lru_cache(maxsize=8192)
def replicas_of(dns: DnsDiscovery, addresses: tuple[str, ...]) -> tuple[Replica, ...]:
    """Return a replica for each of the first `max_replicas` addresses, sorted by name.

    The replicas get the names that the compiler gives to unnamed replicas, and their capacity and GPU come from the
    section.
    """
    limited = [Address(item, dns.port) for item in addresses[: dns.max_replicas]]
    replicas = [Replica(name=replica_name(item), address=item, capacity=dns.capacity, gpu=dns.gpu) for item in limited]
    return tuple(sorted(replicas, key=lambda item: item.name))


def _wanted(topology: Topology) -> dict[DnsQuestion, _WatchedName]:
    """Return every host name in the topology.

    If several pools use the same name, the shortest refresh interval applies.
    """
    wanted: dict[DnsQuestion, _WatchedName] = {}
    for pool in topology.pools:
        if isinstance(pool.discovery, DnsDiscovery):
            question = DnsQuestion(pool.discovery.name, pool.discovery.resolvers)
            name = wanted.setdefault(question, _WatchedName(question, pool.discovery.refresh))
            name.pools[pool.name] = pool.discovery
            name.refresh = min(name.refresh, pool.discovery.refresh)
    for host in _hosts(topology):
        name = wanted.setdefault(DnsQuestion(host), _WatchedName(DnsQuestion(host)))
        name.host, name.refresh = True, min(name.refresh, _HOST_REFRESH)
    return wanted


def _hosts(topology: Topology) -> Iterator[str]:
    """Return the hosts in fixed addresses that are names, not IP addresses."""
    fixed = [item.address for pool in topology.pools for item in pool.replicas]
    fixed += [item.tracing.otlp for item in topology.listeners if item.tracing]
    return (item.host for item in fixed if not item.path and not is_ip(item.host))


def _pool_answer(name: _WatchedName, dns: DnsDiscovery) -> PoolAnswer:
    replicas = replicas_of(dns, name.addresses) if name.addresses else None
    return PoolAnswer(replicas, name.answered, name.error, name.failed, str(name.question), name.addresses)
