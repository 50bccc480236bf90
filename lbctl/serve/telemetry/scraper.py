"""Scrapes every replica's metrics and reports the signals that they contain.

A page is fetched once per interval, even if it contains metrics for several replicas. Each page is first scraped at a
random time in its interval, so that scrapes are spread over time. The pages of a pool that uses the picker are fetched
together, because the picker would otherwise prefer the replica that was scraped most recently. If an engine in such a
pool is not making progress, its page is refetched after half the interval, so that the picker soon detects whether the
engine has stopped.

Each page has its own task: a slow page does not delay other pages, and it skips scrapes if it takes longer than its
interval. Between two large pages, the event loop does other work, so that the API waits for at most one page. At most
`_MAX_LARGE` pages larger than 1 MiB are in memory at the same time. No response from a replica can end a task. If lbctl
itself has an error, the guard restarts that page's task.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

import aiohttp

from lbctl.base.urls import without_values
from lbctl.runtime.guard import Guard
from lbctl.runtime.net.fetch import Fetched, fetch
from lbctl.runtime.net.http_client import session
from lbctl.serve.telemetry.replica_sources import ReplicaSources
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.signals.exposition import MetricsPage, MetricsReader
from lbctl.signals.plan import ScrapePlan
from lbctl.signals.source import MetricsTable

_Key = tuple[str, str, tuple[str, str] | None]
"""A page's URL, query and API key."""
_LARGE = 64 * 1024
"""Size in bytes from which pages are parsed one at a time."""
_MAX_LARGE = 8
"""Maximum number of pages larger than 1 MiB in memory at the same time."""
_PAUSE = 0.001
"""Seconds between the starts of two simultaneous scrapes, which is about the time needed to parse a page."""


@dataclass(slots=True)
class _Consumer:
    """One of a replica's sources that uses a page."""

    sources: ReplicaSources
    index: int
    """Index of the source among the replica's sources."""
    reader: MetricsReader | None
    """The page's reader; None if the page is a query result."""


@dataclass(slots=True)
class _ScrapeTarget:
    """A metrics page or query result, and the sources that use it."""

    url: str
    query: str
    key: tuple[str, str] | None = field(repr=False)
    """Name and value of the header that contains the server's API key."""
    interval: float
    timeout: float
    consumers: list[_Consumer] = field(default_factory=list)
    together: bool = False
    """Whether the replica is scraped together with the rest of its pool rather than at its own time."""
    delay: float = 0.0
    """Offset from the pool's scrape time, in seconds."""

    def first_due(self, now: float) -> float:
        """Return the time of the first scrape. Pools are scraped at multiples of their interval."""
        if not self.together:
            return now + random.uniform(0, self.interval)
        return now + (self.delay - now) % self.interval


class Scraper:
    """Scrapes sources. After each scrape, `report` is called in the event loop for each source that uses the page."""

    def __init__(self, report: Callable[[ScrapeReport], None], guard: Guard | None = None) -> None:
        self._report = report
        self._guard = guard or Guard()
        self._replicas: dict[tuple[str, str], ReplicaSources] = {}
        self._targets: dict[_Key, _ScrapeTarget] = {}
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._turn = asyncio.Lock()
        """Lock held while a large page is being parsed."""
        self._large = asyncio.Semaphore(_MAX_LARGE)

    async def run(self) -> None:
        """Scrape until the task is cancelled. `watch` may be called before and during this."""
        async with session() as self._session:
            try:
                self._start()
                await asyncio.Event().wait()
            finally:
                tasks = list(self._tasks.values())
                self._stop(set())
                await asyncio.gather(*tasks, return_exceptions=True)
                self._session = None

    def watch(self, plans: Iterable[ScrapePlan]) -> None:
        """Scrape exactly the sources in these plans. Unchanged sources keep their state and their schedule."""
        tracked = {}
        for plan in plans:
            key = (plan.pool, plan.replica)
            earlier = self._replicas.get(key)
            if earlier is None or earlier.plan != plan:
                sources = ReplicaSources(plan)
                if earlier is not None:
                    sources.take_over(earlier)
                tracked[key] = sources
            else:
                tracked[key] = earlier
        self._replicas = tracked
        self._replace_targets(_targets(tracked.values()))

    def states(self, pool: str, replica: str) -> tuple[SourceState, ...]:
        """Return the state of each of the replica's sources; empty if the replica is not being scraped."""
        sources = self._replicas.get((pool, replica))
        return tuple(sources.states) if sources else ()

    def _replace_targets(self, targets: dict[_Key, _ScrapeTarget]) -> None:
        """Replace all targets. A target with an unchanged schedule keeps its task, even if its consumers change."""
        unchanged = set()
        for key, target in targets.items():
            current = self._targets.get(key)
            if current and _schedule(current) == _schedule(target):
                current.consumers = target.consumers
                targets[key] = current
                unchanged.add(key)
        self._stop(unchanged)
        self._targets = targets
        if self._session is not None:
            self._start()

    def _start(self) -> None:
        for key, target in self._targets.items():
            if key not in self._tasks:
                work = partial(self._scrape_periodically, target)
                self._tasks[key] = self._guard.start("scrape", work, url=without_values(target.url))

    def _stop(self, keep: set[_Key]) -> None:
        for key in self._tasks.keys() - keep:
            self._tasks.pop(key).cancel()

    async def _scrape_periodically(self, target: _ScrapeTarget) -> None:
        loop = asyncio.get_running_loop()
        due = target.first_due(loop.time())
        while True:
            await asyncio.sleep(due - loop.time())
            await self._scrape(target)
            rest = due + target.interval / 2 - loop.time()
            if target.together and rest > 0 and any(item.sources.makes_no_progress for item in target.consumers):
                await asyncio.sleep(rest)
                await self._scrape(target)
            missed = max(0, int((loop.time() - due) // target.interval))
            due += (missed + 1) * target.interval

    async def _scrape(self, target: _ScrapeTarget) -> None:
        assert self._session is not None
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with AsyncExitStack() as held:
            large = partial(held.enter_async_context, self._large)
            fetched = await fetch(self._session, target.url, target.timeout, target.query, large=large, key=target.key)
            ended = loop.time()
            if len(fetched.body) < _LARGE:
                self._read(target, fetched, started, ended)
                return
            async with self._turn:
                self._read(target, fetched, started, ended)
                await asyncio.sleep(0)

    def _read(self, target: _ScrapeTarget, fetched: Fetched, started: float, ended: float) -> None:
        pages: dict[int, MetricsPage] = {}
        for consumer in target.consumers:
            self._report(_report_of(consumer, fetched, pages, started, ended))


def _report_of(
    consumer: _Consumer, fetched: Fetched, pages: dict[int, MetricsPage], started: float, ended: float
) -> ScrapeReport:
    """Return the report from one source.

    `pages` maps each reader's ID to the page as that reader has already parsed it.
    """
    sources, reader = consumer.sources, consumer.reader
    if fetched.reason:
        return sources.failed(consumer.index, fetched, started, ended)
    if reader is None:
        return sources.answer(consumer.index, fetched, started, ended)
    page = pages.get(id(reader))
    if page is None:
        page = pages[id(reader)] = reader.read(fetched.body)
    return sources.page(consumer.index, fetched, page, started, ended)


def _schedule(target: _ScrapeTarget) -> tuple[float, float, bool]:
    return target.interval, target.timeout, target.together


def _targets(tracked: Iterable[ReplicaSources]) -> dict[_Key, _ScrapeTarget]:
    """Return each page once. If several pools use a page, the shortest interval and timeout apply."""
    targets: dict[_Key, _ScrapeTarget] = {}
    readers: dict[frozenset[str], MetricsReader] = {}
    number = 0
    for sources in tracked:
        plan = sources.plan
        for index, source in enumerate(plan.sources):
            key = (source.url, source.query, source.key)
            target = targets.setdefault(key, _ScrapeTarget(*key, plan.interval, plan.timeout))
            target.interval = min(target.interval, plan.interval)
            target.timeout = min(target.timeout, plan.timeout)
            if plan.together and not target.together:
                target.together, target.delay = True, number * _PAUSE
                number += 1
            target.consumers.append(_Consumer(sources, index, _reader(source.table, readers)))
    return targets


def _reader(table: MetricsTable | None, readers: dict[frozenset[str], MetricsReader]) -> MetricsReader | None:
    """Return the reader for a table; tables with the same metric names share one reader. Return None for a query."""
    if table is None:
        return None
    names = table.names()
    if names not in readers:
        readers[names] = MetricsReader(names)
    return readers[names]
