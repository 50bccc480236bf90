"""The picker as the control plane has it: the feed of tables, the child process, and what it reports."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.guard import Guard, Work
from lbctl.serve.picker.child import PickerChild, PickerEndedError, PickerState
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.tables import FleetMeasurements, picked_pools
from lbctl.serve.traffic.ledger import TrafficLedger

_FIRST_PAUSE = 0.25
"""Seconds before a picker that has ended is started again; the pause doubles with each failure."""
_LONGEST_PAUSE = 5.0
"""The longest of those pauses, in seconds."""
_SAMPLES = 500


class PickerManager:
    """`measure` returns what is measured of the fleet, `tls` the TLS of xDS, for a picker beyond loopback."""

    def __init__(
        self,
        measure: Callable[[], FleetMeasurements],
        tls: Callable[[], ServerTls | None],
        failed: Callable[[str], None],
        *,
        dry_run: bool,
        insecure: bool,
    ) -> None:
        self.feed = Feed(measure)
        self.samples: deque[Mapping[str, Any]] = deque(maxlen=_SAMPLES)
        """Samples of decisions, the newest last."""
        self._counted_for, self._before = 0, Counter[str]()
        self._tls = tls
        self._dry_run = dry_run
        self._insecure = insecure
        self._bind: Address | None = None
        self._child = PickerChild(self.feed, self._places, self._reported)
        self._guard = Guard(failed, (), _FIRST_PAUSE, _LONGEST_PAUSE, (PickerEndedError,))
        self.problem = ""
        """Why no picker is started although a pool needs one; empty otherwise."""

    @property
    def state(self) -> PickerState:
        """What is known of the process."""
        return self._child.state

    @property
    def bind(self) -> Address | None:
        """Where the picker listens; None where no pool needs it."""
        return self._bind

    def follow(self, served: PublishedFleet) -> None:
        """Pick for this fleet from now on."""
        self._bind = served.composed.whole.topology.control.picker_bind if picked_pools(served) else None
        self.feed.follow(served)
        self._child.follow()

    def tasks(self) -> Mapping[str, Work]:
        """Return the tasks by name; they run as long as the process."""
        return {"tables of the picker": self.feed.run, "picker": self._run}

    def fallbacks(self, ledger: TrafficLedger) -> Mapping[str, int]:
        """Return pool → the requests that proxies have sent without a pick since the picker was started."""
        totals: Counter[str] = Counter()
        for (_, key), counts in ledger.totals().items():
            totals[key.pool] += counts.requests
        if self._counted_for != self.state.starts:
            self._counted_for, self._before = self.state.starts, totals
        finished = self.state.report.get("finished", {})
        return {pool: max(0, totals[pool] - self._before[pool] - finished.get(pool, 0)) for pool in self.feed.tables}

    async def explain(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return how the running picker would decide about a request; None where it does not answer."""
        return await self._child.explain(question)

    def end(self) -> None:
        """End the streams of tables."""
        self.feed.close()

    async def _run(self) -> None:
        await self._guard.keep("picker", self._child.run)

    def _places(self) -> tuple[Address, ServerTls | None] | None:
        """Return where the child listens; None where there is none."""
        bind = self._bind
        if bind is None or self._dry_run:
            return None
        tls = None if bind.on_loopback else self._tls()
        is_open = not bind.on_loopback and not self._insecure and (tls is None or tls.client_ca is None)
        self.problem = f"{bind} would be open to whoever connects" if is_open else ""
        return None if is_open else (bind, tls)

    def _reported(self, report: Mapping[str, Any]) -> None:
        self.samples.extend(report.get("samples", ()))
