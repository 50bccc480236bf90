"""This member as the leader of one epoch: takes over, then makes decisions, writes records and sends heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from lbctl.runtime import log
from lbctl.runtime.guard import Work
from lbctl.serve.ha.format import write_format
from lbctl.serve.ha.presence import INTERVAL, MemberInfo
from lbctl.serve.ha.records import FOLLOWED, LEADER, LeaderStatus, SharedRecords, write_leader
from lbctl.serve.ha.roles import RoleTasks, SharedParts
from lbctl.serve.ha.sharing import PoolSharing
from lbctl.store.interface import StoreError
from lbctl.store.saved import SavedState
from lbctl.store.signed_store import SignedStore

_LOOK = 10.0
"""Seconds between the leader's checks for changes to the store made by others."""


class Leading:
    """The leader in one epoch."""

    def __init__(
        self,
        epoch: int,
        store: SignedStore,
        state: SavedState,
        parts: SharedParts,
        records: SharedRecords,
        sharing: PoolSharing,
        role_tasks: RoleTasks,
        status: Callable[[], LeaderStatus],
    ) -> None:
        """`status` returns this member's heartbeat."""
        self.epoch = epoch
        self._store = store
        self._state = state
        self._parts = parts
        self._records = records
        self._sharing = sharing
        self._role_tasks = role_tasks
        self._status = status

    async def take_records(self, *, knows_all: bool) -> None:
        """Take over the stored records. `knows_all`: whether only this member has led since it read the records.

        Raises StoreError.
        """
        await write_format(self._store, self.epoch, signed=bool(self._store.keys.keys))
        if knows_all:
            self._parts.history.save_all()
            return
        for entry in await self._state.entries(FOLLOWED):
            if not self._records.take(entry.key, entry.value):
                await self._state.save_raw(f"damaged/{entry.key}", entry.value)
        self._records.restore_history()

    async def decide(self, members: Iterable[MemberInfo]) -> None:
        """From now on, publish and save as the leader. Raises StoreError and NotSavedError.

        `members`: the most recent announcements.
        """
        await self._write_status()
        self._parts.deciding.restart()
        self._parts.saving.restart(self._parts.live.inputs.decisions)
        await self._parts.reconciler.lead()
        await self._parts.overrides.save()
        await self._parts.rollouts.save()
        await self._sharing.take_over(members)

    def tasks(self) -> Mapping[str, Work]:
        """Return the leader's tasks by name."""
        own_tasks = {"heartbeat": self._live, "records of the store": self._keep_records}
        return {**self._role_tasks.deciding, **self._role_tasks.acting, **own_tasks}

    def isolated(self) -> Mapping[str, Work]:
        """Start making decisions only for this member's proxies, without the store, and return the tasks."""
        self._sharing.alone()
        return {**self._role_tasks.deciding, **self._role_tasks.not_acting}

    async def _live(self) -> None:
        while True:
            with suppress(StoreError):
                await self._write_status()
            await asyncio.sleep(INTERVAL)

    async def _keep_records(self) -> None:
        """Sign records that were stored by members without a key or with an older key.

        Then revert changes made by others.
        """
        is_signed = False
        while True:
            with suppress(StoreError):
                if not is_signed and (count := await self._store.sign_again(self.epoch)):
                    log.event("records in the store were signed again", records=count)
                is_signed = True
                if changed := await self._state.write_again(FOLLOWED):
                    log.warn("restored records that another writer had changed in the store", keys=",".join(changed))
            await asyncio.sleep(_LOOK)

    async def _write_status(self) -> None:
        await self._state.save_raw(LEADER, write_leader(self._status()))
