"""Follows every name that the fleet leaves to the DNS, so that a proxy gets addresses and never has to ask.

Names are in two places: as a pool's `discovery.dns`, where each address is a replica, and as the host of a fixed
address (a replica's, the trace collector's). A name is asked again every `refresh`, give or take a tenth. An answer
holds until the next one: no failure, no unknown name and no empty answer ever takes an address away; `names()` reports
them. `guard` judges what a pool may lose at once (`max_shrink`).
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
from lbctl.compile.pools import replica_name
from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, Replica
from lbctl.ir.topology import Topology
from lbctl.serve.discovery.interface import PoolAnswer
from lbctl.serve.guard import Guard
from lbctl.serve.net.resolve import Answer, UnresolvedError, answer, resolve

_log = logging.getLogger(__name__)
_HOST_REFRESH = 10_000
"""ms; for the host of a fixed address, as a proxy that resolves by itself is told."""
_FIRST_PAUSE = 1.0
"""Seconds after a first failure; doubled with each further one, up to the refresh."""
_AT_ONCE = 32
"""Names that are asked for at the same time."""
_KNOWN = 0.5
"""Seconds that a start waits for a newer answer than the one that it has."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and whom; without resolvers the system is. As text it is the key of its answer."""

    name: str
    resolvers: tuple[Address, ...] = ()

    def __str__(self) -> str:
        return "@".join((self.name, ",".join(map(str, self.resolvers)))) if self.resolvers else self.name


@dataclass(frozen=True, slots=True)
class NameState:
    """How a name stands. Times are seconds since the epoch, None: never. `addresses` without `answered` are seeds;
    `error`: why the last question got none; `left_out`: how many addresses are beyond the largest `max_replicas`."""

    name: str
    resolvers: tuple[str, ...]
    pools: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    left_out: int = 0
    answered: float | None = None
    error: str = ""
    failed: float | None = None


@dataclass(slots=True)
class _Name:
    question: Question
    refresh: int = _HOST_REFRESH
    pools: dict[str, DnsDiscovery] = field(default_factory=dict)
    host: bool = False
    answer: Answer | None = None
    answered: float | None = None
    error: str = ""
    failed: float | None = None
    failures: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[NoReturn] | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.answer.addresses if self.answer else ()

    def state(self) -> NameState:
        most = max((item.max_replicas for item in self.pools.values()), default=len(self.addresses))
        return NameState(
            self.question.name,
            tuple(map(str, self.question.resolvers)),
            tuple(sorted(self.pools)),
            self.addresses,
            self.answer.refused if self.answer else (),
            max(0, len(self.addresses) - most),
            self.answered,
            self.error,
            self.failed,
        )


class DnsSource:
    """A DiscoverySource that also follows the names of fixed addresses."""

    def __init__(
        self,
        changed: Callable[[], None],
        guard: Guard,
        *,
        patience: float = 5.0,
        now: Callable[[], float] = time.time,
        chance: random.Random | None = None,
    ) -> None:
        """`patience`: seconds for one question."""
        self._changed = changed
        self._guard = guard
        self._patience = patience
        self._now = now
        self._chance = chance or random.Random()
        self._names: dict[Question, _Name] = {}
        self._seeds: dict[str, Answer] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """What was known before: it stands in for names that are followed from now on, until they are answered."""
        for question, addresses in saved.items():
            with suppress(UnresolvedError, ValueError):
                self._seeds[question] = answer(addresses)

    def follow(self, topology: Topology) -> None:
        """Follows the names of this topology, and no others; a name that stays keeps its answer."""
        wanted = _wanted(topology)
        for question in self._names.keys() - wanted.keys():
            self._leave(self._names.pop(question))
        for question, name in wanted.items():
            known = self._names.get(question)
            if known is None:
                name.answer = self._seeds.get(str(question))
                self._names[question] = known = name
            restart = known.refresh != name.refresh
            known.refresh, known.pools, known.host = name.refresh, name.pools, name.host
            if known.task is None or restart:
                self._start(known)
        self._changed()

    async def first(self, timeout: float) -> None:
        """Wait until every name was asked for; for names of which something is known no longer than half a second."""
        names = list(self._names.values())
        await _asked([name for name in names if name.answer], min(timeout, _KNOWN))
        await _asked([name for name in names if not name.answer], timeout)

    def answers(self) -> Mapping[str, PoolAnswer]:
        return {pool: _pool_answer(name, dns) for name in self._names.values() for pool, dns in name.pools.items()}

    def hosts(self) -> dict[str, tuple[str, ...]]:
        """Host of a fixed address → its addresses, where there is an answer."""
        return {name.question.name: name.addresses for name in self._names.values() if name.host and name.addresses}

    def host_answers(self) -> dict[str, tuple[str, ...]]:
        """What `seed` takes back of those hosts: question → addresses."""
        return {str(name.question): name.addresses for name in self._names.values() if name.host and name.addresses}

    def names(self) -> tuple[NameState, ...]:
        """Every name that is followed, in their order."""
        return tuple(self._names[question].state() for question in sorted(self._names, key=str))

    async def stop(self) -> None:
        """Nothing is asked any more; what is known stays."""
        tasks = [name.task for name in self._names.values() if name.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: _Name) -> None:
        if name.task:
            name.task.cancel()
        name.task = self._guard.start("DNS lookups", partial(self._ask_again, name), name=str(name.question))

    def _leave(self, name: _Name) -> None:
        """Its answer stays a seed: a name that is taken out by mistake comes back with it."""
        if name.task:
            name.task.cancel()
        if name.answer:
            self._seeds[str(name.question)] = name.answer

    async def _ask_again(self, name: _Name) -> None:
        while True:
            await self._ask(name)
            await asyncio.sleep(self._pause(name))

    async def _ask(self, name: _Name) -> None:
        async with self._at_once:
            try:
                found = await resolve(name.question.name, name.question.resolvers, self._patience)
            except (UnresolvedError, OSError, ValueError) as error:
                self._failed(name, str(error))
            else:
                self._answered(name, found)
        name.asked.set()

    def _pause(self, name: _Name) -> float:
        pause = name.refresh / 1000
        if name.failures:
            pause = min(pause, _FIRST_PAUSE * 2 ** min(name.failures - 1, 16))
        return pause * self._chance.uniform(0.9, 1.1)

    def _failed(self, name: _Name, words: str) -> None:
        if words != name.error:
            kept = f"; its {len(name.addresses)} last addresses are kept" if name.addresses else ""
            _log.warning("the name %s could not be resolved: %s%s", name.question, words, kept)
        name.error, name.failed, name.failures = words, self._now(), name.failures + 1

    def _answered(self, name: _Name, found: Answer) -> None:
        if found.refused and (name.answer is None or found.refused != name.answer.refused):
            _log.warning("the name %s also has addresses that no replica can have: %s", name.question, found.refused)
        if name.error:
            _log.info("the name %s is resolved again", name.question)
        moved = found.addresses != name.addresses
        name.answer, name.answered, name.error, name.failures = found, self._now(), "", 0
        if moved:
            _log.info("the name %s has the addresses %s", name.question, ", ".join(found.addresses))
            self._changed()


async def _asked(names: Sequence[_Name], timeout: float) -> None:
    """Waits until each was asked for once, at most so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            for name in names:
                await name.asked.wait()


@lru_cache(maxsize=8192)
def replicas_of(dns: DnsDiscovery, addresses: tuple[str, ...]) -> tuple[Replica, ...]:
    """One replica for each address, the first `max_replicas` of them, named and weighted as a written one would be."""
    where = [Address(item, dns.port) for item in addresses[: dns.max_replicas]]
    found = [Replica(name=replica_name(item), address=item, capacity=dns.capacity, gpu=dns.gpu) for item in where]
    return tuple(sorted(found, key=lambda item: item.name))


def _wanted(topology: Topology) -> dict[Question, _Name]:
    wanted: dict[Question, _Name] = {}
    for pool in topology.pools:
        if isinstance(pool.discovery, DnsDiscovery):
            question = Question(pool.discovery.name, pool.discovery.resolvers)
            name = wanted.setdefault(question, _Name(question, pool.discovery.refresh))
            name.pools[pool.name] = pool.discovery
            name.refresh = min(name.refresh, pool.discovery.refresh)
    for host in _hosts(topology):
        name = wanted.setdefault(Question(host), _Name(Question(host)))
        name.host, name.refresh = True, min(name.refresh, _HOST_REFRESH)
    return wanted


def _hosts(topology: Topology) -> Iterator[str]:
    fixed = [item.address for pool in topology.pools for item in pool.replicas]
    fixed += [item.tracing.otlp for item in topology.listeners if item.tracing]
    return (item.host for item in fixed if not item.path and not is_ip(item.host))


def _pool_answer(name: _Name, dns: DnsDiscovery) -> PoolAnswer:
    replicas = replicas_of(dns, name.addresses) if name.addresses else None
    return PoolAnswer(replicas, name.answered, name.error, name.failed, str(name.question), name.addresses)
