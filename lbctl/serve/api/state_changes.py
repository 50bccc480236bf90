"""Reports when a replica goes down and when it returns: a line in the log, and a record in the audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lbctl.control.fitness import FIT
from lbctl.serve import log
from lbctl.serve.api import schema
from lbctl.serve.traffic.ledger import ReplicaKey

Record = Callable[[str, str, str, str], None]
"""Records an action about a pool and a replica, and its reason."""
_SINGLE = 5
"""More replicas of a pool than this at once are one line."""


class StateChanges:
    """Compares the states of replicas with those before. What deep health ejects is reported where it is decided."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._out: dict[ReplicaKey, str] = {}
        """Replica → the state in which it gets no requests."""

    def note(self, pools: Iterable[schema.Pool]) -> None:
        """Report what has changed since the last call."""
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
                elif before is not None and item.state == "unknown":
                    out[key] = before
            self._report(pool.name, gone, "a replica is down", "down", log.warn)
            self._report(pool.name, back, "a replica is back", "back", log.event)
        self._out = out

    def _report(
        self, pool: str, replicas: list[schema.Replica], message: str, action: str, write: Callable[..., None]
    ) -> None:
        for item in replicas:
            self._record(action, pool, item.name, item.state_reason)
        if len(replicas) > _SINGLE:
            first = replicas[0]
            write(f"{message}: {len(replicas)} replicas", pool=pool, first=first.name, why=first.state_reason or None)
            return
        for item in replicas:
            write(message, pool=pool, replica=item.name, why=item.state_reason or None)
