"""The picker as managed by the control plane: the table feed, the child process, and its reports.

While another process is using the picker's address, or no picker is started there, the proxies do not get a picker
address.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from lbctl.api import schema
from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls
from lbctl.ir.topology import Topology
from lbctl.picker.messages import PickerQuestion
from lbctl.picker.reports import PickerReport
from lbctl.picker.statistics import DecisionSample, QueueStatistics
from lbctl.runtime import log
from lbctl.runtime.guard import Guard, Work
from lbctl.serve.fleet.inputs import PickerPlace
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.picker.cached_tokens import CacheComparison, CacheUses
from lbctl.serve.picker.child import PickerChild, PickerEndedError, PickerState
from lbctl.serve.picker.explanation import explanation_of
from lbctl.serve.picker.fallbacks import Fallbacks, RecentPicks
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.generated_key import needs_own_key
from lbctl.serve.picker.ports import Occupant, is_free, occupant
from lbctl.serve.picker.recent_queues import QueueState, RecentQueues
from lbctl.serve.picker.standalone import PickerAlone
from lbctl.serve.picker.tables import FleetMeasurements, picked_pools
from lbctl.targets.picker import exposed

_FIRST_PAUSE = 0.25
"""Seconds before a picker that has ended is restarted; the pause doubles with each failure."""
_MAX_PAUSE = 5.0
"""Maximum pause before a restart, in seconds."""
_LATE = 3.0
"""Seconds without a report after which the picker is not considered running; it reports once per second."""
_LOOK = 1.0
"""Seconds between checks of whether an address is free."""
_RETURN = 20.0
"""Seconds for which another picker's address is left free, because its `serve` or `lbctl picker` may be restarting."""
_RESTART = 3.0
"""Seconds for which an address is left free after an unknown process has released it, because an `lbctl picker` may be
restarting."""
_CLOSER_LOOKS = 5
"""Number of further checks before an unknown process is considered a different process."""
_CLOSER_LOOK = 0.1
"""Seconds between these checks."""
_SAMPLES = 500
_MOVE = "set another port in control.picker.bind or --picker-bind"


class PickerManager:
    """`measure` returns the fleet's measurements, and `tls` returns the xDS TLS settings, for a picker beyond loopback.

    `bind` is the address given on the command line; None if the fleet determines it. `requests` returns a map from
    pools to the number of requests reported by proxies, and `own_key` returns the key for picker requests if the fleet
    does not name one. `memory` returns the directory for the picker's affinity memory; None if the memory is not saved.
    `suspect` is called with each report; its argument maps each pool served by the picker to the stalled replicas.
    """

    def __init__(
        self,
        measure: Callable[[], FleetMeasurements],
        tls: Callable[[], ServerTls | None],
        failed: Callable[[str], None],
        requests: Callable[[], Mapping[str, int]],
        suspect: Callable[[Mapping[str, frozenset[str]]], None],
        *,
        own_key: Callable[[], str],
        memory: Callable[[], Path | None],
        bind: Address | None,
        dry_run: bool,
        insecure: bool,
    ) -> None:
        self.feed = Feed(measure)
        self.samples: deque[DecisionSample] = deque(maxlen=_SAMPLES)
        """Samples of decisions, newest last."""
        self.fallbacks = Fallbacks(requests)
        self.caches = CacheComparison()
        """Cached tokens, as expected by pickers and as found by engines."""
        self.queues = RecentQueues()
        self._suspect = suspect
        self._tls = tls
        self._dry_run = dry_run
        self._insecure = insecure
        self._option = bind
        self._own_key = own_key
        self._key, self._made_key = "", ""
        self._place_changed = asyncio.Event()
        self._bind: Address | None = None
        self._child = PickerChild(self.feed, self._places, self._reported, lambda: self._key, memory)
        self.alone = PickerAlone()
        """An `lbctl picker` at the address that was not started by this process."""
        self._guard = Guard(failed, (), _FIRST_PAUSE, _MAX_PAUSE, (PickerEndedError,))
        self.problem = ""
        """Reason why no picker is started although a pool needs one; otherwise empty."""
        self._probed: Address | None = None
        self.taken = ""
        """The foreign process that is using the picker's address; empty if there is none."""
        self._occupied = ""
        """The process that must exit before the picker can start; empty if there is none."""

    @property
    def state(self) -> PickerState:
        """The process's state."""
        return self._child.state

    @property
    def running(self) -> bool:
        """Whether the process is running and sending reports, which shows that it is not hung.

        An `lbctl picker` at the address is included.
        """
        heard = self.alone.heard
        if heard is not None:
            return time.monotonic() - heard < _LATE
        return self._child.state.pid is not None and 0.0 <= self._silence < _LATE

    @property
    def report(self) -> PickerReport:
        """The process's newest report."""
        return self.alone.report if self.alone.heard is not None else self._child.state.report

    @property
    def reason(self) -> str:
        """Reason why it is not running; empty if it is running or starting."""
        if self.running:
            return ""
        is_silent = self._child.state.pid is not None and self._silence >= _LATE
        silence = f"the picker hangs: it has reported nothing for {self._silence:.0f} s" if is_silent else ""
        taken = f"{self.taken}; {_MOVE}" if self.taken else ""
        return self.problem or silence or taken or self.alone.problem or self._occupied or self._child.state.problem

    @property
    def _silence(self) -> float:
        """Seconds since the process's last report; negative before its first report."""
        heard = self._child.state.heard
        return -1.0 if heard is None else time.monotonic() - heard

    @property
    def bind(self) -> Address | None:
        """The picker's listen address; None if no pool needs it."""
        return self._bind

    def recent(self) -> Mapping[str, RecentPicks]:
        """Map each pool to its picks in the last minute; empty if other pickers also have the tables."""
        return self.fallbacks.recent() if self.feed.subscribers <= 1 else {}

    def recent_cached(self) -> CacheUses:
        """Return the latest cached-token counts for each replica; empty while the picker is not running."""
        return self.caches.recent if self.running else {}

    def recent_queues(self) -> Mapping[str, QueueState]:
        """Map each pool that has a queue to its queue; empty while the picker is not running."""
        if not self.running:
            return {}
        recent, tenants = self.queues.recent(), self.report.waiting_tenants
        return {
            name: QueueState(table.policy.queue, recent.get(name, QueueStatistics()), tenants.get(name, {}))
            for name, table in self.feed.tables.items()
            if table.policy.queue is not None
        }

    def use_fleet(self, served: PublishedFleet) -> None:
        """From now on, pick replicas for this fleet."""
        pools = picked_pools(served)
        self._bind = self._address(served.composed.whole.topology) if pools else None
        names = [pool.name for pool in pools]
        self.fallbacks.use_pools(names)
        self.caches.use_pools(names)
        self._check_exposure(served)
        self._key = served.composed.snapshot.picker_key
        self.feed.use_fleet(served)
        self._child.check_again()

    def place(self, topology: Topology) -> PickerPlace:
        """Return the picker address for this fleet's proxies.

        The address is probed before the first fleet that uses it is published. After that, the picker process shows
        whether it is free.
        """
        address = self._address(topology)
        is_picked = any(pool.balance.pick is not None for pool in topology.pools)
        if is_picked and not self._dry_run and address != self._probed:
            self._note_taken(self._who_else_has(address))
        self._probed = address if is_picked else None
        is_refused = not self._insecure and exposed(address, topology.control.picker_tls(address)) is not None
        return PickerPlace(address, is_picked and (bool(self.taken) or is_refused), self.own_key(topology))

    def own_key(self, topology: Topology) -> str:
        """Return the key for picker requests created by this process.

        The result is empty if this fleet has a different key or none.
        """
        if self._dry_run or not needs_own_key(topology):
            return ""
        self._made_key = self._made_key or self._own_key()
        return self._made_key

    def tasks(self) -> Mapping[str, Work]:
        """Return the tasks by name; they run until the process exits."""
        return {"tables of the picker": self.feed.run, "picker": self._run}

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever the result of `place` changes because another process has taken or released the address."""
        while True:
            await self._place_changed.wait()
            self._place_changed.clear()
            yield

    async def explain(self, pool: str, question: PickerQuestion) -> schema.PickExplanation | None:
        """Return how the running picker would handle a request to the pool.

        Return None if no picker responds or if it does not have a table for the pool. Raises SchemaError.
        """
        explained = await (self._child if self.alone.pid is None else self.alone).explain(question)
        return None if explained is None else explanation_of(pool, explained)

    def end(self) -> None:
        """End the table streams."""
        self.feed.close()

    async def _run(self) -> None:
        try:
            await self._guard.keep("picker", self._run_child)
        finally:
            self._child.close()

    async def _run_child(self) -> None:
        await self._until_free()
        try:
            await self._child.run()
        except PickerEndedError:
            if self._bind is not None:
                self._set_taken(self._who_else_has(self._bind))
            raise

    async def _until_free(self) -> None:
        """Wait until the picker's address is free, and record the process that is using it.

        Return immediately if no picker is started.
        """
        found: Occupant | None = None
        waits_for: Address | None = None
        kept_until, unknown_until = 0.0, math.inf
        while (places := self._places()) is not None and not self._child.keeps(places[0]):
            now = time.monotonic()
            if waits_for is None and self.taken:  # recorded before the first check; the process may have ended since
                waits_for, kept_until = places[0], now + _RETURN
            if not is_free(places[0]):
                if places[0] != waits_for:
                    waits_for, found, kept_until, unknown_until = places[0], None, now, math.inf
                if found is None or found.pid is None or found.is_gone:
                    found = await self._identified(places[0], unknown_until)
                    if self._places() != places:
                        found = None
                        continue
                    self._note_occupant(found)
                now = time.monotonic()
                if found is None:  # only once, so that a foreign process does not remain unknown
                    unknown_until = min(unknown_until, now + _RESTART)
                    kept_until = max(kept_until, unknown_until)
                elif self.taken or found.is_picker_alone:
                    kept_until = now + _RETURN
                await self._look_at(places[0], found)
            elif (places[0] != waits_for or now >= kept_until) and now >= self.feed.alone_at(places[0]) + _RETURN:
                break
            else:
                self._note_reserved(places[0])
                found = None
            await asyncio.sleep(_LOOK)
        self._occupied = ""
        self.alone.forget()

    def _note_occupant(self, found: Occupant | None) -> None:
        if found is not None:
            self._occupied = found.text
            self._set_taken(self._other(found))

    def _note_reserved(self, bind: Address) -> None:
        if self.taken:
            self._set_taken(f"{bind} is reserved for {_RETURN:g} s for the process that used it")

    async def _identified(self, bind: Address, unknown_until: float) -> Occupant | None:
        """Return the process that is using the picker's address; None if the address is free.

        A process is unknown while it is closing its ports or starting to listen. Until `unknown_until` (in monotonic
        time), an unknown process is checked a few more times.
        """
        found = occupant(bind)
        for _ in range(_CLOSER_LOOKS):
            if found is None or found.pid is not None or self.taken or time.monotonic() >= unknown_until:
                break
            await asyncio.sleep(_CLOSER_LOOK)
            found = occupant(bind)
        return found

    async def _look_at(self, bind: Address, found: Occupant | None) -> None:
        """Read the counts from the process at the address, if it is an `lbctl picker`."""
        if found is None or found.pid is None or not found.is_picker_alone:
            self.alone.forget()
        elif await self.alone.look(bind, found.pid, self._key):
            self._count(-found.pid, self.alone.report, is_alone=True)

    def _other(self, found: Occupant | None) -> str:
        """Describe the process at the picker's address.

        Return an empty string if the address is free or is used by this fleet's picker.
        """
        is_own = found is not None and found.pid is not None and found.pid == self.state.pid
        return "" if found is None or is_own or found.is_picker_alone else found.text

    def _who_else_has(self, bind: Address) -> str:
        """Describe the process at the picker's address.

        Return an empty string if the address is free or is used by `serve` or this fleet.
        """
        return "" if self._child.keeps(bind) else self._other(occupant(bind))

    def _address(self, topology: Topology) -> Address:
        return self._option or topology.control.picker_bind

    def _set_taken(self, taken: str) -> None:
        """Record which other process uses the address, and republish the fleet if this changes the picker address."""
        if bool(taken) != bool(self.taken):
            self._place_changed.set()
        self._note_taken(taken)

    def _note_taken(self, taken: str) -> None:
        if taken and not self.taken:
            log.error(
                "another process is using the picker's address, so proxies do not use the picker and fall back to "
                f"`otherwise` ({_MOVE})",
                why=taken,
            )
        elif self.taken and not taken:
            log.event("the picker's address is free again, so proxies use the picker")
        self.taken = taken

    def _places(self) -> tuple[Address, ServerTls | None] | None:
        """Return the child process's listen address; None if there is none."""
        bind = self._bind
        if bind is None or self._dry_run:
            return None
        return None if self.problem else (bind, None if bind.on_loopback else self._tls())

    def _check_exposure(self, served: PublishedFleet) -> None:
        """Reject an address that would be exposed to untrusted clients, and log this once."""
        finding = exposed(self._bind, self._tls()) if self._bind is not None and not self._insecure else None
        problem = finding.message if finding is not None else ""
        if finding is not None and problem != self.problem:
            log.findings([served.loaded.compiled.sources.with_position(finding)])
        self.problem = problem

    def _reported(self, report: PickerReport) -> None:
        if self.state.address == self._probed:
            self._set_taken("")
        self._count(self.state.starts, report)

    def _count(self, process: int, report: PickerReport, *, is_alone: bool = False) -> None:
        self.fallbacks.reported(process, report, is_alone=is_alone)
        self.queues.reported(process, report)
        self.caches.update(process, report.expected_cached, self.feed.cached_tokens)
        self.samples.extend(report.samples)
        picked = self.feed.tables  # an `lbctl picker` run by another user must not lower other pools' weights
        self._suspect({pool: frozenset(names) for pool, names in report.stalled.items() if pool in picked})
