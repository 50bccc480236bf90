"""What is served: the fleet of the files, with the replicas that discovery knows, as `control.compose` composes it.

One thing at a time is made here, off the event loop; whoever calls holds the turn. What would be refused by a proxy is
never sent: then everything stays as it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from lbctl.base.diagnostics import Diagnostic
from lbctl.control.compose import Composed, compose, weight_changes
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Overrides
from lbctl.ir.proxies import Proxy, xds_proxies
from lbctl.ir.snapshot import Snapshot, replica_counts
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight
from lbctl.serve import log
from lbctl.serve.discovery.guard import judged, unresolved
from lbctl.serve.discovery.interface import Discovered
from lbctl.serve.discovery.service import Discovery
from lbctl.serve.fleet.unsupported import losses
from lbctl.serve.guard import Guard
from lbctl.serve.metrics.instruments import Metrics
from lbctl.targets import xds_kinds
from lbctl.targets.load import Loaded
from lbctl.xds.build.snapshot_cache import Builder, CachedSnapshot, UnsoundError
from lbctl.xds.resource import SHORT, changed_names

Origin = Literal["files", "state"]
_FIRST_ANSWER = 5.0
"""Seconds that a new fleet waits for the names in it."""
_EMPTY_START = 20.0
"""Seconds that the first fleet waits for a pool whose name has no answer: proxies may still have its replicas."""
_FEW = 5
"""Changed resources that the log names."""


@dataclass(frozen=True, slots=True)
class PublishedFleet:
    """A fleet as all proxies get it."""

    loaded: Loaded
    origin: Origin
    edition: CachedSnapshot
    """Built of `composed.snapshot`."""
    composed: Composed
    losses: tuple[Diagnostic, ...]
    """What the proxies cannot express of it."""
    at: float
    """Since when this version is served, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What a publication has changed."""

    new: bool
    changed: Mapping[str, int] = field(default_factory=dict)
    """Resources by type, as far as the proxies of the fleet see them."""
    names: tuple[str, ...] = ()
    """Their names, with the type, where they are few."""
    weights: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Pool → replica → its new weight, of replicas that had another one."""


class Publisher:
    """`accepted`: discovery's answers as they count; `held`: why some do not. `drained`: since when which replica of
    which pool is, as the state has kept it. `live`, `overrides`: what the control loop and what operators have decided,
    taken with the next edition. `driven` names the proxies of a fleet that drivers move, besides the Envoys."""

    def __init__(
        self,
        metrics: Metrics,
        drained: Mapping[tuple[str, str], float],
        driven: Callable[[Topology], tuple[Proxy, ...]] = lambda _: (),
        guard: Guard | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.accepted = Discovered()
        self.held: tuple[Diagnostic, ...] = ()
        self.live = LoopOutput()
        self.overrides: Overrides = ()
        self.driven = driven
        self._subscribers: list[tuple[str, Callable[[PublishedFleet], None]]] = []
        self._guard = guard or Guard()
        self.discover = Discovery(self._guard)
        self.served: PublishedFleet | None = None
        self.earlier: CachedSnapshot | None = None
        self.send: Callable[[CachedSnapshot], None] | None = None
        self._builder = Builder()
        self._metrics = metrics
        self.drained = drained
        self._now = now

    def open(self, send: Callable[[CachedSnapshot], None]) -> None:
        """From now on this gives editions to the proxies, what is served at once."""
        self.send = send
        if self.served is not None:
            send(self.served.edition)

    def subscribe(self, name: str, subscriber: Callable[[PublishedFleet], None]) -> None:
        """Call `subscriber` with each fleet that is published, after the Envoys have it. One that raises is logged
        with its `name`, and the others are called all the same."""
        self._subscribers.append((name, subscriber))

    def decide(self, live: LoopOutput) -> None:
        """Take what the control loop has decided, with the next edition."""
        self.live = live

    def hold(self, wanted: Overrides) -> None:
        """Take what operators hold, with the next edition."""
        self.overrides = wanted

    def expect(self, topology: Topology) -> None:
        """This is what ran before: what is known of its names is what new answers are judged against."""
        self.discover.follow(topology)
        self.accepted = self.discover.current

    async def recall(self, loaded: Loaded) -> None:
        """The process before this one served this fleet."""
        topology = self.accepted.apply(loaded.compiled.topology)
        snapshot = Snapshot(topology, secrets=loaded.secrets, addresses=self.accepted.hosts)
        with suppress(UnsoundError):
            self.earlier = await asyncio.to_thread(
                self._builder.build, loaded, snapshot, xds_proxies(topology, xds_kinds()).all
            )

    async def serve(self, loaded: Loaded, origin: Origin, *, allow_shrink: bool = False) -> PublishResult:
        """This fleet from now on. UnsoundError: the one before still is."""
        topology = loaded.compiled.topology
        self.discover.follow(topology)
        try:
            await self._answers(topology)
            return await self._make(loaded, origin, allow_shrink)
        except BaseException:
            if self.served is not None:
                self.discover.follow(self.served.loaded.compiled.topology)
            raise

    async def refresh(self) -> PublishResult:
        """The same fleet with what discovery and the clock say now."""
        served = self.served
        return await self._make(served.loaded, served.origin, False) if served else PublishResult(new=False)

    def next_due(self) -> float | None:
        """When `refresh` is worth calling though nothing has happened, in seconds since the epoch."""
        if self.served is None:
            return None
        return self.served.composed.next_deadline(self._now())

    async def _answers(self, topology: Topology) -> None:
        deadline = asyncio.get_running_loop().time() + _EMPTY_START
        found = await self.discover.first(_FIRST_ANSWER)
        while missing := unresolved(topology, found):
            if self.served is not None or asyncio.get_running_loop().time() > deadline:
                log.warn("pools whose name has no answer: they answer 503 until it has", pools=",".join(missing))
                return
            await asyncio.sleep(0.1)
            found = self.discover.current

    async def _make(self, loaded: Loaded, origin: Origin, allow_shrink: bool) -> PublishResult:
        topology = loaded.compiled.topology
        found = self.discover.current
        most = 100.0 if allow_shrink else topology.control.max_shrink
        accepted, held = judged(topology, self.accepted, found, most)
        begun = time.perf_counter()
        served, sent = await asyncio.to_thread(self._built, loaded, origin, accepted)
        self._metrics.published(
            served.edition.version, time.perf_counter() - begun, replica_counts(served.composed.whole)
        )
        if self.send is not None:
            self.send(served.edition)
        held = tuple(map(loaded.compiled.sources.with_position, held))
        log.findings(item for item in held if item not in self.held)
        self.accepted, self.held, self.served = accepted, held, served
        for name, subscriber in self._subscribers:
            self._guard.call(name, partial(subscriber, served))
        return sent

    def _built(self, loaded: Loaded, origin: Origin, accepted: Discovered) -> tuple[PublishedFleet, PublishResult]:
        now, old = self._now(), self.served
        whole = accepted.apply(loaded.compiled.topology)
        fleet = Snapshot(whole, secrets=loaded.secrets, addresses=accepted.hosts)
        drained = old.composed.drains if old else self.drained
        composed = compose(fleet, self.live, self.overrides, drained, now)
        snapshot, proxies = composed.snapshot, xds_proxies(whole, xds_kinds()).all
        edition = self._builder.build(loaded, snapshot, proxies)
        new = old is None or old.edition.version != edition.version
        at = now if old is None or new else old.at
        moved = _moved(old.edition if old else None, edition, proxies) if new else set()
        lost = old.losses if old and old.loaded is loaded else losses(loaded, snapshot, (*proxies, *self.driven(whole)))
        weights = weight_changes(old.composed, composed) if old else {}
        return PublishedFleet(loaded, origin, edition, composed, lost, at), _result(new, moved, weights)


def _moved(before: CachedSnapshot | None, after: CachedSnapshot, proxies: Iterable[Proxy]) -> set[tuple[str, str]]:
    """(short type, name)"""
    moved = set()
    for proxy in proxies:
        old = before.resources(proxy) if before else None
        moved |= changed_names(old, after.resources(proxy))
    return moved


def _result(new: bool, moved: set[tuple[str, str]], weights: Mapping[str, Mapping[str, Weight]]) -> PublishResult:
    counts = {short: count for short in SHORT.values() if (count := sum(kind == short for kind, _ in moved))}
    few = sorted(moved) if len(moved) <= _FEW else []
    return PublishResult(new, counts, tuple(f"{kind}/{name}" for kind, name in few), weights)
