"""Follows every name that the fleet leaves to the DNS, so that a proxy is told addresses and never has to ask.

Names stand in two places: as a pool's `discovery.dns`, where each address is a replica, and as the host of a fixed
address (a replica's, the trace collector's). A name is asked again every `refresh`, give or take a tenth. An answer
holds until the next one: no failure, no unknown name and no empty answer ever takes an address away; they are told in
`names()`. What a pool may lose at once (`max_shrink`) is for whoever applies the result to judge.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

from lbctl.compile.pools import name_of
from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, Replica
from lbctl.ir.topology import Topology
from lbctl.serve.resolve import Answer, UnresolvedError, answer, is_ip, resolve

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
class Discovered:
    """What is known of the names at one time; a name that was never answered is absent.

    `pools`: pool → its replicas, by name, no more than its `max_replicas`. `hosts`: host of a fixed address → its
    addresses. `answers`: question → addresses, what a state directory keeps and `Discover.seed` takes back.
    """

    pools: Mapping[str, tuple[Replica, ...]] = field(default_factory=dict)
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def apply(self, topology: Topology) -> Topology:
        """The topology with what was found as the replicas of its discovered pools."""
        found = self.pools
        pools = tuple(
            replace(item, replicas=found[item.name])
            if item.name in found and isinstance(item.discovery, DnsDiscovery)
            else item
            for item in topology.pools
        )
        return replace(topology, pools=pools)


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
    task: asyncio.Task[None] | None = None

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


class Discover:
    """`follow` a topology inside a running event loop, wait for `first`, then take `changes`; one taker."""

    def __init__(
        self,
        *,
        patience: float = 5.0,
        settle: float = 0.1,
        now: Callable[[], float] = time.time,
        chance: random.Random | None = None,
    ) -> None:
        """`patience`: seconds for one question; `settle`: for how long changes are gathered into one."""
        self._patience = patience
        self._settle = settle
        self._now = now
        self._chance = chance or random.Random()
        self._names: dict[Question, _Name] = {}
        self._seeds: dict[str, Answer] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._changed = asyncio.Event()
        self._current: Discovered | None = Discovered()
        self._given = Discovered()

    def seed(self, answers: Mapping[str, Sequence[str]]) -> None:
        """What was known before: it stands in for names that are followed from now on, until they are answered."""
        for question, addresses in answers.items():
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
        self._touch()

    async def first(self, timeout: float) -> Discovered:
        """What is known once every name was asked for, or after `timeout` seconds; for names of which something is
        known already it waits no longer than half a second."""
        names = list(self._names.values())
        await _asked([name for name in names if name.answer], min(timeout, _KNOWN))
        await _asked([name for name in names if not name.answer], timeout)
        self._given = self.current
        return self._given

    async def changes(self) -> AsyncIterator[Discovered]:
        """The newest each time it is another than was given out last, by `first` or here. Never ends."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._settle)
            self._changed.clear()
            if self.current != self._given:
                self._given = self.current
                yield self._given

    @property
    def current(self) -> Discovered:
        if self._current is None:
            self._current = _discovered(self._names.values())
        return self._current

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
        name.task = asyncio.get_running_loop().create_task(self._ask_again(name), name=f"dns {name.question}")

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
            self._touch()

    def _touch(self) -> None:
        self._current = None
        self._changed.set()


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
    found = [Replica(name=name_of(item), address=item, capacity=dns.capacity, gpu=dns.gpu) for item in where]
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


def _discovered(names: Iterable[_Name]) -> Discovered:
    known = [name for name in names if name.addresses]
    return Discovered(
        pools={pool: replicas_of(dns, name.addresses) for name in known for pool, dns in name.pools.items()},
        hosts={name.question.name: name.addresses for name in known if name.host},
        answers={str(name.question): name.addresses for name in known},
    )
