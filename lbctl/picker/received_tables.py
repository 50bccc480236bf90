"""A picker's tables, built from the lines that the control plane sends.

If no more lines arrive, the last tables stay in use, without the engines' reports (`forget_reports`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lbctl.base.diagnostics import did_you_mean
from lbctl.pick.table import PoolTable
from lbctl.picker import wire
from lbctl.runtime import log

_MAX_NAMED = 10
"""Maximum number of pools to name in a warning."""


class TableFollower:
    """Applies lines to the tables and calls a function for each change.

    - `changed`: a pool's name and its new table, or None if the pool has left.
    - `sampled`: a new report from an engine.
    - `peers`: the pickers, as a map from IDs to addresses.
    - `assigned`: new reports from proxies.
    - `keyed`: the key for queries.

    `pool`: the only pool whose tables are used; None to use all pools' tables.
    """

    def __init__(
        self,
        changed: Callable[[str, PoolTable | None], None],
        sampled: Callable[[wire.EngineSample], None] = lambda _: None,
        peers: Callable[[Mapping[str, str]], None] = lambda _: None,
        assigned: Callable[[list[wire.ProxySample]], None] = lambda _: None,
        keyed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        pool: str | None = None,
    ) -> None:
        self._changed = changed
        self._sampled = sampled
        self._peers = peers
        self._assigned = assigned
        self._keyed = keyed
        self._clock = clock
        self._pool = pool
        self._tables: dict[str, PoolTable] = {}
        self._other_pools: set[str] = set()
        """Names of the pools whose tables are ignored."""
        self._beginning: set[str] | None = None
        """Pools in the first set of tables on a new connection; None once the set is complete."""

    def apply(self, text: bytes) -> None:
        """Apply one line. Raises WireError without changing the tables."""
        values = wire.parse(text)
        if self._pool is not None and values.get("pool", self._pool) != self._pool:
            self._note_other_pool(values)
            return
        now = self._clock()
        match values["kind"]:
            case "begin":
                self._begin(values)
            case "pool":
                self._set(wire.table_of(values, now))
            case "changes":
                self._set(wire.changed_table(self._table(values), values, now))
            case "gone":
                self._remove(str(values.get("pool")))
                self._warn_without_pool()
            case "ready":
                self._end_of_beginning()
            case kind:
                self._note(kind, values)

    def forget_reports(self) -> None:
        """Forget the queues and the KV usage of all engines, because they are out of date."""
        for table in list(self._tables.values()):
            candidates = tuple(replace(item, queue=None, kv=None) for item in table.candidates)
            if candidates != table.candidates:
                self._set(replace(table, candidates=candidates))

    def _note(self, kind: str, values: Mapping[str, Any]) -> None:
        """Apply a line that does not contain a table."""
        match kind:
            case "samples":
                for sample in wire.samples_of(values):
                    self._sampled(sample)
            case "proxies":
                self._assigned(wire.proxy_samples_of(values))
            case "peers":
                self._peers(wire.peers_of(values))
            case "key":
                self._keyed(wire.key_of(values))
            case _:
                pass  # a newer control plane may send other kinds

    def _begin(self, values: Mapping[str, Any]) -> None:
        if values.get("format") != wire.FORMAT:
            raise wire.WireError("the control plane runs a different version of lbctl: upgrade the older installation")
        self._beginning = set()
        self._other_pools.clear()

    def _note_other_pool(self, values: Mapping[str, Any]) -> None:
        if values["kind"] == "pool":
            self._other_pools.add(str(values["pool"]))
        elif values["kind"] == "gone":
            self._other_pools.discard(str(values["pool"]))

    def _table(self, values: Mapping[str, Any]) -> PoolTable:
        table = self._tables.get(str(values.get("pool")))
        if table is None:
            raise wire.WireError("a change refers to a pool that was never sent")
        return table

    def _set(self, table: PoolTable) -> None:
        if self._beginning is not None:
            self._beginning.add(table.pool)
        self._tables[table.pool] = table
        self._changed(table.pool, table)

    def _remove(self, pool: str) -> None:
        if self._tables.pop(pool, None) is not None:
            self._changed(pool, None)

    def _end_of_beginning(self) -> None:
        """Drop pools from an earlier connection that have not appeared on this connection."""
        for pool in self._tables.keys() - (self._beginning if self._beginning is not None else self._tables.keys()):
            self._remove(pool)
        self._beginning = None
        self._warn_without_pool()

    def _warn_without_pool(self) -> None:
        if self._pool is not None and self._pool not in self._tables:
            others = sorted(self._other_pools)
            more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
            log.warn(
                "the fleet has no such pool with `algorithm: pick`, so no replica is picked",
                pool=self._pool,
                hint=did_you_mean(self._pool, others) or None,
                pools=", ".join(others[:_MAX_NAMED]) + more or "none",
            )
