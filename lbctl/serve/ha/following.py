"""This member in the follower role: reads the leader's records and publishes the same resources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from lbctl.runtime import log
from lbctl.runtime.guard import Work, end_tasks
from lbctl.serve.ha.clock import FleetClock
from lbctl.serve.ha.records import FOLLOWED, LEADER, SharedRecords
from lbctl.serve.ha.roles import RoleTasks, SharedParts
from lbctl.serve.ha.sharing import SHARING, PoolSharing
from lbctl.store.interface import KeyChange, StoreError
from lbctl.store.saved import SavedState

_SETTLE = 0.01
"""Seconds over which changes are collected before they are published together."""
_RETRY = 0.5
"""Seconds before a failed watch on the store is retried."""
_READER_ENDS = 0.05
"""Seconds after which a store reader that has not stopped is cancelled again, because a takeover waits for it to
stop."""
_PUBLISHES_NOTHING = (LEADER, SHARING, "fleet/served", "history/entries", "rollback")
"""Keys whose changes do not affect the proxies."""
_SKEW = 5.0
"""Clock difference between two members, in seconds, above which a warning is logged."""


class Following:
    """The follower."""

    def __init__(
        self,
        state: SavedState,
        parts: SharedParts,
        records: SharedRecords,
        sharing: PoolSharing,
        clock: FleetClock,
        role_tasks: RoleTasks,
        monotonic: Callable[[], float],
    ) -> None:
        """`clock` is adjusted to the leader's clock; `monotonic` returns seconds on this machine's monotonic clock."""
        self._state = state
        self._parts = parts
        self._records = records
        self._sharing = sharing
        self._clock = clock
        self._role_tasks = role_tasks
        self._monotonic = monotonic
        self._leader_seen_at: float | None = None
        self._skewed = False
        self._catching_up = False

    @property
    def catching_up(self) -> bool:
        """Whether the leader has written changes that this member has not published yet."""
        return self._catching_up

    @property
    def lag(self) -> float | None:
        """Seconds since the leader's last heartbeat was received; None before the first one."""
        return None if self._leader_seen_at is None else self._monotonic() - self._leader_seen_at

    def begin(self) -> None:
        """Leave decisions to another member and keep the published fleet."""
        self._parts.reconciler.serve_leader(self._parts.reconciler.fleet)
        self._sharing.collect()

    def tasks(self) -> Mapping[str, Work]:
        """Return a follower's tasks by name."""
        return {"following": self._apply_changes, **self._parts.scraping.tasks(), **self._role_tasks.not_acting}

    async def _apply_changes(self) -> None:
        """Apply the leader's records until the task is cancelled."""
        while True:
            try:
                await self._watch()
            except StoreError:
                await asyncio.sleep(_RETRY)  # the election logs it

    async def _watch(self) -> None:
        changes: asyncio.Queue[KeyChange | StoreError] = asyncio.Queue()
        reader = asyncio.create_task(_read(self._state, changes))
        keys = {LEADER}
        try:
            while True:
                batch = [await changes.get()]
                self._catching_up = True
                await asyncio.sleep(_SETTLE)
                while not changes.empty():
                    batch.append(changes.get_nowait())
                for item in batch:
                    if isinstance(item, StoreError):
                        raise item
                await self._apply([item for item in batch if isinstance(item, KeyChange)], keys)
                self._catching_up = not changes.empty()
        finally:
            self._catching_up = False
            await end_tasks([reader], _READER_ENDS)

    async def _apply(self, changes: Iterable[KeyChange], first: set[str]) -> None:
        """Apply changes and publish the result. `first` contains the keys whose first value may be outdated."""
        files, others = False, False
        for change in changes:
            if change.entry is None or not self._records.take(change.key, change.entry.value):
                continue
            if change.key == LEADER:
                self._see_leader(live=LEADER not in first)
                first.discard(LEADER)
            files = files or change.key == "fleet/files"
            others = others or change.key not in _PUBLISHES_NOTHING
        if files:
            self._parts.reconciler.serve_leader(self._records.fleet)
            await self._parts.reconciler.reload()
        elif others:
            await self._parts.live.apply(self._parts.live.inputs, "the leader", save=False)

    def _see_leader(self, *, live: bool) -> None:
        leader = self._records.leader
        if leader is None or not live:
            return
        self._leader_seen_at = self._monotonic()
        self._clock.adjust(leader.at)
        skewed = abs(self._clock.offset) > _SKEW
        if skewed and not self._skewed:
            log.warn(
                "the clock of this machine differs from the leader's", leader=leader.member, seconds=self._clock.offset
            )
        self._skewed = skewed


async def _read(state: SavedState, changes: asyncio.Queue[KeyChange | StoreError]) -> None:
    try:
        async for change in state.watch(FOLLOWED):
            changes.put_nowait(change)
    except StoreError as error:
        changes.put_nowait(error)
