"""All sources of replicas together: what they answer, without what no replica can be.

A source that fails, forgets a pool or answers nonsense takes no replica away: the pool's last answer stays, as long as
its `discovery` stays as it was when the answer came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.registry import Registry
from lbctl.ir.pools import Discovery as PoolDiscovery
from lbctl.ir.pools import Pool
from lbctl.ir.topology import Topology
from lbctl.serve import log
from lbctl.serve.discovery import sources
from lbctl.serve.discovery.dns import DnsSource, NameState
from lbctl.serve.discovery.interface import Discovered, DiscoverySource, PoolAnswer, SourceFactory
from lbctl.serve.discovery.plausible import implausible
from lbctl.serve.guard import Guard

_NOTHING = Topology((), (), ())
_GRACE = 1.0
"""Seconds beyond its timeout after which a source is no longer waited for."""


class Discovery:
    """`follow` a topology inside a running event loop, wait for `first`, then take `changes`; one taker."""

    def __init__(self, guard: Guard, kinds: Registry[SourceFactory] | None = None, settle: float = 0.1) -> None:
        """`guard` runs the tasks of the sources. `kinds`: None for all. `settle`: seconds to gather changes in."""
        kinds = kinds or sources.SOURCES
        self._settle = settle
        self._changed = asyncio.Event()
        self._current: Discovered | None = Discovered()
        self._given = Discovered()
        self._topology = _NOTHING
        self._good: dict[str, tuple[PoolDiscovery, PoolAnswer]] = {}
        self._sources: dict[str, DiscoverySource] = {kind: kinds.get(kind)(self._touch, guard) for kind in kinds.names}

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Take what sources saved before a restart."""
        for source in self._sources.values():
            source.seed(saved)

    def follow(self, topology: Topology) -> None:
        """Follow the pools and the names of this topology, and no others; a pool that stays keeps its answer."""
        self._topology = topology
        for source in self._sources.values():
            source.follow(topology)
        self._touch()

    async def first(self, timeout: float) -> Discovered:
        """What is known once every source was asked, or after about `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout + _GRACE):
                await asyncio.gather(*(self._first(kind, timeout) for kind in self._sources))
        self._given = self.current
        return self._given

    async def changes(self) -> AsyncIterator[Discovered]:
        """What is known, each time it is something else than was given out last, by `first` or here. Never ends."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._settle)
            self._changed.clear()
            if self.current != self._given:
                self._given = self.current
                yield self._given

    @property
    def current(self) -> Discovered:
        """What is known now."""
        if self._current is None:
            self._current = self._discovered()
        return self._current

    def names(self) -> tuple[NameState, ...]:
        """Every name that is asked for, in their order."""
        return tuple(state for source in self._dns() for state in source.names())

    async def stop(self) -> None:
        """Ask nobody any more; what is known stays."""
        await asyncio.gather(*(source.stop() for source in self._sources.values()))

    def _touch(self) -> None:
        self._current = None
        self._changed.set()

    async def _first(self, kind: str, timeout: float) -> None:
        try:
            await self._sources[kind].first(timeout)
        except Exception:  # noqa: BLE001 -- one source must not keep the others waiting
            log.failure("a source of replicas failed; what is known stays", kind=kind)

    def _dns(self) -> tuple[DnsSource, ...]:
        """The source that also knows the names of fixed addresses."""
        return tuple(source for source in self._sources.values() if isinstance(source, DnsSource))

    def _discovered(self) -> Discovered:
        followed = [(pool, pool.discovery) for pool in self._topology.pools if pool.discovery is not None]
        answers = {kind: self._answers(kind) for kind in {discovery.kind for _, discovery in followed}}
        problems: list[Diagnostic] = []
        good = {}
        for pool, discovery in followed:
            answer = self._judged(pool, discovery, answers[discovery.kind].get(pool.name), problems)
            if answer is not None:
                good[pool.name] = (discovery, answer)
        self._good = good
        known = {name: answer for name, (_, answer) in good.items()}
        saved = {key: addresses for source in self._dns() for key, addresses in source.host_answers().items()}
        return Discovered(
            pools={name: answer.replicas for name, answer in known.items() if answer.replicas is not None},
            hosts={host: addresses for source in self._dns() for host, addresses in source.hosts().items()},
            answers=saved | {answer.key: answer.saved for answer in known.values() if answer.key},
            keys={name: answer.key for name, answer in known.items() if answer.key},
            problems=tuple(problems),
        )

    def _answers(self, kind: str) -> Mapping[str, PoolAnswer]:
        source = self._sources.get(kind)
        try:
            return source.answers() if source else {}
        except Exception:  # noqa: BLE001 -- a source that fails takes no replica away
            log.failure("a source of replicas failed; what is known stays", kind=kind)
            return {}

    def _judged(
        self, pool: Pool, discovery: PoolDiscovery, new: PoolAnswer | None, problems: list[Diagnostic]
    ) -> PoolAnswer | None:
        """The new answer where it may count, else the last good one of the same `discovery`."""
        section, last = self._good.get(pool.name, (None, None))
        if section != discovery:
            last = None
        if new is None or new.replicas is None:
            return last
        if discovery.compiled or (last is not None and new.replicas is last.replicas):
            return new
        problem = implausible(new.replicas)
        if not problem:
            return new
        stays = "its last answer stays" if last else "the pool has no replicas yet"
        message = f"the source {discovery.kind} answered with what no fleet can have: {problem}; {stays}"
        problems.append(Diagnostic("LB933", message, None, ("pools", pool.name, "discovery"), ""))
        return last
