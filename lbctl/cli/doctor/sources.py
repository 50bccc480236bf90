"""Checks whether the fleet's metrics endpoints respond and provide the metrics that its pools need.

Each page is requested once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from lbctl.cli.doctor.check import DoctorResult
from lbctl.cli.doctor.machine import Skew
from lbctl.ir.pools import DnsDiscovery, Pool
from lbctl.ir.secrets import Secrets
from lbctl.ir.snapshot import key_of
from lbctl.runtime.net.fetch import Fetched, fetch
from lbctl.runtime.net.http_client import session
from lbctl.runtime.net.resolve import UnresolvedError, resolve
from lbctl.serve.telemetry.replica_sources import ReplicaSources
from lbctl.signals.plan import ScrapePlan, ScrapeSource, scrape_plan

ANSWER_TIMEOUT = 2.0
"""Timeout for a single response, in seconds."""
_TOTAL_TIMEOUT = 15.0
"""Timeout for all responses together, in seconds."""
_CONCURRENCY = 256
_SHOWN = 3
"""Maximum number of failures shown."""
_Key = tuple[str, str, tuple[str, str] | None]
"""URL, query and key for a metrics page."""


@dataclass(frozen=True, slots=True)
class _TimedAnswer:
    """A response, with the local times before and after the request."""

    fetched: Fetched
    began: float
    ended: float


def sources(pools: Sequence[Pool], secrets: Secrets) -> tuple[list[DoctorResult], list[Skew]]:
    """Check the fleet's metrics pages and DNS names.

    Returns a result for each DNS name and for each kind of source in each pool, and the servers' clock skew.
    """
    plans = (scrape_plan(pool, item, key_of(pool, secrets)) for pool in pools for item in pool.replicas)
    replicas = [plan for plan in plans if plan is not None]
    keys = {(item.url, item.query, item.key) for each in replicas for item in each.sources}
    names = [pool for pool in pools if isinstance(pool.discovery, DnsDiscovery)]
    answers, resolved = asyncio.run(_request_all(keys, names))
    checks = [*resolved, *_checks(replicas, answers), *_no_sources(pools, replicas)]
    return checks, [skew for key in sorted(answers, key=str) if (skew := skew_of(key[0], answers[key]))]


async def _request_all(
    keys: Iterable[_Key], names: Sequence[Pool]
) -> tuple[dict[_Key, _TimedAnswer], list[DoctorResult]]:
    """Request all pages and resolve all names. Late responses are omitted."""
    slots = asyncio.Semaphore(_CONCURRENCY)
    async with session() as client:

        async def fetch_page(key: _Key) -> _TimedAnswer:
            async with slots:
                start = time.time()
                return _TimedAnswer(await fetch(client, key[0], ANSWER_TIMEOUT, key[1], key=key[2]), start, time.time())

        lookups = [asyncio.create_task(_name(pool)) for pool in names]
        tasks = {key: asyncio.create_task(fetch_page(key)) for key in keys}
        if tasks:
            _, late = await asyncio.wait(tasks.values(), timeout=_TOTAL_TIMEOUT)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        name_checks = [await lookup for lookup in lookups]
    return {key: task.result() for key, task in tasks.items() if not task.cancelled()}, name_checks


async def _name(pool: Pool) -> DoctorResult:
    discovery = pool.discovery
    assert isinstance(discovery, DnsDiscovery)
    what = f"pools.{pool.name}.discovery.dns {discovery.name}"
    try:
        resolved = await resolve(discovery.name, discovery.resolvers, ANSWER_TIMEOUT)
    except (UnresolvedError, OSError, ValueError) as error:
        return DoctorResult(what, "failed", str(error), "check the name and its resolvers", absent=True)
    count = len(resolved.addresses)
    return DoctorResult(what, "ok", f"{count} address{'es' if count > 1 else ''}; serve reads their metrics")


def _checks(replicas: Sequence[ScrapePlan], answers: dict[_Key, _TimedAnswer]) -> Iterator[DoctorResult]:
    groups: dict[tuple[str, str], list[str]] = {}
    for replica in replicas:
        replica_sources = ReplicaSources(replica)
        for index, source in enumerate(replica.sources):
            groups.setdefault((replica.pool, source.kind), []).append(_problem(replica_sources, index, source, answers))
    for (pool, kind), problems in groups.items():
        failures = [item for item in problems if item]
        shown = list(dict.fromkeys(failures))[:_SHOWN]
        what = f"pools.{pool}.telemetry {kind}"
        summary = f"{len(problems) - len(failures)} of {len(problems)} provide signals"
        if not failures:
            yield DoctorResult(what, "ok", summary)
            continue
        more = "; …" if len(set(failures)) > _SHOWN else ""
        todo = "start the server, or correct the address"
        failed = len(failures) == len(problems)
        message = f"{summary}; {'; '.join(shown)}{more}"
        yield DoctorResult(what, "failed" if failed else "warn", message, todo, absent=failed)


def _problem(sources: ReplicaSources, index: int, source: ScrapeSource, answers: dict[_Key, _TimedAnswer]) -> str:
    """Return the reason why this source provides no signal, or an empty string.

    The criteria are the same as those that `serve` uses.
    """
    answer = answers.get((source.url, source.query, source.key))
    if answer is None:
        return f"{source.display_url}: not read, because other sources took too long"
    if answer.fetched.reason:
        return f"{source.display_url}: {answer.fetched.message}"
    if source.table is None:
        sources.answer(index, answer.fetched, 0.0, 0.0)
    else:
        page = source.table.reader().read(answer.fetched.body)
        sources.page(index, answer.fetched, page, 0.0, 0.0)
    state = sources.states[index]
    return f"{source.display_url}: {state.message}" if state.reason else ""


def _no_sources(pools: Sequence[Pool], replicas: Sequence[ScrapePlan]) -> Iterator[DoctorResult]:
    if not replicas and not any(pool.telemetry for pool in pools):
        yield DoctorResult("telemetry", "skipped", "the fleet has no metrics source")


def skew_of(server: str, answer: _TimedAnswer) -> Skew | None:
    """Return the clock skew that can be inferred from the response's `Date` header.

    The header was created between the request and the response, and has a resolution of one second.
    """
    return skew_between(server, answer.fetched.date, answer.began, answer.ended)


def skew_between(server: str, date: str, began: float, ended: float) -> Skew | None:
    """Return the clock skew that can be inferred from a `Date` header, or None if it does not contain a time.

    `began` and `ended` are the local times before the request and after the response.
    """
    try:
        sent_at = parsedate_to_datetime(date)
    except ValueError:
        return None
    timestamp = (sent_at if sent_at.tzinfo else sent_at.replace(tzinfo=UTC)).timestamp()
    if timestamp > ended:
        return Skew(server, timestamp - ended)
    return Skew(server, min(0.0, timestamp + 1 - began))
