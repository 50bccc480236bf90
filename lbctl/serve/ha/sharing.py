"""Assigns pools to the members that scrape them, and passes their samples to the leader.

The leader writes the list of members that share the pools. Each member then determines the owner of each pool by
rendezvous hashing, so that when a member joins or leaves, only its own pools move. An owner's heartbeat acts as its
lease: it stops scraping before other members may assume that it has left. An owner's samples are part of its heartbeat,
and the leader uses them like its own samples. Simultaneous samples from two owners are harmless, because both describe
the same replica.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

from lbctl.base.foreign_json import parse
from lbctl.runtime import log
from lbctl.serve.ha.fields import MAX_MEMBERS, is_name
from lbctl.serve.ha.outbox import ReportOutbox
from lbctl.serve.ha.presence import MAX_SAMPLES, MemberInfo
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.reports import ScrapeReport
from lbctl.serve.telemetry.samples import MemberSamples, write_samples
from lbctl.serve.telemetry.scraping import FleetScraper
from lbctl.store.interface import StoreError
from lbctl.store.records import UNREADABLE
from lbctl.store.saved import SavedState

SHARING = "sharing"
"""Key of the list of members that share the pools."""
_MAX_CHARACTERS = MAX_SAMPLES
"""Maximum total number of characters in all members' samples."""
_SPARE = 0.8
"""Fill level below which fewer parts are used, so that the number of parts does not oscillate."""
_MAX_DELAY = 5.0
"""Maximum time in seconds to transfer a sample; the leader itself scrapes pools with a shorter `stale_after`."""
_MARGIN = 0.8
"""Fraction of the lease after which an owner stops scraping if it cannot renew the lease."""


class PoolSharing:
    """This member's pools, and the other members' samples.

    `ttl`: seconds without an announcement after which a member loses its pools.
    """

    def __init__(
        self,
        name: str,
        scraping: FleetScraper,
        loop: ControlLoop,
        state: SavedState,
        ttl: float,
        clock: Callable[[], float],
        on_change: Callable[[tuple[str, ...], tuple[str, ...]], None],
    ) -> None:
        """Collect reports from `scraping` for the leader.

        On the leader, `loop` makes decisions based on all members' reports. `clock` returns seconds, and continues to
        advance while the process is suspended. `on_change` is called with the members that share the pools and with
        this member's pools.
        """
        self.members: tuple[str, ...] = ()
        """Members that share the pools; empty until a leader has written the list."""
        self._leader = ""
        """The leader that wrote `members`."""
        self.taken = 0
        """Number of samples from other members that have been used for this member's decisions."""
        self._name = name
        self._scraping = scraping
        self._loop = loop
        self._state = state
        self._ttl = ttl
        self._clock = clock
        self._on_change = on_change
        self._owners: dict[str, str] = {}
        self._until = -math.inf
        """Time at which the lease on this member's pools expires."""
        self._samples_read_at = -math.inf
        """Time at which all members' announcements were last read."""
        self._heard: dict[str, tuple[float, float]] = {}
        """Maps each member to the time of its last announcement on its own clock, and the time at which that
        announcement was first read."""
        self._others: dict[str, MemberSamples] = {}
        self._texts: dict[str, str] = {}
        self._damaged: set[str] = set()
        self._part = 0
        """The part of this member's samples that is announced next."""
        self.parts = 1
        """Number of announcements that this member needs for all its samples; more than one if they are too large."""
        self._outbox = ReportOutbox()
        self._sending: Mapping[tuple[str, str], ScrapeReport] = {}
        """This member's reports in the heartbeat that is currently being written."""
        self._written = False
        """Whether this member has written the list of members that share the pools since becoming the leader."""
        scraping.share(self.owns)
        scraping.report_to(self._outbox.put)

    def owner(self, pool: str) -> str:
        """Return the member that scrapes this pool; empty if unknown."""
        if self._scraping.patience(pool) < _MAX_DELAY:
            return self._leader
        if pool not in self._owners:
            self._owners[pool] = owner_of(pool, self.members)
        return self._owners[pool]

    def owns(self, pool: str) -> bool:
        """Return whether this member currently scrapes the pool."""
        return self.owner(pool) == self._name and (self._clock() < self._until or self.members == (self._name,))

    def adopt(self, value: str) -> None:
        """Adopt the list of members that share the pools. Raises one of `UNREADABLE`."""
        leader, names = parse(value)
        if not isinstance(names, list) or len(names) > MAX_MEMBERS or not all(map(is_name, (leader, *names))):
            raise ValueError(f"not a leader and its members: {value[:80]!r}")
        self._share(leader, tuple(names))

    def own(self) -> tuple[str, ...]:
        """Return the pools that this member currently scrapes."""
        return tuple(name for name in self._scraping.pools if self.owns(name))

    def pools_of(self, member: str) -> tuple[str, ...]:
        """Return the pools owned by this member."""
        return tuple(name for name in self._scraping.pools if self.owner(name) == member)

    async def samples(self) -> str:
        """Return this member's samples for the member that makes decisions; empty if there are none.

        If the samples are too large in total, the next part is returned, and each replica's sample is then sent only
        every second or third time.
        """
        room = _MAX_CHARACTERS // max(1, len(self.members) - 1)
        owned = frozenset(self.own())
        self._outbox.keep({key for key in self._scraping.plans if key[0] in owned})
        while measured := self._outbox.part(self._part, self.parts):
            text = await asyncio.to_thread(write_samples, measured, time.monotonic())
            if len(text) <= room or len(measured) == 1:
                self._sending = measured
                self._part = (self._part + 1) % self.parts
                if self.parts > 1 and len(text) * self.parts < _SPARE * room * (self.parts - 1):
                    self._divide(self.parts - 1)
                return text
            needed = math.ceil(self.parts * len(text) / room)
            self._divide(max(self.parts + 1, min(needed, self.parts * len(measured))))
        self._sending = {}
        self._divide(1)
        return ""

    def _divide(self, parts: int) -> None:
        if parts > self.parts:
            log.warn("this member's samples are too large for one heartbeat", parts=parts)
        self._part, self.parts = 0, parts

    def renewed(self, asked_at: float) -> None:
        """Record that a request sent at that time has renewed the announcement."""
        self._outbox.announced(self._sending)
        had_ended = self._clock() >= self._until
        self._until = asked_at + _MARGIN * self._ttl
        if had_ended:
            self._scraping.share(self.owns)

    def check(self) -> None:
        """Stop scraping if the lease on this member's pools has expired."""
        if self._clock() >= self._until and self.members not in ((), (self._name,)):
            self._scraping.share(self.owns)

    async def take_over(self, announced: Iterable[MemberInfo]) -> None:
        """Decide based on this member's own reports and start sharing the pools, even if the store has been emptied."""
        self._scraping.report_to(self._loop.report)
        self._outbox.keep(())
        self._written = False
        await self.lead(announced)

    def collect(self) -> None:
        """Collect this member's reports for another member, which makes the decisions."""
        self._scraping.report_to(self._outbox.put)

    async def lead(self, announced: Iterable[MemberInfo] | None) -> None:
        """Share the pools among the members that are present, and use their samples.

        `announced`: their heartbeats; None if the store does not respond.
        """
        if announced is None:
            if self._clock() - self._samples_read_at > self._ttl:
                self.alone()
            return
        live = self._live(announced)
        names = tuple(sorted({self._name, *live}))
        if names != self.members or not self._written:
            await self._change(names)
        for name in self.members:
            if name != self._name and (info := live.get(name)) is not None:
                await self._take(info)

    def _live(self, announced: Iterable[MemberInfo]) -> dict[str, MemberInfo]:
        """Return the members that can own pools, by name."""
        now = self._samples_read_at = self._clock()
        by_name = {item.name: item for item in announced}
        self._heard = {
            name: heard if (heard := self._heard.get(name)) and heard[0] == item.at else (item.at, now)
            for name, item in by_name.items()
        }
        return {
            name: item
            for name, item in by_name.items()
            if item.shares and item.role != "isolated" and now - self._heard[name][1] <= self._ttl
        }

    def alone(self) -> None:
        """Scrape all pools, because no other members are reachable."""
        if self.members != (self._name,):
            log.warn("this member is scraping all pools: no other member is reachable")
            self._share(self._name, (self._name,))

    async def _change(self, names: tuple[str, ...]) -> None:
        try:
            await self._state.save_raw(SHARING, json.dumps([self._name, names]))
        except StoreError:
            return  # retried with the next announcements
        self._written = True
        if names != self.members:
            log.event("the members divide the scraping of pools among themselves", members=",".join(names))
        self._share(self._name, names)

    def _share(self, leader: str, names: tuple[str, ...]) -> None:
        if (leader, names) == (self._leader, self.members):
            return
        self._leader, self.members = leader, names
        self._owners = {}
        self._others = {name: item for name, item in self._others.items() if name in names}
        self._texts = {name: text for name, text in self._texts.items() if name in names}
        self._scraping.share(self.owns)
        self._on_change(names, self.pools_of(self._name))

    async def _take(self, info: MemberInfo) -> None:
        """Make decisions based on a member's samples, if it has new ones."""
        if not info.samples or self._texts.get(info.name) == info.samples:
            return
        self._texts[info.name] = info.samples
        other = self._others.setdefault(info.name, MemberSamples(info.name))
        received, plans = time.monotonic(), self._scraping.plans
        try:
            reports = await asyncio.to_thread(other.read, info.samples, received, plans)
        except UNREADABLE as error:
            if info.name not in self._damaged:
                log.error("a member's samples cannot be read", member=info.name, reason=repr(error))
            self._damaged.add(info.name)
            return
        self._damaged.discard(info.name)
        reports = [item for item in reports if self.owner(item.pool) == info.name]
        self.taken += len(reports)
        for report in reports:
            self._loop.report(report)


def owner_of(pool: str, members: Iterable[str]) -> str:
    """Return the member that owns a pool, using rendezvous hashing; empty if there are no members."""
    return max(members, key=lambda member: blake2b(f"{member}\0{pool}".encode(), digest_size=8).digest(), default="")
