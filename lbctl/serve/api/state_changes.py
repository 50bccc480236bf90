"""Reports when a replica goes down and when it recovers, with a log line and an audit record.

If a replica changes repeatedly, its changes are combined into one line and one record, so that they do not push
operators' actions out of the audit log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lbctl.api import schema
from lbctl.control.fitness import FIT
from lbctl.runtime import log
from lbctl.serve.traffic.ledger import ReplicaKey

Record = Callable[[str, str, str, str], None]
"""Records an action, the pool and replica that it concerns, and its reason."""
_SINGLE = 5
"""If more of a pool's replicas change at once, they share one line."""
_MAX_CHANGES = 6
"""Number of a replica's changes within `_PERIOD` that are reported individually."""
_PERIOD = 3600.0
_SUMMARY_INTERVAL = 1200.0
"""Seconds between summaries for replicas that change more often than that."""


class _Change(NamedTuple):
    """A replica has gone down or recovered."""

    action: str
    pool: str
    replica: str
    reason: str


class _Unreported(NamedTuple):
    """A replica's changes since the last summary."""

    changes: int
    newest: _Change


class StateChanges:
    """Compares each replica's state with its previous state.

    Ejections by the deep health check are reported elsewhere.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._out: dict[ReplicaKey, str] = {}
        """Maps each replica that gets no requests to its state."""
        self._times: dict[ReplicaKey, deque[float]] = {}
        """Maps each replica to the times of its most recent changes, up to `_MAX_CHANGES` of them."""
        self._unreported: dict[ReplicaKey, _Unreported] = {}
        self._summed_up = 0.0
        """Time of the last summary."""

    def note(self, pools: Iterable[schema.Pool], now: float) -> None:
        """Report the changes since the last call. `now`: seconds on a monotonic clock."""
        out: dict[ReplicaKey, str] = {}
        for pool in pools:
            gone: list[schema.Replica] = []
            back: list[schema.Replica] = []
            for item in pool.replicas:
                key = ReplicaKey(pool.name, item.name)
                before = self._out.get(key)
                if item.state in ("down", "ejected") and not item.out:
                    out[key] = item.state
                    if before is None:
                        gone.append(item)
                elif before is not None and item.state in FIT:
                    back.append(item)
                elif before is not None and item.state in ("unknown", "starting"):
                    out[key] = before
            self._report(self._rare("down", pool.name, gone, now))
            self._report(self._rare("back", pool.name, back, now))
        self._out = out
        if now - self._summed_up >= _SUMMARY_INTERVAL:
            self._sum_up(now)

    def _rare(self, action: str, pool: str, replicas: list[schema.Replica], now: float) -> list[_Change]:
        """Return the changes to report now; the rest are counted for the next summary."""
        rare = []
        for item in replicas:
            key, change = ReplicaKey(pool, item.name), _Change(action, pool, item.name, item.state_reason)
            times = self._times.setdefault(key, deque(maxlen=_MAX_CHANGES))
            if len(times) < _MAX_CHANGES or now - times[0] > _PERIOD:
                rare.append(change)
            else:
                count = self._unreported[key].changes if key in self._unreported else 0
                self._unreported[key] = _Unreported(count + 1, change)
            times.append(now)
        return rare

    def _sum_up(self, now: float) -> None:
        """Report the changes that have only been counted so far, with each replica's newest change."""
        minutes = max(1, round((now - self._summed_up) / 60))
        by_kind: dict[tuple[str, str], list[_Change]] = {}
        for count, newest in self._unreported.values():
            rate = f"{count} change{'' if count == 1 else 's'} in {minutes} minutes"
            reason = f"{rate}; {newest.reason}" if newest.reason else rate
            by_kind.setdefault((newest.pool, newest.action), []).append(newest._replace(reason=reason))
        for changes in by_kind.values():
            self._report(changes)
        self._unreported.clear()
        self._summed_up = now
        self._times = {key: times for key, times in self._times.items() if now - times[-1] <= _PERIOD}

    def _report(self, changes: list[_Change]) -> None:
        """Report changes of the same kind in one pool."""
        if not changes:
            return
        action, pool, replica, reason = changes[0]
        message, write = (
            ("a replica is down", log.warn) if action == "down" else ("a replica is available again", log.event)
        )
        for item in changes:
            self._record(*item)
        if len(changes) > _SINGLE:
            write(f"{message}: {len(changes)} replicas", pool=pool, first=replica, why=reason or None)
            return
        for item in changes:
            write(message, pool=pool, replica=item.replica, why=item.reason or None)
