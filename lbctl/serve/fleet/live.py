"""The single path for changes: a source of change provides new inputs, and `apply` composes, publishes and saves them.

Changes are published one at a time, always with the latest inputs. A change that a proxy would reject is logged, and
the published fleet remains unchanged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from lbctl.ir.address import Address
from lbctl.ir.topology import Topology
from lbctl.runtime import log
from lbctl.serve.discovery.guard import unresolved
from lbctl.serve.discovery.interface import Discovered
from lbctl.serve.discovery.service import DiscoveryService
from lbctl.serve.fleet.inputs import FleetInputs, Origin, PickerPlace, Places
from lbctl.serve.fleet.log import PublicationLog, stays
from lbctl.serve.fleet.publisher import PublishedFleet, Publisher, PublishResult
from lbctl.serve.fleet.saver import SAVE_AGAIN, FleetSaver
from lbctl.targets.load import Loaded
from lbctl.xds.build.snapshot_cache import CachedSnapshot, UnsoundError

_FIRST_ANSWER = 5.0
"""Maximum number of seconds that a new fleet waits for name resolution."""
_EMPTY_START = 20.0
"""Maximum number of seconds that the first fleet waits for a pool whose name has no answer, because proxies may still
have its replicas."""


class NoPlaces:
    """For a process without a picker and without a traffic log."""

    def picker(self, topology: Topology) -> PickerPlace:
        """Return no address, because the fleet defines it."""
        del topology
        return PickerPlace()

    def picker_key(self, topology: Topology) -> str:
        """Return no key."""
        del topology
        return ""

    def traffic_log(self, topology: Topology) -> Address | None:
        """Return None, because the log is not received."""
        del topology
        return None


class LiveFleet:
    """The inputs to the published fleet, and the resulting fleet."""

    def __init__(
        self,
        publisher: Publisher,
        discovery: DiscoveryService,
        places: Places,
        saver: FleetSaver,
        publications: PublicationLog,
        inputs: FleetInputs = FleetInputs(),  # noqa: B008 -- a frozen value
        now: Callable[[], float] = time.time,
    ) -> None:
        """Publish nothing yet. `inputs` contains the inputs from the saved state. `now` is the publisher's clock."""
        self._publisher = publisher
        self._discovery = discovery
        self._places = places
        self._saver = saver
        self._publications = publications
        self._inputs = inputs
        self._now = now
        self._previous: CachedSnapshot | None = None
        self._unsaved = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def inputs(self) -> FleetInputs:
        """The latest inputs, which may not have been published yet."""
        return self._inputs

    @property
    def served(self) -> PublishedFleet | None:
        """The published fleet and its inputs; None before the first one."""
        return self._publisher.served

    @property
    def topology(self) -> Topology | None:
        """The published fleet as defined in the files, without discovered replicas; None before the first one."""
        return self.served.loaded.compiled.topology if self.served else None

    @property
    def previous_snapshot(self) -> CachedSnapshot | None:
        """The snapshot that Envoys may still have from the previous process; None if unknown."""
        return self._previous

    @property
    def accepted(self) -> Discovered:
        """The accepted discovery answers."""
        return self.served.accepted if self.served else self._inputs.baseline

    @property
    def turn(self) -> asyncio.Lock:
        """Lock held during a publication. The reconciler holds it while reading and publishing files."""
        return self._turn

    def seconds_to_next_deadline(self) -> float | None:
        """Return the seconds until the passage of time changes the fleet; None if it will not."""
        now = self._now()
        deadline = self.served.composed.next_deadline(now) if self.served else None
        return None if deadline is None else deadline - now

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def apply(self, inputs: FleetInputs, cause: str, *, save: bool = True) -> None:
        """Compose and publish these inputs, and save the state that a restart needs. `cause` is logged.

        Derive the inputs from `self.inputs` without an `await` in between, because they are replaced immediately.
        `save=False` means that nothing needed for a restart has changed, or that `save_soon` will be called. Later
        publications do not wait for the save, because a disk or store may take seconds. Before the first fleet, the
        inputs are only stored.
        """
        self.stage(inputs)
        async with self._turn:
            if self._inputs.loaded is None:
                return
            try:
                result = await self._publish(self._inputs)
            except UnsoundError as error:
                log.findings(error.problems)
                log.error(f"a proxy would reject the change{stays(self._publisher)}", because_of=cause)
                return
            except Exception:  # noqa: BLE001 -- what changed must not end what is served
                log.failure(f"internal error{stays(self._publisher)}", because_of=cause)
                return
            if result is None:
                return
            self._publications.report(result, cause)
        if save:
            await self._saver.save(None)

    def stage(self, inputs: FleetInputs) -> None:
        """Replace the inputs with the leader's records. The caller publishes them with `apply` or with the files."""
        self._inputs = inputs

    async def publish_files(self, loaded: Loaded, origin: Origin, *, allow_shrink: bool = False) -> PublishResult:
        """Publish this fleet together with the other inputs.

        The caller must hold `turn`, and saves the published fleet.

        Raises UnsoundError if a proxy would reject the fleet, in which case nothing changes.
        """
        topology = loaded.compiled.topology
        self._discovery.use_topology(topology)
        try:
            discovered = await self._first_answers(topology)
            before = self._inputs
            result = await self._publish(
                replace(before, loaded=loaded, origin=origin, discovered=discovered), allow_shrink
            )
        except BaseException:
            if self._inputs.loaded is not None:
                self._discovery.use_topology(self._inputs.loaded.compiled.topology)
            raise
        if self._inputs.discovered is not before.discovered:
            discovered = self._inputs.discovered  # for the same topology, and newer
        self._inputs = replace(self._inputs, loaded=loaded, origin=origin, discovered=discovered)
        return result or PublishResult(new=False)

    async def continue_from(self, earlier: Loaded) -> None:
        """Compare later discovery answers with the saved answers for this fleet, published by an earlier process."""
        topology = earlier.compiled.topology
        self._discovery.use_topology(topology)
        self._inputs = replace(self._inputs, baseline=self._discovery.current)
        key = self._places.picker_key(topology)
        self._previous = await self._publisher.build(earlier, self._inputs.baseline, key)

    async def _publish(self, inputs: FleetInputs, allow_shrink: bool = False) -> PublishResult | None:
        topology = inputs.topology
        assert topology is not None, "a fleet was read"
        places = self._places
        here = replace(inputs, picker=places.picker(topology), traffic_log=places.traffic_log(topology))
        return await self._publisher.publish(here, allow_shrink=allow_shrink)

    async def _first_answers(self, topology: Topology) -> Discovered:
        """Wait for the first discovery answers; wait longer for the first fleet, which proxies may already have."""
        deadline = asyncio.get_running_loop().time() + _EMPTY_START
        discovered = await self._discovery.first(_FIRST_ANSWER)
        while missing := unresolved(topology, discovered):
            if self.served is not None or asyncio.get_running_loop().time() > deadline:
                log.warn("pools without resolved addresses; they return 503", pools=",".join(missing))
                break
            await asyncio.sleep(0.1)
            discovered = self._discovery.current
        return discovered

    # ── Saving ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def save_soon(self) -> None:
        """Request that `keep_saved` save the published fleet soon."""
        self._unsaved.set()

    async def keep_saved(self) -> None:
        """Save when `save_soon` is called, and retry failed saves (for example, on a full disk), until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SAVE_AGAIN):
                    await self._unsaved.wait()
            if self._unsaved.is_set() or self._saver.is_pending:
                await self._save_between_changes()

    async def end(self) -> None:
        """Save any changes that `keep_saved` has not saved yet."""
        if self._unsaved.is_set():
            await self._save_between_changes()

    async def _save_between_changes(self) -> None:
        async with self._turn:
            self._unsaved.clear()
        try:
            await self._saver.save(None)
        except asyncio.CancelledError:
            self._unsaved.set()
            raise
