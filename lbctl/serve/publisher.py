"""What is served: the fleet of the files, with the replicas that discovery knows, without those that are drained out.

One thing at a time is made here, off the event loop; whoever calls holds the turn. What would be refused by a proxy is
never sent: then everything stays as it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from lbctl.base.diagnostics import Diagnostic
from lbctl.control import overrides as by_hand
from lbctl.control.overrides import Overrides
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.serve import drains, log, report
from lbctl.serve.answers import judged, unresolved
from lbctl.serve.discover import Discover, Discovered
from lbctl.serve.live import Live, Reasons
from lbctl.serve.losses import losses
from lbctl.serve.metrics import Metrics
from lbctl.targets import target
from lbctl.targets.load import Loaded
from lbctl.xds.cache import Builder, Edition, UnsoundError

Origin = Literal["files", "state"]
_FIRST_ANSWER = 5.0
"""Seconds that a new fleet waits for the names in it."""
_EMPTY_START = 20.0
"""Seconds that the first fleet waits for a pool whose name has no answer: proxies may still have its replicas."""
_KIND = "envoy"
_FEW = 5
"""Changed resources that the log names."""


@dataclass(frozen=True, slots=True)
class Served:
    """`whole`: the fleet with the replicas that are `out` still in it; `edition` is without them. `losses`: what the
    proxies cannot say of it. `at`: since when this version is served, in seconds since the epoch. `sick`: who deep
    health has taken out, and why."""

    loaded: Loaded
    origin: Origin
    edition: Edition
    whole: Snapshot
    since: Mapping[tuple[str, str], float]
    out: Mapping[str, frozenset[str]]
    losses: tuple[Diagnostic, ...]
    at: float
    sick: Mapping[str, Reasons]


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of it. `changed`: resources by type, as far as the proxies of the fleet see them; `names`: theirs,
    with the type, where they are few."""

    new: bool
    changed: Mapping[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()


class Publisher:
    """`accepted`: discovery's answers as they count; `held`: why some do not. `drained`: since when which replica of
    which pool is, as the state has kept it. `live`, `overrides`: what the control loop and what operators have decided,
    taken with the next edition. `followers` are told of each, after the Envoys; `beside`: the
    proxies that they drive."""

    def __init__(
        self, metrics: Metrics, drained: Mapping[tuple[str, str], float], now: Callable[[], float] = time.time
    ) -> None:
        self.discover = Discover()
        self.accepted = Discovered()
        self.held: tuple[Diagnostic, ...] = ()
        self.live = Live()
        self.overrides: Overrides = ()
        self.beside: Callable[[Topology], tuple[Proxy, ...]] = lambda _: ()
        self.followers: list[Callable[[Served], None]] = []
        self.served: Served | None = None
        self.earlier: Edition | None = None
        self.send: Callable[[Edition], None] | None = None
        self._builder = Builder()
        self._metrics = metrics
        self.drained = drained
        self._now = now

    def open(self, send: Callable[[Edition], None]) -> None:
        """From now on this gives editions to the proxies, what is served at once."""
        self.send = send
        if self.served is not None:
            send(self.served.edition)

    def expect(self, topology: Topology) -> None:
        """This is what ran before: what is known of its names is what new answers are judged against."""
        self.discover.follow(topology)
        self.accepted = self.discover.current

    async def recall(self, loaded: Loaded) -> None:
        """The process before this one served this fleet."""
        topology = self.accepted.apply(loaded.compiled.topology)
        snapshot = Snapshot(topology, secrets=loaded.secrets, addresses=self.accepted.hosts)
        with suppress(UnsoundError):
            self.earlier = await asyncio.to_thread(self._builder.build, loaded, snapshot, envoys(topology))

    async def serve(self, loaded: Loaded, origin: Origin, *, allow_shrink: bool = False) -> Sent:
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

    async def refresh(self) -> Sent:
        """The same fleet with what discovery and the clock say now."""
        served = self.served
        return await self._make(served.loaded, served.origin, False) if served else Sent(new=False)

    def next_due(self) -> float | None:
        """When `refresh` is worth calling though nothing has happened, in seconds since the epoch."""
        if self.served is None:
            return None
        return drains.next_due(self.served.since, self.served.whole.topology, self._now())

    async def _answers(self, topology: Topology) -> None:
        deadline = asyncio.get_running_loop().time() + _EMPTY_START
        found = await self.discover.first(_FIRST_ANSWER)
        while missing := unresolved(topology, found):
            if self.served is not None or asyncio.get_running_loop().time() > deadline:
                log.warn("pools whose name has no answer: they answer 503 until it has", pools=",".join(missing))
                return
            await asyncio.sleep(0.1)
            found = self.discover.current

    async def _make(self, loaded: Loaded, origin: Origin, allow_shrink: bool) -> Sent:
        topology = loaded.compiled.topology
        found = self.discover.current
        most = 100.0 if allow_shrink else topology.control.max_shrink
        accepted, held = judged(topology, self.accepted, found, most)
        begun = time.perf_counter()
        served, sent = await asyncio.to_thread(self._built, loaded, origin, accepted)
        self._metrics.published(served.edition.version, time.perf_counter() - begun, report.counts(served.whole))
        if self.send is not None:
            self.send(served.edition)
        held = tuple(map(loaded.compiled.sources.placed, held))
        log.findings(item for item in held if item not in self.held)
        self.accepted, self.held, self.served = accepted, held, served
        for follow in self.followers:
            follow(served)
        return sent

    def _built(self, loaded: Loaded, origin: Origin, accepted: Discovered) -> tuple[Served, Sent]:
        now = self._now()
        whole = accepted.apply(loaded.compiled.topology)
        before = self.served.since if self.served else self.drained
        held = by_hand.within(self.overrides, whole)
        drained = by_hand.drained(held)
        since = drains.follow(before, whole, drained, now)
        out = drains.gone(since, whole, now)
        live = self.live.within(whole)
        weights = by_hand.weighted(held, live.weights)
        all_of_it = Snapshot(whole, weights, drained, secrets=loaded.secrets, addresses=accepted.hosts, out=live.gone)
        snapshot = replace(all_of_it, topology=drains.without(whole, out)) if out else all_of_it
        proxies = envoys(whole)
        edition = self._builder.build(loaded, snapshot, proxies)
        old = self.served
        new = old is None or old.edition.version != edition.version
        at = now if old is None or new else old.at
        moved = _moved(old.edition if old else None, edition, proxies) if new else set()
        lost = old.losses if old and old.loaded is loaded else losses(loaded, snapshot, (*proxies, *self.beside(whole)))
        return Served(loaded, origin, edition, all_of_it, since, out, lost, at, live.out), _sent(new, moved)


def envoys(topology: Topology) -> tuple[Proxy, ...]:
    """The Envoys that the fleet names, or one that it does not name, where such a one is served."""
    named = tuple(item for item in topology.proxies if item.kind == _KIND)
    if topology.proxies and topology.control.unmatched_nodes == "nothing":
        return named
    return named or (Proxy(_KIND, _KIND, target(_KIND).versions[0]),)


def _moved(before: Edition | None, after: Edition, proxies: Iterable[Proxy]) -> set[tuple[str, str]]:
    """(short type, name)"""
    moved = set()
    for proxy in proxies:
        old = before.resources(proxy) if before else None
        moved |= report.moved(old, after.resources(proxy))
    return moved


def _sent(new: bool, moved: set[tuple[str, str]]) -> Sent:
    counts = {short: count for short in report.SHORTS if (count := sum(kind == short for kind, _ in moved))}
    few = sorted(moved) if len(moved) <= _FEW else []
    return Sent(new, counts, tuple(f"{kind}/{name}" for kind, name in few))
