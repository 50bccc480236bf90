"""The traffic of a HAProxy, by `show stat` of its Runtime API: requests, errors, requests in flight, health.

HAProxy counts each attempt at a server. A worker counts from 0 after a reload: what the worker before had counted since
the last poll is lost. The first poll after the start of `lbctl serve` is the base, and reports no requests.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lbctl.apply.haproxy import running
from lbctl.apply.haproxy.running import BackendCounters, Place, ServerCounters, UnreadableAnswerError, WorkerCounters
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.control.replica_state import ReplicaCondition
from lbctl.ir.proxies import Proxy
from lbctl.serve.traffic.interface import TrafficReport
from lbctl.serve.traffic.ledger import NO_COUNTS, Counts, ReplicaKey
from lbctl.targets.haproxy import desired, sections, slots

_TIMEOUT = 2.0
"""Seconds within which HAProxy must answer."""
_PASSED = re.compile(r"DOWN ([1-9][0-9]*)/([0-9]+)")
"""The status of a server that is down and has passed some of the checks that it needs."""
_MOST_REASON = 160
"""Characters that are kept of what HAProxy says of a check."""
_BY_PASSIVE_CHECK = "HANA"
"""The result of a check that stands for errors of requests ("health analyze")."""
_NO_ERRORS = BackendCounters(0, 0)
_NOTHING = ServerCounters(0, 0, 0, "", "", "")
_WORST_FIRST = ("down", "ejected", "up", "draining")


class HaproxySource:
    """A PolledSource of one HAProxy."""

    def __init__(self, runtime: Runtime, sections: str = "") -> None:
        """`sections`: what the names of the fleet's backends begin with; a fragment's host has others beside them."""
        self._runtime = runtime
        self._sections = sections
        self._before: WorkerCounters | None = None

    async def poll(self) -> TrafficReport | None:
        """Return what HAProxy has counted since the last poll; None where it does not answer."""
        answer = await self._runtime.query(running.COUNTERS)
        if answer.failure:
            return None
        try:
            now = await asyncio.to_thread(running.counters, answer.texts[0])
        except UnreadableAnswerError:
            return None
        own = {place: item for place, item in now.servers.items() if place[0].startswith(self._sections)}
        backends = {name: item for name, item in now.backends.items() if name.startswith(self._sections)}
        before, self._before = self._before, replace(now, servers=own, backends=backends)
        return report(self._before, before)


def source(proxy: Proxy) -> HaproxySource | None:
    """Return the source of a HAProxy; None for one without Runtime API."""
    if not proxy.runtime_api:
        return None
    return HaproxySource(Runtime(proxy.runtime_api, _TIMEOUT), sections.own("pool_", proxy))


def report(now: WorkerCounters, before: WorkerCounters | None) -> TrafficReport:
    """Return what a HAProxy has counted between two polls. The servers of one pool's backends are summed."""
    counts: dict[ReplicaKey, Counts] = {}
    in_flight: dict[ReplicaKey, int] = {}
    assigned: dict[ReplicaKey, int] = {}
    conditions: dict[ReplicaKey, list[ReplicaCondition]] = {}
    earlier = before.servers if before is not None and before.pid == now.pid else {}
    for place, item in now.servers.items():
        replica = now.slots.get(place, place[1])
        if slots.is_slot(replica):
            continue
        key = ReplicaKey(desired.pool_name(place[0]), replica)
        if before is not None:
            counts[key] = counts.get(key, NO_COUNTS) + _difference(item, place, earlier)
        in_flight[key] = in_flight.get(key, 0) + item.sessions
        assigned[key] = assigned.get(key, 0) + item.sessions + item.queued
        conditions.setdefault(key, []).append(_condition(item))
    return TrafficReport(
        {key: each for key, each in counts.items() if each != NO_COUNTS},
        in_flight,
        {key: _worst(each) for key, each in conditions.items()},
        assigned,
        _own_errors(now, before) if before is not None else {},
        _answered(now, earlier) if before is not None else frozenset(),
        now.slots,
    )


def _answered(now: WorkerCounters, earlier: Mapping[Place, ServerCounters]) -> frozenset[ReplicaKey]:
    """Return the replicas of which an answer has begun since the last poll.

    A server that counts less than before has been removed and added again.
    """
    answered = set()
    for place, item in now.servers.items():
        before = earlier.get(place, _NOTHING).answered
        if item.answered > before or 0 < item.answered < before:
            answered.add(ReplicaKey(desired.pool_name(place[0]), now.slots.get(place, place[1])))
    return frozenset(answered)


def _own_errors(now: WorkerCounters, before: WorkerCounters) -> dict[str, int]:
    """Return pool → the requests that HAProxy answered with an error itself, without a server, between two polls.

    A request without a server counts as a failed connection of the backend alone. A request that a limit of the pool
    refuses counts by its status alone; failures of servers are subtracted, so that none counts twice.
    """
    earlier = before if before.pid == now.pid else WorkerCounters(now.pid, {})
    unreached: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for place, item in now.servers.items():
        old = earlier.servers.get(place)
        old = _NOTHING if old is None or item.failed < old.failed or item.unreached < old.unreached else old
        unreached[place[0]] += item.unreached - old.unreached
        failed[place[0]] += item.failed - item.repeated - (old.failed - old.repeated)
    errors: Counter[str] = Counter()
    for name, backend in now.backends.items():
        old_backend = earlier.backends.get(name, _NO_ERRORS)
        without_server = backend.unreached - old_backend.unreached - unreached[name]
        own = max(without_server, backend.errors - old_backend.errors - failed[name])
        if own > 0:
            errors[desired.pool_name(name)] += own
    return dict(errors)


def _difference(now: ServerCounters, place: Place, earlier: Mapping[Place, ServerCounters]) -> Counts:
    """Return what was counted since; a server that counts less than before has been removed and added again.

    HAProxy counts an answer of 500 at its head and a request at its end, so there may be more failures than ends.
    """
    before = earlier.get(place)
    if before is None or now.ended < before.ended or now.failed < before.failed:
        return Counts(max(now.ended, now.failed), now.failed)
    failed = now.failed - before.failed
    return Counts(max(now.ended - before.ended, failed), failed)


def _condition(item: ServerCounters) -> ReplicaCondition:
    status = item.status
    if status.startswith("UP") or status == "no check":
        return ReplicaCondition("up")
    if status.startswith("MAINT") and "resolution" in status:
        return ReplicaCondition("down", "its name does not resolve")
    if not status.startswith("DOWN"):
        return ReplicaCondition("draining", status)
    reason = _readable(f"{item.check} {item.last_check}".strip() or status)
    if passed := _PASSED.fullmatch(status):
        reason += f", {passed[1]} of {passed[2]} needed checks passed"
    return ReplicaCondition("ejected" if item.check == _BY_PASSIVE_CHECK else "down", reason)


def _worst(conditions: Iterable[ReplicaCondition]) -> ReplicaCondition:
    return min(conditions, key=lambda item: (_WORST_FIRST.index(item.state), not item.reason))


def _readable(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= _MOST_REASON else f"{shown[:_MOST_REASON]}…"
