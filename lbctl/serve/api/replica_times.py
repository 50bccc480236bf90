"""Records when each replica entered its state, and when its drain was applied and ended."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from lbctl.control.fitness import StateName
from lbctl.serve.traffic.ledger import STALE_AFTER, ReplicaKey


class StateTimes:
    """Remembers when each replica entered its state."""

    def __init__(self) -> None:
        self._since: dict[ReplicaKey, tuple[StateName, float | None]] = {}

    def since(self, key: ReplicaKey, state: StateName, now: float) -> float | None:
        """Return the time at which the replica entered this state; None if it has been `in` since the first call."""
        before = self._since.get(key)
        if before is None or before[0] != state:
            self._since[key] = state, None if before is None and state == "in" else now
        return self._since[key][1]

    def keep(self, replicas: Iterable[ReplicaKey]) -> None:
        """Forget all replicas except these."""
        kept = frozenset(replicas)
        if len(self._since) > len(kept):
            self._since = {key: value for key, value in self._since.items() if key in kept}


class DrainTimes:
    """Remembers when drains were applied and ended, on the ledger's clock.

    Earlier reports from proxies are ignored.
    """

    def __init__(self) -> None:
        self._drained: frozenset[ReplicaKey] = frozenset()
        self._applied: dict[ReplicaKey, float] = {}
        self._ended: dict[ReplicaKey, float] = {}

    def update(self, drained: Iterable[ReplicaKey], now: float) -> None:
        """Record which replicas are currently drained."""
        before, self._drained = self._drained, frozenset(drained)
        self._applied = {key: at for key, at in self._applied.items() if key in self._drained}
        ended = self._ended | dict.fromkeys(before - self._drained, now)
        self._ended = {key: at for key, at in ended.items() if key not in self._drained and at > now - STALE_AFTER}

    def applied_at(self, key: ReplicaKey, is_applied: bool, now: float) -> float:
        """Return the time by which all proxies had applied this replica's drain; `now` if they have not applied it."""
        if not is_applied:
            self._applied.pop(key, None)
            return now
        return self._applied.setdefault(key, now)

    def ended_at(self, key: ReplicaKey) -> float:
        """Return the time at which this replica's drain ended; -inf if it has not been drained recently."""
        return self._ended.get(key, -inf)
