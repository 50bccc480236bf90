"""Since when each replica is in its state."""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.control.fitness import StateName
from lbctl.serve.traffic.ledger import ReplicaKey


class StateTimes:
    """Remembers when each replica came into its state."""

    def __init__(self) -> None:
        self._since: dict[ReplicaKey, tuple[StateName, float | None]] = {}

    def since(self, key: ReplicaKey, state: StateName, now: float) -> float | None:
        """Return when the replica came into this state; None where it has been `in` from the first call on."""
        before = self._since.get(key)
        if before is None or before[0] != state:
            self._since[key] = state, None if before is None and state == "in" else now
        return self._since[key][1]

    def keep(self, replicas: Iterable[ReplicaKey]) -> None:
        """Forget all replicas but these."""
        kept = frozenset(replicas)
        if len(self._since) > len(kept):
            self._since = {key: value for key, value in self._since.items() if key in kept}
