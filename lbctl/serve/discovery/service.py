"""Combines the answers of all replica sources and drops answers that no fleet could contain.

A source that fails, omits a pool or returns implausible replicas does not remove any replicas: the pool keeps its last
answer as long as its `discovery` section is unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.registry import Registry
from lbctl.ir.pools import Discovery, Pool
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.serve.discovery import sources
from lbctl.serve.discovery.dns import DnsSource
from lbctl.serve.discovery.interface import Discovered, DiscoverySource, NameState, PoolAnswer, SourceFactory
from lbctl.serve.discovery.own_listeners import OwnBinds, at_own_listener, own_listeners
from lbctl.serve.discovery.plausible import implausible

_EMPTY = Topology((), (), ())
_GRACE = 1.0
"""Additional seconds to wait for a source after its timeout has expired."""


class DiscoveryService:
    """Combines the sources.

    Call `use_topology` in a running event loop, then call `first`, then consume `changes` in one task.
    """

    def __init__(
        self,
        guard: Guard,
        kinds: Registry[SourceFactory] | None = None,
        settle: float = 0.1,
        binds: OwnBinds | None = None,
    ) -> None:
        """Create the sources in `kinds`, or all sources by default.

        Changes that occur within `settle` seconds are reported together.

        `guard` runs the sources' tasks and counts failures of their methods. `binds`: addresses of this process that
        are not defined in the fleet.
        """
        self._binds = binds or OwnBinds()
        kinds = kinds or sources.SOURCES
        self._guard = guard
        self._settle = settle
        self._changed = asyncio.Event()
        self._current: Discovered | None = Discovered()
        self._reported = Discovered()
        self._topology = _EMPTY
        self._last_good: dict[str, tuple[Discovery, PoolAnswer]] = {}
        self._sources: dict[str, DiscoverySource] = {kind: kinds.get(kind)(self._touch, guard) for kind in kinds.names}
        self._watched: dict[str, Topology] = {}  # kind → the topology that its source last watched without an error

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Pass answers saved before a restart to the sources."""
        for kind, source in self._sources.items():
            with self._recorded(kind):
                source.seed(saved)

    def use_topology(self, topology: Topology) -> None:
        """Watch exactly the pools and names in this topology. Pools that were already watched keep their answers."""
        self._topology = topology
        for kind, source in self._sources.items():
            with self._recorded(kind):
                source.use_topology(topology)
                self._watched[kind] = topology
        self._touch()

    async def first(self, timeout: float) -> Discovered:
        """Wait for all sources' first answers, for at most about `timeout` seconds, and return the replicas."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout + _GRACE):
                await asyncio.gather(*(self._first(kind, timeout) for kind in self._sources))
        self._reported = self.current
        return self._reported

    async def changes(self) -> AsyncIterator[Discovered]:
        """Yield the discovered replicas whenever they differ from the last result of `first` or of this method.

        The generator never ends.
        """
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._settle)
            self._changed.clear()
            if self.current != self._reported:
                self._reported = self.current
                yield self._reported

    @property
    def current(self) -> Discovered:
        """The currently discovered replicas."""
        if self._current is None:
            self._current = self._discovered()
        return self._current

    def names(self) -> tuple[NameState, ...]:
        """Return the state of every resolved name and watched service, sorted by kind."""
        return tuple(state for source in self._sources.values() for state in source.names())

    async def stop(self) -> None:
        """Stop all sources. The last answers remain in use."""
        await asyncio.gather(*(source.stop() for source in self._sources.values()))

    def _touch(self) -> None:
        self._current = None
        self._changed.set()

    async def _first(self, kind: str, timeout: float) -> None:
        with self._recorded(kind):
            await self._sources[kind].first(timeout)

    @contextmanager
    def _recorded(self, kind: str) -> Iterator[None]:
        """Log and count an exception raised by a source, so that the other sources are still called."""
        try:
            yield
        except Exception:  # noqa: BLE001 -- a source that fails stops no other, and removes no replica
            self._guard.record(
                "a replica source failed; its last responses stay in use", "source of replicas", kind=kind
            )

    def _dns_sources(self) -> tuple[DnsSource, ...]:
        """The sources that also resolve the hosts in fixed addresses."""
        return tuple(source for source in self._sources.values() if isinstance(source, DnsSource))

    def _discovered(self) -> Discovered:
        watched = [(pool, pool.discovery) for pool in self._topology.pools if pool.discovery is not None]
        answers = {kind: self._answers(kind) for kind in {discovery.kind for _, discovery in watched}}
        problems: list[Diagnostic] = []
        accepted = {}
        for pool, discovery in watched:
            answer = self._accepted(pool, discovery, answers[discovery.kind].get(pool.name), problems)
            if answer is not None:
                accepted[pool.name] = (discovery, answer)
        self._last_good = accepted
        answered = {name: answer for name, (_, answer) in accepted.items()}
        saved = {key: addresses for source in self._dns_sources() for key, addresses in source.host_answers().items()}
        return Discovered(
            pools={name: answer.replicas for name, answer in answered.items() if answer.replicas is not None},
            hosts={host: addresses for source in self._dns_sources() for host, addresses in source.hosts().items()},
            answers=saved | {answer.key: answer.saved for answer in answered.values() if answer.key},
            keys={name: answer.key for name, answer in answered.items() if answer.key},
            leaving={name: answer.leaving for name, answer in answered.items() if answer.leaving},
            problems=tuple(problems),
        )

    def _answers(self, kind: str) -> Mapping[str, PoolAnswer]:
        """Return a source's answers for the pools that it is watching with their current `discovery` section."""
        source, watched = self._sources.get(kind), self._watched.get(kind, _EMPTY)
        answers: Mapping[str, PoolAnswer] = {}
        with self._recorded(kind):
            answers = source.answers() if source else {}
        sections = {pool.name: pool.discovery for pool in self._topology.pools}
        same = {pool.name for pool in watched.pools if pool.discovery == sections.get(pool.name)}
        return {name: answer for name, answer in answers.items() if name in same}

    def _accepted(
        self, pool: Pool, discovery: Discovery, new: PoolAnswer | None, problems: list[Diagnostic]
    ) -> PoolAnswer | None:
        """Return the new answer if it is plausible, or else the last valid answer for the same `discovery` section."""
        section, last = self._last_good.get(pool.name, (None, None))
        if section != discovery:
            last = None
        if new is None or new.replicas is None:
            return last
        if discovery.compiled or (last is not None and new.replicas is last.replicas):
            return new
        problem = implausible(new.replicas) or at_own_listener(new.replicas, own_listeners(self._binds, self._topology))
        if not problem:
            return new
        effect = "its last response stays in use" if last else "the pool has no replicas yet"
        message = f"the source {discovery.kind} returned an invalid response: {problem}; {effect}"
        problems.append(Diagnostic("LB933", message, None, ("pools", pool.name, "discovery"), ""))
        return last
