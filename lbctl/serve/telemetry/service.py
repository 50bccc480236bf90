"""Runs telemetry: passes the reports of the scraper to the control loop, and publishes and saves the loop's output.

A new output is published as soon as the one before is sent, so that several decisions in a short time become one
snapshot. The output is saved for a restart: weights are valid for a minute, since their evidence ages, and an ejected
replica stays ejected until it has proved again that it is healthy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lbctl.control.loop_output import LoopOutput, controlled
from lbctl.ir.pools import Pool
from lbctl.serve import log
from lbctl.serve.fleet.publisher import PublishedFleet, Publisher
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.guard import Guard, Work
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.serve.state.audit import AuditLog
from lbctl.serve.state.authority import Authority
from lbctl.serve.state.interface import StoreError
from lbctl.serve.state.saved import SavedState
from lbctl.serve.telemetry.control_loop import ControlLoop, InFlightOf
from lbctl.serve.telemetry.decision_audit import DecisionAudit
from lbctl.serve.telemetry.scraper import Scraper
from lbctl.signals.plan import ScrapePlan, scrape_plan

_WEIGHTS_MAX_AGE = 60.0
"""Seconds for which the weights of an earlier process are used."""
_SAVE_CHANGED = 1.0
"""The shortest time between two writes, in seconds."""
SAVE_SHARED = 0.1
"""That time where other members follow what is written."""
_UNSURE = 0.1
"""Seconds between two looks at whether this process may decide again."""
_SAVE_UNCHANGED = 20.0
"""Seconds after which an unchanged output is written again, so that its time is recent."""


async def saved_loop_output(state: SavedState, now: float) -> LoopOutput:
    """Load the output of the control loop of an earlier process, without weights that are too old.

    `now`: in seconds since the epoch. Raises StoreError.
    """
    record = await state.loop_output()
    if record is None:
        return LoopOutput()
    output, at = record
    return output if now - at <= _WEIGHTS_MAX_AGE else replace(output, weights={})


class Telemetry:
    """The scraper and the control loop of a fleet."""

    def __init__(
        self,
        publisher: Publisher,
        reconciler: Reconciler,
        latency: LatencyMetrics,
        state: SavedState,
        saved: LoopOutput,
        audit: AuditLog,
        in_flight: InFlightOf,
        guard: Guard,
        authority: Authority | None = None,
        save_interval: float = _SAVE_CHANGED,
    ) -> None:
        """Start with the output of the control loop that an earlier process has saved.

        Nothing is published without the `authority` to decide. `save_interval`: seconds between two writes.
        """
        self._authority = authority or Authority.unlimited()
        self._save_interval = save_interval
        self._decisions = DecisionAudit(audit)
        self.loop = ControlLoop(
            self._output_changed, latency, saved, in_flight=in_flight, on_effect=self._decisions.note
        )
        self.scraper = Scraper(self.loop.report, guard)
        self._publisher = publisher
        self._reconciler = reconciler
        self._latency = latency
        self._state = state
        self._changed = asyncio.Event()
        self._pools: tuple[Pool, ...] | None = None
        self._saved: tuple[LoopOutput, float] = (saved, 0.0)
        publisher.set_loop_output(saved)
        publisher.subscribe("telemetry: new fleet", self.follow)

    def follow(self, served: PublishedFleet) -> None:
        """Scrape and control the pools of this fleet from now on."""
        topology = served.composed.whole.topology
        self.loop.follow(topology)
        pools = controlled(topology)
        if pools != self._pools:
            self._pools = pools
            self.scraper.watch(_plans(pools))
            self._decisions.keep({(pool.name, item.name) for pool in pools for item in pool.replicas})

    def eject(self, ejected: Mapping[str, frozenset[str]]) -> None:
        """Set the replicas that active health checks have ejected: pool → names."""
        self.loop.eject(ejected)

    def tasks(self) -> Mapping[str, Work]:
        """Return the tasks of telemetry by name; they run as long as the process."""
        return {**self.tasks_of_decisions(), "save decisions": self.save_periodically}

    def tasks_of_decisions(self) -> Mapping[str, Work]:
        """Return the tasks that decide and publish, without the one that saves."""
        return {"scraper": self.scraper.run, "control loop": self.loop.run, "publish decisions": self._publish}

    def adopt(self, output: LoopOutput) -> None:
        """Take the output that the leader has decided; it is in force with the next publication."""
        self.loop.adopt(output)
        self._publisher.set_loop_output(output)

    def restart(self) -> None:
        """Decide from now on, beginning with the output that is in force, which is saved anew."""
        self.loop.adopt(self._publisher.loop_output)
        self._saved = (LoopOutput(), 0.0)
        self._changed.clear()
        if self._publisher.served is not None:
            self.follow(self._publisher.served)

    async def save(self) -> None:
        """Save the output of the control loop for a restart, where that is due, and record its decisions."""
        await self._decisions.save()
        output, now = self.loop.output, time.time()
        if self._needs_saving(output, now):
            try:
                await self._state.save_loop_output(output, now)
                self._saved = (output, now)
            except StoreError as error:
                log.error(f"the weights and ejections cannot be saved for a restart: {error}")

    def _output_changed(self) -> None:
        self._changed.set()

    async def _publish(self) -> None:
        while True:
            await self._changed.wait()
            while not self._authority.decides:
                await asyncio.sleep(_UNSURE)
            self._changed.clear()
            self._latency.sending(self.loop.sampled_at)
            self._publisher.set_loop_output(self.loop.output)
            await self._reconciler.refresh("signals", save=False)
            self._latency.sent()

    async def save_periodically(self) -> None:
        """Save what is decided until the task is cancelled."""
        while True:
            await asyncio.sleep(self._save_interval)
            if self._is_due(time.time()):
                await self.save()

    def _is_due(self, now: float) -> bool:
        """Whether to save now: ejections at once, weights alone once a second, since a store may keep each version."""
        before, at = self._saved
        return self.loop.output.ejections != before.ejections or not 0 <= now - at < _SAVE_CHANGED

    def _needs_saving(self, output: LoopOutput, now: float) -> bool:
        before, at = self._saved
        return output != before or (now - at >= _SAVE_UNCHANGED and bool(output.weights or output.ejections))


def _plans(pools: Iterable[Pool]) -> list[ScrapePlan]:
    plans = (scrape_plan(pool, replica) for pool in pools for replica in pool.replicas)
    return [item for item in plans if item is not None]
