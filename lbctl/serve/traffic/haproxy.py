"""An HAProxy's traffic, from the Runtime API's `show stat`: requests, errors, requests in flight, and health.

HAProxy counts each attempt to use a server. After a reload, the new worker counts from 0, so the previous worker's
counts since the last poll are lost. The first poll after `lbctl serve` starts is the baseline and does not report any
requests.
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
"""Timeout for HAProxy's response, in seconds."""
_PASSED = re.compile(r"DOWN ([1-9][0-9]*)/([0-9]+)")
"""Status of a server that is down and has passed some of the required checks."""
_BY_CHECKS = re.compile(r"DOWN( [0-9]+/[0-9]+)?")
"""Status of a server that is down because of its checks rather than because of an agent."""
_OF_AGENT = re.compile(r"via agent : down \((.*)\)", re.DOTALL)
"""HAProxy's description of a failed agent check, which contains the reason."""
_NO_FAILURE = frozenset({"INI", "UNK", "L4OK", "L6OK", "L7OK", "L7OKC"})
"""Results of a check that has not finished yet or has passed."""
_MAX_REASON_CHARACTERS = 160
"""Maximum number of characters kept from HAProxy's report about a check."""
_BY_PASSIVE_CHECK = "HANA"
"""Check result that indicates request errors ("health analyze")."""
_NO_ERRORS = BackendCounters(0, 0)
_NOTHING = ServerCounters(0, 0, 0, "", "", "")
_JUDGED = frozenset({"up", "down", "ejected"})
"""Conditions of a replica that has been up or whose check has failed."""
_WORST_FIRST = ("down", "ejected", "starting", "up", "draining")


class HaproxySource:
    """A PolledSource for one HAProxy."""

    def __init__(self, runtime: Runtime, sections: str = "") -> None:
        """`sections`: prefix of the fleet's backend names; a fragment's host also has other backends."""
        self._runtime = runtime
        self._sections = sections
        self._before: WorkerCounters | None = None
        self._conditions: Mapping[ReplicaKey, ReplicaCondition] = {}

    async def poll(self) -> TrafficReport | None:
        """Return the HAProxy counts since the last poll; None if HAProxy does not respond."""
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
        report_ = report(self._before, before, self._conditions)
        self._conditions = report_.conditions
        return report_


def source(proxy: Proxy) -> HaproxySource | None:
    """Return the source for an HAProxy; None if it does not have a Runtime API."""
    if not proxy.runtime_api:
        return None
    return HaproxySource(Runtime(proxy.runtime_api, _TIMEOUT), sections.own("pool_", proxy))


def report(
    now: WorkerCounters, before: WorkerCounters | None, conditions_before: Mapping[ReplicaKey, ReplicaCondition]
) -> TrafficReport:
    """Return the HAProxy counts between two polls. The counts for a pool's servers are summed across its backends.

    `conditions_before`: the conditions in the previous report.
    """
    counts: dict[ReplicaKey, Counts] = {}
    in_flight: dict[ReplicaKey, int] = {}
    assigned: dict[ReplicaKey, int] = {}
    rows: dict[ReplicaKey, list[ServerCounters]] = {}
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
        rows.setdefault(key, []).append(item)
    return TrafficReport(
        {key: each for key, each in counts.items() if each != NO_COUNTS},
        in_flight,
        {key: _worst(each, conditions_before.get(key)) for key, each in rows.items()},
        assigned,
        _own_errors(now, before) if before is not None else {},
        _answered(now, earlier) if before is not None else frozenset(),
        now.slots,
    )


def _answered(now: WorkerCounters, earlier: Mapping[Place, ServerCounters]) -> frozenset[ReplicaKey]:
    """Return the replicas that have started a response since the last poll.

    If a counter has decreased, its server was removed and re-added.
    """
    answered = set()
    for place, item in now.servers.items():
        before = earlier.get(place, _NOTHING).answered
        if item.answered > before or 0 < item.answered < before:
            answered.add(ReplicaKey(desired.pool_name(place[0]), now.slots.get(place, place[1])))
    return frozenset(answered)


def _own_errors(now: WorkerCounters, before: WorkerCounters) -> dict[str, int]:
    """Map each pool to the requests that HAProxy itself answered with an error, without a server, between two polls.

    A request without a server is counted only as a failed connection of the backend. A request that exceeds one of the
    pool's limits is counted only by its status. Server failures are subtracted, so that no request is counted twice.
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
    """Return the counts since then. If a counter has decreased, its server was removed and re-added.

    HAProxy counts a 500 response when its headers arrive, but counts a request only when it ends, so failures may
    outnumber ended requests.
    """
    before = earlier.get(place)
    if before is None or now.ended < before.ended or now.failed < before.failed:
        return Counts(max(now.ended, now.failed), now.failed)
    failed = now.failed - before.failed
    return Counts(max(now.ended - before.ended, failed), failed)


def _tracks_another(item: ServerCounters) -> bool:
    """Return whether the server is down because the server that it tracks in another backend is down."""
    return item.status.startswith("DOWN") and not item.check


def _condition(item: ServerCounters, *, is_new: bool) -> ReplicaCondition:
    """Return a server's condition. `is_new`: whether it has not been up yet and has not failed a check.

    In HAProxy, a new server is initially down, and passed checks are counted as for a recovering server.
    """
    status = item.status
    if status.startswith("UP") or status == "no check":
        return ReplicaCondition("up")
    if status.startswith("MAINT") and "resolution" in status:
        return ReplicaCondition("down", "its name does not resolve")
    if not status.startswith("DOWN"):
        return ReplicaCondition("draining", status)
    if status == "DOWN (agent)" and (by_agent := _OF_AGENT.fullmatch(item.agent)):
        return ReplicaCondition("down", _readable(f"its agent reports: {by_agent[1].strip()}"))
    reason = _readable(f"{item.check} {item.last_check}".strip() or status)
    if passed := _PASSED.fullmatch(status):
        reason += f", {passed[1]} of {passed[2]} required checks passed"
    if is_new and item.check in _NO_FAILURE and _BY_CHECKS.fullmatch(status):
        return ReplicaCondition("starting", reason)
    return ReplicaCondition("ejected" if item.check == _BY_PASSIVE_CHECK else "down", reason)


def _worst(rows: Iterable[ServerCounters], before: ReplicaCondition | None) -> ReplicaCondition:
    """Return the worst condition among a replica's servers. `before`: its condition in the previous report."""
    is_new = before is None or before.state not in _JUDGED
    servers = [item for item in rows if not _tracks_another(item)] or rows
    conditions = (_condition(item, is_new=is_new) for item in servers)
    return min(conditions, key=lambda item: (_WORST_FIRST.index(item.state), not item.reason))


def _readable(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= _MAX_REASON_CHARACTERS else f"{shown[:_MAX_REASON_CHARACTERS]}…"
