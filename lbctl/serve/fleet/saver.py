"""Saves the published state for a restart: the fleet, the discovery answers, the drains and the history."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from lbctl.control.drains import Since
from lbctl.runtime import log
from lbctl.serve.fleet.history import FleetHistory
from lbctl.serve.fleet.publisher import Publisher
from lbctl.store.interface import StoreError
from lbctl.store.records import SavedFleet
from lbctl.store.saved import SavedState

SAVE_AGAIN = 5.0
"""Seconds before a failed save is retried."""


class FleetSaver:
    """Saves changes to the published state. A failed save is logged and remains pending.

    Saves run one after another, in the order in which they were requested.
    """

    def __init__(
        self, publisher: Publisher, state: SavedState, history: FleetHistory, drains: Since | None = None
    ) -> None:
        """`drains`: the drains in the saved state; None if none were saved."""
        self.is_pending = False
        """Whether a save has failed and no save has succeeded since."""
        self._publisher = publisher
        self._state = state
        self._history = history
        self._saved: SavedFleet | None = None
        self._newest: SavedFleet | None = None
        """The published files, which may not have been saved if a save has failed."""
        self._turn = asyncio.Lock()
        self._drains: Since | None = drains or {}
        """The drains as saved; None if unknown."""

    @property
    def fleet(self) -> SavedFleet | None:
        """The published fleet in its saved form; None before the first one."""
        return self._newest or self._saved

    def restored(self, saved: SavedFleet | None) -> None:
        """Record that the saved state contains this fleet."""
        self._saved = saved

    def save_later(self) -> None:
        """Mark the state to be saved again, because it may be newer than the published fleet."""
        self.is_pending = True

    async def save_all(self, earlier: SavedFleet | None) -> None:
        """Save everything the next time, because the contents of the saved state are unknown.

        `earlier`: the previous leader's fleet, which stays published until the next publication; None if there is none.
        """
        async with self._turn:
            self._newest = earlier or self._newest
            self._saved, self._drains, self.is_pending = None, None, True

    async def save(self, saved: SavedFleet | None) -> None:
        """Save the published fleet, the discovery answers and the drains, if they have changed."""
        served = self._publisher.served
        if served is None:
            return
        answers, drains = served.accepted.answers, dict(served.composed.drains)
        self._newest = files = saved or self._newest or self._saved
        fleet = replace(files, discovered=answers, version=served.cached_snapshot.version) if files else None
        async with self._turn:
            try:
                await self._write(fleet, drains)
            except StoreError as error:
                if not self.is_pending:
                    log.error(f"cannot save the published state; retrying every {SAVE_AGAIN:g} s: {error}")
                self.is_pending = True
            else:
                if self.is_pending:
                    log.event("published state saved again")
                self.is_pending = False

    async def _write(self, fleet: SavedFleet | None, drains: Since) -> None:
        if fleet is not None and fleet != self._saved:
            await self._state.save_fleet(fleet)
            self._saved = fleet
        if drains != self._drains:
            await self._state.save_drains(drains)
            self._drains = drains
        await self._history.save()
