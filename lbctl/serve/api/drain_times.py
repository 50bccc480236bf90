"""When all proxies had applied the drain of a replica: what they reported before does not show that it is idle."""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.serve.traffic.ledger import ReplicaKey


class DrainTimes:
    """Remembers when each drain was first seen to be applied by all proxies, by the clock of the ledger."""

    def __init__(self) -> None:
        self._applied: dict[ReplicaKey, float] = {}

    def applied_at(self, key: ReplicaKey, is_applied: bool, now: float) -> float:
        """Return when all proxies had applied the drain of this replica; `now` if they have not."""
        if not is_applied:
            self._applied.pop(key, None)
            return now
        return self._applied.setdefault(key, now)

    def keep(self, drained: Iterable[ReplicaKey]) -> None:
        """Forget all replicas but these, which are drained."""
        kept = frozenset(drained)
        self._applied = {key: at for key, at in self._applied.items() if key in kept}
