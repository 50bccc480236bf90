"""Whether the metrics that the fleet names answer, and with what its pools need. Each page is asked for once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from lbctl.cli.doctor.check import Check
from lbctl.cli.doctor.machine import Skew
from lbctl.ir.pools import DnsDiscovery, Pool
from lbctl.serve.net.http_client import session
from lbctl.serve.net.resolve import UnresolvedError, resolve
from lbctl.serve.telemetry.fetch import Fetched, fetch
from lbctl.serve.telemetry.replica_sources import ReplicaSources
from lbctl.signals.plan import ScrapePlan, ScrapeSource, scrape_plan

PATIENCE = 2.0
"""Seconds for one answer."""
_ALTOGETHER = 15.0
"""Seconds for all of them."""
_AT_ONCE = 256
_SHOWN = 3
"""How many that fail are named."""
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Asked:
    """An answer, and the times of our clock before and after the request."""

    fetched: Fetched
    began: float
    ended: float


def sources(pools: Sequence[Pool]) -> tuple[list[Check], list[Skew]]:
    """A line for each pool and kind of source, and for each name that is looked up."""
    replicas = [found for pool in pools for item in pool.replicas if (found := scrape_plan(pool, item)) is not None]
    keys = {(item.url, item.query) for each in replicas for item in each.sources}
    names = [pool for pool in pools if isinstance(pool.discovery, DnsDiscovery)]
    answers, resolved = asyncio.run(_all(keys, names))
    checks = [*resolved, *_checks(replicas, answers), *_silent(pools, replicas)]
    return checks, [skew for key in sorted(answers) if (skew := skew_of(key[0], answers[key]))]


async def _all(keys: Iterable[_Key], names: Sequence[Pool]) -> tuple[dict[_Key, _Asked], list[Check]]:
    """What has not come in time is absent."""
    turn = asyncio.Semaphore(_AT_ONCE)
    async with session() as client:

        async def ask(key: _Key) -> _Asked:
            async with turn:
                began = time.time()
                return _Asked(await fetch(client, key[0], PATIENCE, key[1]), began, time.time())

        looks = [asyncio.create_task(_name(pool)) for pool in names]
        tasks = {key: asyncio.create_task(ask(key)) for key in keys}
        if tasks:
            _, late = await asyncio.wait(tasks.values(), timeout=_ALTOGETHER)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        found = [await look for look in looks]
    return {key: task.result() for key, task in tasks.items() if not task.cancelled()}, found


async def _name(pool: Pool) -> Check:
    told = pool.discovery
    assert isinstance(told, DnsDiscovery)
    what = f"pools.{pool.name}.discovery.dns {told.name}"
    try:
        found = await resolve(told.name, told.resolvers, PATIENCE)
    except (UnresolvedError, OSError, ValueError) as error:
        return Check(what, "failed", str(error), "look at the name and its resolvers", absent=True)
    count = len(found.addresses)
    return Check(what, "ok", f"{count} address{'es' if count > 1 else ''}; their sources are for serve to ask")


def _checks(replicas: Sequence[ScrapePlan], answers: dict[_Key, _Asked]) -> Iterator[Check]:
    groups: dict[tuple[str, str], list[str]] = {}
    for replica in replicas:
        track = ReplicaSources(replica)
        for place, source in enumerate(replica.sources):
            groups.setdefault((replica.pool, source.kind), []).append(_problem(track, place, source, answers))
    for (pool, kind), problems in groups.items():
        bad = [item for item in problems if item]
        shown = list(dict.fromkeys(bad))[:_SHOWN]
        what = f"pools.{pool}.telemetry {kind}"
        good = f"{len(problems) - len(bad)} of {len(problems)} give signals"
        if not bad:
            yield Check(what, "ok", good)
            continue
        more = "; …" if len(set(bad)) > _SHOWN else ""
        todo = "start what should answer there, or correct the address"
        yield Check(what, "failed", f"{good}; {'; '.join(shown)}{more}", todo, absent=True)


def _problem(track: ReplicaSources, place: int, source: ScrapeSource, answers: dict[_Key, _Asked]) -> str:
    """Why this source gives nothing, empty where it gives something; judged as serve does."""
    asked = answers.get((source.url, source.query))
    if asked is None:
        return f"{source.display_url}: not asked, the others took too long"
    if asked.fetched.reason:
        return f"{source.display_url}: {asked.fetched.message}"
    if source.table is None:
        track.answer(place, asked.fetched, 0.0, 0.0)
    else:
        page = source.table.reader().read(asked.fetched.body)
        track.page(place, asked.fetched, page, 0.0, 0.0)
    told = track.states[place]
    return f"{source.display_url}: {told.message}" if told.reason else ""


def _silent(pools: Sequence[Pool], replicas: Sequence[ScrapePlan]) -> Iterator[Check]:
    if not replicas and not any(pool.telemetry for pool in pools):
        yield Check("telemetry", "skipped", "the fleet names no source")


def skew_of(who: str, asked: _Asked) -> Skew | None:
    """What its `Date` proves: whole seconds, sent at some moment between question and answer."""
    return skew_between(who, asked.fetched.date, asked.began, asked.ended)


def skew_between(who: str, date: str, began: float, ended: float) -> Skew | None:
    """The same of a header; None where it has no time in it."""
    try:
        told = parsedate_to_datetime(date)
    except ValueError:
        return None
    at = (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
    if at > ended:
        return Skew(who, at - ended)
    return Skew(who, min(0.0, at + 1 - began))
