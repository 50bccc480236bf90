"""Looks at the metrics of every replica, each at its own time, and reports what they say.

A page is fetched once in an interval, however many replicas it tells of; the first look of each comes at a random
moment of its interval, so that they spread. Each page has a task of its own: one that is slow delays nobody else, and
one that takes longer than its interval misses looks rather than piling them up. Nothing that a replica answers ends a
task; an error of lbctl's own ends one look, and the guard starts that page's task again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import aiohttp

from lbctl.base.urls import without_values
from lbctl.serve.guard import Guard
from lbctl.serve.net.http_client import session
from lbctl.serve.telemetry.fetch import Fetched, fetch
from lbctl.serve.telemetry.replica_sources import ReplicaSources
from lbctl.serve.telemetry.reports import Report, SourceState
from lbctl.signals.exposition import MetricsPage, MetricsReader
from lbctl.signals.plan import ScrapePlan
from lbctl.signals.source import MetricsTable

_Key = tuple[str, str]


@dataclass(slots=True)
class _Place:
    """A source of a replica that reads this page; `reader`: None for an answer to a query."""

    track: ReplicaSources
    place: int
    reader: MetricsReader | None


@dataclass(slots=True)
class _Target:
    """A page, or an answer to a query, and who reads it."""

    url: str
    query: str
    interval: float
    timeout: float
    places: list[_Place] = field(default_factory=list)


class Scraper:
    """`report`: called in the loop after each look, once for each replica that it tells of."""

    def __init__(self, report: Callable[[Report], None], guard: Guard | None = None) -> None:
        self._report = report
        self._guard = guard or Guard()
        self._tracks: dict[tuple[str, str], ReplicaSources] = {}
        self._targets: dict[_Key, _Target] = {}
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Until it is cancelled. Whatever is to be watched may be told before or meanwhile."""
        async with session() as self._session:
            try:
                self._start()
                await asyncio.Event().wait()
            finally:
                tasks = list(self._tasks.values())
                self._stop(set())
                await asyncio.gather(*tasks, return_exceptions=True)
                self._session = None

    def watch(self, replicas: Iterable[ScrapePlan]) -> None:
        """From now on these and no others. What stays the same keeps what is known of it, and its time."""
        tracks = {}
        for item in replicas:
            key = (item.pool, item.replica)
            earlier = self._tracks.get(key)
            if earlier is None or earlier.watched != item:
                track = ReplicaSources(item)
                if earlier is not None:
                    track.follow(earlier)
                tracks[key] = track
            else:
                tracks[key] = earlier
        self._tracks = tracks
        self._retarget(_targets(tracks.values()))

    def states(self, pool: str, replica: str) -> tuple[SourceState, ...]:
        """How the last look at each source of a replica went; () for one that is not watched."""
        track = self._tracks.get((pool, replica))
        return tuple(track.states) if track else ()

    def _retarget(self, targets: dict[_Key, _Target]) -> None:
        """A page whose times stay goes on in its own rhythm, for whoever reads it now."""
        same = set()
        for key, target in targets.items():
            known = self._targets.get(key)
            if known and (known.interval, known.timeout) == (target.interval, target.timeout):
                known.places = target.places
                targets[key] = known
                same.add(key)
        self._stop(same)
        self._targets = targets
        if self._session is not None:
            self._start()

    def _start(self) -> None:
        for key, target in self._targets.items():
            if key not in self._tasks:
                work = partial(self._look_again_and_again, target)
                self._tasks[key] = self._guard.start("scrape", work, url=without_values(target.url))

    def _stop(self, keep: set[_Key]) -> None:
        for key in self._tasks.keys() - keep:
            self._tasks.pop(key).cancel()

    async def _look_again_and_again(self, target: _Target) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + random.uniform(0, target.interval)
        while True:
            await asyncio.sleep(due - loop.time())
            await self._look(target)
            missed = max(0, int((loop.time() - due) // target.interval))
            due += (missed + 1) * target.interval

    async def _look(self, target: _Target) -> None:
        assert self._session is not None
        loop = asyncio.get_running_loop()
        started = loop.time()
        fetched = await fetch(self._session, target.url, target.timeout, target.query)
        now = loop.time()
        pages: dict[int, MetricsPage] = {}
        for item in target.places:
            self._report(_told(item, fetched, pages, started, now))


def _told(item: _Place, fetched: Fetched, pages: dict[int, MetricsPage], started: float, now: float) -> Report:
    """`pages`: what readers have read of this page already."""
    if fetched.reason:
        return item.track.failed(item.place, fetched, started, now)
    if item.reader is None:
        return item.track.answer(item.place, fetched, started, now)
    page = pages.get(id(item.reader))
    if page is None:
        page = pages[id(item.reader)] = item.reader.read(fetched.body)
    return item.track.page(item.place, fetched, page, started, now)


def _targets(tracks: Iterable[ReplicaSources]) -> dict[_Key, _Target]:
    """Each page once. Where several pools read it, the shortest times hold."""
    found: dict[_Key, _Target] = {}
    readers: dict[frozenset[str], MetricsReader] = {}
    for track in tracks:
        item = track.watched
        for place, source in enumerate(item.sources):
            key = (source.url, source.query)
            target = found.setdefault(key, _Target(source.url, source.query, item.interval, item.timeout))
            target.interval = min(target.interval, item.interval)
            target.timeout = min(target.timeout, item.timeout)
            target.places.append(_Place(track, place, _reader(source.table, readers)))
    return found


def _reader(table: MetricsTable | None, readers: dict[frozenset[str], MetricsReader]) -> MetricsReader | None:
    if table is None:
        return None
    names = table.names()
    if names not in readers:
        readers[names] = MetricsReader(names)
    return readers[names]
