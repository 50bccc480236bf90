"""Sends the tables to pickers: each picker gets the complete pools first and then the changes, as lines of `wire`.

The tables are compared with the measurements a few times a second, and immediately after a publication, so that a drain
reaches the pickers at about the same time as the proxies. A picker that does not read is disconnected, and reconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf

from lbctl.control.slow_start import Factors, Ramps
from lbctl.ir.address import Address
from lbctl.pick.table import PoolTable
from lbctl.picker import wire
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.picker import peers, tables
from lbctl.serve.picker.peers import Peer
from lbctl.serve.picker.tables import FleetMeasurements, NewSamples
from lbctl.signals.cached import CachedTokens

_INTERVAL = 0.25
"""The pause between two reads of the measurements, in seconds."""
_COST = 20.0
"""The minimum pause, as a multiple of the time that a read takes."""
_QUEUED = 4_096
"""Maximum number of lines queued for one picker; beyond it, the picker is disconnected."""


class FeedSubscription:
    """The lines queued for one picker. The subscription ends after `end`, or if the queue becomes too long."""

    def __init__(self, first: list[bytes]) -> None:
        self._waiting = deque(first)
        self._ended = False
        self._news = asyncio.Event()
        self._news.set()

    def put(self, text: bytes) -> None:
        """Add a line. If too many lines are queued, the picker is disconnected."""
        if len(self._waiting) >= _QUEUED:
            self.end()
        elif not self._ended:
            self._waiting.append(text)
            self._news.set()

    def end(self) -> None:
        """End the subscription at once."""
        self._waiting.clear()
        self._ended = True
        self._news.set()

    async def next(self) -> bytes | None:
        """Wait for the next lines; None at the end."""
        await self._news.wait()
        lines = b"".join(self._waiting)
        self._waiting.clear()
        if self._ended:
            return None
        self._news.clear()
        return lines


class TableEvents:
    """A subscription's lines as server-sent events, with a comment after every `heartbeat` seconds without one."""

    def __init__(self, subscription: FeedSubscription, heartbeat: float) -> None:
        self.end = subscription.end
        self._subscription = subscription
        self._heartbeat = heartbeat

    async def next(self) -> bytes | None:
        """Wait for the next events; None at the end."""
        try:
            async with asyncio.timeout(self._heartbeat):
                lines = await self._subscription.next()
        except TimeoutError:
            return b": heartbeat\n\n"
        return None if lines is None else b"".join(b"data: " + item + b"\n" for item in lines.splitlines(keepends=True))


class Feed:
    """Keeps the tables up to date. `measure` returns the current measurements."""

    def __init__(self, measure: Callable[[], FleetMeasurements], clock: Callable[[], float] = time.monotonic) -> None:
        self._measure = measure
        self._clock = clock
        self._served: PublishedFleet | None = None
        self._tables: dict[str, PoolTable] | None = None
        self._ramps = Ramps()
        self._samples = NewSamples()
        self._subscriptions: dict[FeedSubscription, Peer | None] = {}
        self._of_members: tuple[Peer, ...] = ()
        """The pickers of the control plane's other members."""
        self._key = ""
        self._trusted: set[FeedSubscription] = set()
        """The subscriptions that also get data reserved for pickers."""
        self._news = asyncio.Event()
        self._alone: dict[str, float] = {}
        """Maps the address of each `lbctl picker` on this machine to the time at which it last subscribed."""

    def use_fleet(self, served: PublishedFleet) -> None:
        """Send the tables of this fleet from now on, and the key for picker requests."""
        self._served = served
        key = served.composed.snapshot.picker_key
        if key != self._key:
            self._key = key
            self._put_trusted(self._key_line())
        self._news.set()

    @property
    def tables(self) -> Mapping[str, PoolTable]:
        """Maps each pool to its newest table."""
        return self._tables or {}

    def ramps(self) -> Factors:
        """Map each pool and replica to the slow-start factor that the picker currently applies, if it is below 1."""
        now = self._clock()
        by_pool = {name: table.ramps(now) for name, table in self.tables.items()}
        return {name: factors for name, factors in by_pool.items() if factors}

    def cache_hits(self) -> Mapping[str, Mapping[str, float]]:
        """Map each pool and replica to the share of prompt tokens found in its cache, if its engine reports it."""
        return tables.cache_hits(self._served, self._measure()) if self._served is not None else {}

    def cached_tokens(self) -> Mapping[tuple[str, str], CachedTokens | None]:
        """Map each (pool, replica) pair to the tokens that its engine has found in its caches; None if unknown."""
        return tables.cached_tokens(self._served, self._measure()) if self._served is not None else {}

    @property
    def subscribers(self) -> int:
        """The number of pickers that get the tables."""
        return len(self._subscriptions)

    def announcement(self) -> tuple[str, ...]:
        """Return the subscribed pickers that others can reach, as texts for the other members of the control plane."""
        return peers.written(self._peers())

    def use_announcements(self, announcements: Iterable[str]) -> None:
        """Let the pickers also exchange counts and memories with the announced pickers of other members."""
        before, self._of_members = self._of_members, tuple(peers.read(announcements))
        if self._of_members != before:
            self._put_peers()

    @contextmanager
    def subscribe(self, peer: Peer | None = None, *, trusted: bool = False) -> Iterator[FeedSubscription]:
        """Yield a subscription that begins with complete tables.

        `peer`: the picker; None: it does not exchange counts. `trusted`: it also gets the key for picker requests, and
        the other pickers' IDs, which pickers use to recognise each other.
        """
        subscription = FeedSubscription(self._first_lines(trusted=trusted))
        self._subscriptions[subscription] = peer
        if trusted:
            self._trusted.add(subscription)
        self._put_peers()
        try:
            yield subscription
        finally:
            del self._subscriptions[subscription]
            self._trusted.discard(subscription)
            self._put_peers()

    def note_alone(self, picker: Peer) -> None:
        """Record that an `lbctl picker` with the token subscribes."""
        if picker.interface == peers.own_interface():
            self._alone[picker.address] = self._clock()

    def alone_at(self, bind: Address) -> float:
        """Return the time at which an `lbctl picker` on this machine that listens at `bind` last subscribed.

        Return -inf if there has been no such subscription.
        """
        return self._alone.get(str(bind.from_here), -inf)

    def close(self) -> None:
        """End every subscription."""
        for subscription in self._subscriptions:
            subscription.end()

    async def run(self) -> None:
        """Keep the tables up to date until the task is cancelled."""
        while True:
            started = time.perf_counter()
            self.update()
            pause = max(_INTERVAL, _COST * (time.perf_counter() - started))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
            self._news.clear()

    def update(self) -> None:
        """Rebuild the tables from the current fleet and measurements, and send the changes."""
        served = self._served
        if served is None:
            return
        measured = self._measure()
        pools = tables.picked_pools(served)
        failing = {pool.name: tables.failing(pool, measured) for pool in pools}
        self._ramps = self._ramps.track(pools, served.composed.snapshot, failing, measured.now)
        since = self._ramps.since
        for line in self._changes({pool.name: tables.table(served, pool, measured, since) for pool in pools}):
            self._put(line)
        samples = wire.samples(self._samples.of(pools, measured))
        of_proxies = wire.proxy_samples(self._samples.of_proxies(pools, measured))
        for news in (samples, of_proxies):
            if news is not None:
                self._put(news)

    def _put_peers(self) -> None:
        everyone = *self._peers(), *self._of_members
        for subscription in self._trusted:
            own = self._subscriptions.get(subscription)
            subscription.put(wire.line("peers", peers=peers.others(everyone, own)))

    def _peers(self) -> Iterator[Peer]:
        return (peer for peer in self._subscriptions.values() if peer is not None)

    def _put_trusted(self, line: bytes) -> None:
        for subscription in self._trusted:
            subscription.put(line)

    def _key_line(self) -> bytes:
        return wire.line("key", key=self._key)

    def _put(self, line: bytes) -> None:
        for subscription in self._subscriptions:
            subscription.put(line)

    def _changes(self, after: dict[str, PoolTable]) -> list[bytes]:
        first, before, self._tables = self._tables is None, self._tables or {}, after
        now = self._clock()
        lines = [wire.line("gone", pool=name) for name in sorted(before.keys() - after.keys())]
        for name, table in after.items():
            line = wire.changes(before[name], table, now) if name in before else wire.whole(table, now)
            if line is not None:
                lines.append(line)
        return [*lines, wire.line("ready")] if first else lines

    def _first_lines(self, *, trusted: bool) -> list[bytes]:
        now = self._clock()
        begin = wire.line("begin", format=wire.FORMAT)
        ready = [wire.line("ready")] if self._tables is not None else []
        key = [self._key_line()] if trusted else []
        return [begin, *key, *(wire.whole(table, now) for table in self.tables.values()), *ready]
