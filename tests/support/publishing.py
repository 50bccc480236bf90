"""A live fleet without the other parts of `lbctl serve`: it composes and publishes in this process, and saves in
memory."""

from __future__ import annotations

import time
from collections.abc import Callable

from lbctl.runtime.guard import Guard
from lbctl.serve.api.events import EventLog
from lbctl.serve.discovery.service import DiscoveryService
from lbctl.serve.fleet.history import FleetHistory, RestoredHistory
from lbctl.serve.fleet.inputs import FleetInputs, Places
from lbctl.serve.fleet.live import LiveFleet, NoPlaces
from lbctl.serve.fleet.log import PublicationLog, ReloadLog
from lbctl.serve.fleet.publisher import PublishedFleet, Publisher
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.saver import FleetSaver
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.metrics.instruments import Metrics
from lbctl.store.audit import AuditLog
from lbctl.store.memory import MemoryStore
from lbctl.store.saved import SavedState
from lbctl.targets.load import Loaded


class Publishing:
    """The parts that publish a fleet, connected."""

    def __init__(
        self,
        paths: tuple[str, ...] = (),
        *,
        publisher: Publisher | None = None,
        metrics: Metrics | None = None,
        guard: Guard | None = None,
        now: Callable[[], float] = time.time,
        places: Places | None = None,
        inputs: FleetInputs = FleetInputs(),  # noqa: B008 -- a frozen value
        state: SavedState | None = None,
    ) -> None:
        metrics = metrics or Metrics()
        state = state or SavedState(MemoryStore(), lambda _: None)
        self._paths, self._state, self._metrics, self._events = paths, state, metrics, EventLog()
        self.publisher = publisher or Publisher(metrics, guard=guard, now=now)
        self.discovery = DiscoveryService(guard or Guard())
        self._audit = AuditLog(state)
        self._history = FleetHistory(paths, state, RestoredHistory())
        self._saver = FleetSaver(self.publisher, state, self._history)
        self._publications = PublicationLog(self.publisher, self._events, self._audit)
        self.live = LiveFleet(
            self.publisher, self.discovery, places or NoPlaces(), self._saver, self._publications, inputs, now
        )

    @property
    def served(self) -> PublishedFleet:
        """Return the published fleet. There must be one."""
        assert self.live.served is not None
        return self.live.served

    async def publish(self, loaded: Loaded, *, allow_shrink: bool = False) -> PublishedFleet:
        """Publish a fleet as if it were read from the files, and return it."""
        async with self.live.turn:
            await self.live.publish_files(loaded, "files", allow_shrink=allow_shrink)
        return self.served

    def reconciler(self) -> Reconciler:
        """Return the reconciler, which reads the files."""
        reloads = ReloadLog(self.publisher, self._metrics, self._events)
        return Reconciler(
            self._paths, self.live, FleetWatcher(self._paths), self._saver, self._publications, reloads, self._state,
            self._audit, self._history, self._events,
        )  # fmt: skip

    async def end(self) -> None:
        """Stop the sources of replicas."""
        await self.discovery.stop()


async def open_nothing(_loaded: Loaded, _can_be_served: bool) -> None:
    """Open no endpoints for the first fleet."""


async def publish_files(live: LiveFleet, loaded: Loaded, *, allow_shrink: bool = False) -> None:
    """Publish a fleet in the parts of `lbctl serve` as if it were read from the files."""
    async with live.turn:
        await live.publish_files(loaded, "files", allow_shrink=allow_shrink)
