"""Records the control loop's decisions in the audit log: ejections, readmissions, slow replicas, and pool modes.

Weight changes are too frequent to be recorded, but a slow replica's reduced weight is recorded once. Decisions take
effect even if they cannot be recorded, because an ejection must not wait for a disk. Failed records are retried, up to
a limit.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from lbctl.control.effects import Effect, HealthChanged, ModeChanged, RemapAcceptanceChanged, Verdict, WeightsChanged
from lbctl.control.loop_output import LoopOutput
from lbctl.runtime.errors import NotSavedError
from lbctl.store.audit import CONTROL_PLANE, AuditLog

_ACTIONS: dict[Verdict, str] = {
    "out": "eject",
    "floor": "keep at the floor weight",
    "in": "readmit",
    "asleep": "asleep",
}
_MAX_PENDING = 1000
"""Maximum number of decisions queued while the audit log cannot be written; any further ones are lost."""
_SLOW, _FAST = 0.75, 0.9
"""Thresholds for the speed relative to the peers: a replica is recorded as slow when it falls below the first, until it
reaches the second."""
_MAX_SINGLE_RECORDS = 5
"""If more of a pool's replicas change at once, they share one record, so that a flapping fleet does not displace other
records."""


class _Decision(NamedTuple):
    action: str
    pool: str
    replica: str
    reason: str


class DecisionAudit:
    """Collects decisions and records them on request."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._verdicts: dict[tuple[str, str], Verdict] = {}
        self._slow: set[tuple[str, str]] = set()
        self._pending: list[_Decision] = []

    def adopt(self, output: LoopOutput) -> None:
        """Treat earlier decisions that are in effect as recorded."""
        self._verdicts = {(pool, name): "out" for pool, names in output.ejections.items() for name in names}
        self._verdicts |= {(pool, name): "asleep" for pool, names in output.asleep.items() for name in names}
        self._slow = {
            (pool, name)
            for pool, weights in output.weights.items()
            for name, weight in weights.items()
            if weight.speed < _SLOW
        }

    def note(self, effect: Effect) -> None:
        """Add a decision, unless it changes only the reasons for an earlier decision."""
        match effect:
            case HealthChanged():
                key = effect.pool, effect.replica
                before = self._verdicts.get(key)
                if before != effect.verdict:
                    self._verdicts[key] = effect.verdict
                    woke = (before, effect.verdict) == ("asleep", "in")
                    action = "awake" if woke else _ACTIONS[effect.verdict]
                    self._add(_Decision(action, *key, "; ".join(effect.reasons)))
            case RemapAcceptanceChanged():
                pass  # the operator's command is recorded instead
            case ModeChanged():
                self._add(_Decision(f"mode {effect.mode}", effect.pool, "", effect.reason))
            case WeightsChanged():
                for replica, weight in effect.weights.items():
                    self._note_speed(effect.pool, replica, weight.speed)

    def note_state(self, action: str, pool: str, replica: str, reason: str) -> None:
        """Record a change in a replica's state that was not caused by a decision."""
        self._add(_Decision(action, pool, replica, reason))

    def _note_speed(self, pool: str, replica: str, speed: float) -> None:
        key = pool, replica
        if key not in self._slow and speed < _SLOW:
            self._slow.add(key)
            self._add(
                _Decision("slow", *key, f"its speed is {speed:.0%} of its peers' speed, so its weight is lowered")
            )
        elif key in self._slow and speed >= _FAST:
            self._slow.remove(key)
            self._add(_Decision("no longer slow", *key, ""))

    def keep(self, replicas: Container[tuple[str, str]]) -> None:
        """Forget all replicas except these (each given with its pool)."""
        self._verdicts = {key: verdict for key, verdict in self._verdicts.items() if key in replicas}
        self._slow = {key for key in self._slow if key in replicas}

    def _add(self, decision: _Decision) -> None:
        if len(self._pending) < _MAX_PENDING:
            self._pending.append(decision)

    async def save(self) -> None:
        """Record the decisions made since the last call; decisions that cannot be recorded wait for the next call."""
        pending, self._pending = self._pending, []
        try:
            while pending:
                same = [item for item in pending if (item.action, item.pool) == (pending[0].action, pending[0].pool)]
                batch = same if len(same) > _MAX_SINGLE_RECORDS else same[:1]
                await self._audit.record(CONTROL_PLANE, batch[0].action, _subject(batch), _reason(batch))
                pending = [item for item in pending if not any(item is each for each in batch)]
        except NotSavedError:
            self._pending = [*pending, *self._pending][:_MAX_PENDING]


def _subject(batch: list[_Decision]) -> str:
    first = batch[0]
    return f"{first.pool}/{first.replica}" if len(batch) == 1 and first.replica else first.pool


def _reason(batch: list[_Decision]) -> str:
    if len(batch) == 1:
        return batch[0].reason
    return f"{len(batch)} replicas: {_names(item.replica for item in batch)}; {batch[0].replica}: {batch[0].reason}"


def _names(replicas: Iterable[str]) -> str:
    names = sorted(replicas)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
