"""Runs telemetry: passes the reports of the scraper to the control loop, and publishes and saves the loop's output.

A new output is published as soon as the one before is sent, so that several decisions in a short time become one
snapshot. The output is saved for a restart: weights are valid for a minute, since their evidence ages, and an ejected
replica stays ejected until it has proved again that it is healthy.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from lbctl.control.loop_output import LoopOutput, controlled
from lbctl.control.overrides import frozen
from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import key_of
from lbctl.runtime import log
from lbctl.runtime.guard import Guard, Work, end_tasks
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.serve.telemetry.control_loop import ControlLoop, RequestsOf
from lbctl.serve.telemetry.decision_audit import DecisionAudit
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.serve.telemetry.scraper import Scraper
from lbctl.signals.plan import ScrapePlan, scrape_plan
from lbctl.store.audit import AuditLog
from lbctl.store.interface import StoreError
from lbctl.store.lease import Authority
from lbctl.store.saved import SavedState

_WEIGHTS_MAX_AGE = 60.0
"""Seconds for which the weights of an earlier process are used."""
_SAVE_CHANGED = 1.0
"""The shortest time between two writes, in seconds."""
_PUBLISH_INTERVAL = 0.1
"""The shortest time between two publications where other members follow what is written, in seconds."""
_BYTES_PER_SECOND = 500_000
"""What the publications of one second may add to the store, which may keep each version."""
_WRITE = 0.2
"""Seconds for which a publication waits until the other members can have it."""
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


@dataclass(frozen=True, slots=True)
class Control:
    """The control loop, and what follows its decisions."""

    loop: ControlLoop
    """Decides on reports of the scraper."""
    changed: asyncio.Event
    """Is set when the output of the loop has changed."""
    audit: DecisionAudit
    """Collects the decisions for the audit log."""

    @classmethod
    def of(
        cls,
        saved: LoopOutput,
        audit: AuditLog,
        latency: LatencyMetrics,
        requests_of: RequestsOf,
        ejected: Callable[[], Mapping[str, frozenset[str]]],
    ) -> Control:
        """Return a loop that continues from the decisions `saved`; `ControlLoop` describes the other arguments."""
        decisions, changed = DecisionAudit(audit), asyncio.Event()
        decisions.adopt(saved)
        loop = ControlLoop(
            changed.set, latency, saved, requests_of=requests_of, on_effect=decisions.note, ejected=ejected
        )
        return cls(loop, changed, decisions)


class TelemetryService:
    """The scraper and the control loop of a fleet."""

    def __init__(
        self,
        live: LiveFleet,
        latency: LatencyMetrics,
        state: SavedState,
        control: Control,
        guard: Guard,
        authority: Authority | None = None,
        shared: bool = False,
    ) -> None:
        """Start with the decisions that are in force.

        Nothing is published without the `authority` to decide. `shared`: other members follow what is saved.
        """
        self._authority = authority or Authority.unlimited()
        self._shared = shared
        self._follows = shared
        """Whether another member decides on what is scraped here."""
        self._owns: Callable[[str], bool] = lambda _: True
        self._measured: dict[tuple[str, str], ScrapeReport] = {}
        self._restarted: dict[tuple[str, str], float] = {}
        """(pool, replica) → when its counters had started again last, where that was not announced yet."""
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        """The write that a publication may no longer wait for."""
        self._pace = _PUBLISH_INTERVAL
        self.plans: Mapping[tuple[str, str], ScrapePlan] = {}
        """(pool, replica) → how its metrics are scraped, by whichever member."""
        self._patience: Mapping[str, float] = {}
        self._decisions, self._changed = control.audit, control.changed
        self.loop = control.loop
        self.scraper = Scraper(self._scraped, guard)
        self._live = live
        self._latency = latency
        self._state = state
        self._failure = log.LastingFailure("the weights and ejections are saved for a restart again")
        self._pools: tuple[Pool, ...] | None = None
        self._keys: Mapping[str, tuple[str, str]] = {}
        """Pool → the header with the key that its replicas ask for, and its value."""
        self._saved: tuple[LoopOutput, float] = (live.inputs.decisions, 0.0)

    def use_fleet(self, served: PublishedFleet) -> None:
        """Scrape and control the pools of this fleet from now on."""
        topology = served.composed.whole.topology
        self.loop.use_topology(topology)
        self.loop.freeze(frozen(served.composed.overrides))
        pools = controlled(topology)
        keys = {pool.name: key for pool in pools if (key := key_of(pool, served.composed.whole.secrets))}
        if pools != self._pools or keys != self._keys:
            self._pools, self._keys = pools, keys
            self.plans = {(item.pool, item.replica): item for item in _plans(pools, keys)}
            self._patience = _patience(self.plans.values())
            self._watch()
            self._decisions.keep({(pool.name, item.name) for pool in pools for item in pool.replicas})

    def note_state(self, action: str, pool: str, replica: str, reason: str) -> None:
        """Record that a replica is down or back, where this process records decisions."""
        if self._authority.acts:
            self._decisions.note_state(action, pool, replica, reason)

    def tasks(self) -> Mapping[str, Work]:
        """Return the tasks of telemetry by name; they run as long as the process."""
        return {**self.tasks_of_decisions(), "save decisions": self.save_periodically}

    def tasks_of_decisions(self) -> Mapping[str, Work]:
        """Return the tasks that decide and publish, without the one that saves."""
        return {**self.tasks_of_scraping(), "control loop": self.loop.run, "publish decisions": self._publish}

    def tasks_of_scraping(self) -> Mapping[str, Work]:
        """Return the task that scrapes."""
        return {"scraper": self.scraper.run}

    # ── Shared among members ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def pools(self) -> tuple[str, ...]:
        """The names of the pools with telemetry."""
        return tuple(pool.name for pool in self._pools or ())

    def patience(self, pool: str) -> float:
        """Return the seconds after which a sample of this pool no longer counts."""
        return self._patience.get(pool, math.inf)

    def share(self, owns: Callable[[str], bool]) -> None:
        """Scrape the pools that this member `owns` now, and no others. Call it when that has changed."""
        self._owns = owns
        self._watch()

    def measured(self, part: int = 0, parts: int = 1) -> dict[tuple[str, str], ScrapeReport]:
        """Return the last report of each replica that is scraped here for another member to decide on, or a part."""
        return {
            key: replace(report, restarted=key in self._restarted)
            for key, report in islice(self._measured.items(), part, None, parts)
        }

    def announced(self, measured: Mapping[tuple[str, str], ScrapeReport]) -> None:
        """Note that others have these reports: that counters have started again is announced once."""
        for key, report in measured.items():
            if self._restarted.get(key, math.inf) <= report.at:
                del self._restarted[key]

    def take(self, reports: Iterable[ScrapeReport]) -> None:
        """Decide on reports of other members."""
        for report in reports:
            self.loop.report(report)

    def source_states(self, pool: str, replica: str) -> tuple[SourceState, ...]:
        """Return the state of each source of a replica, whoever scrapes it; empty where nothing is known."""
        report = self.loop.reports.get((pool, replica))
        return self.scraper.states(pool, replica) or (report.sources if report else ())

    def _watch(self) -> None:
        owned = {pool: self._owns(pool) for pool in self.pools}
        self._measured = {key: item for key, item in self._measured.items() if owned.get(key[0])}
        self._restarted = {key: at for key, at in self._restarted.items() if key in self._measured}
        self.scraper.watch(plan for (pool, _), plan in self.plans.items() if owned[pool])

    def _scraped(self, report: ScrapeReport) -> None:
        if not self._follows:
            self.loop.report(report)
            return
        key = report.pool, report.replica
        self._measured[key] = report
        if report.restarted:
            self._restarted[key] = report.at

    def adopt(self) -> None:
        """Continue from the decisions that are in force, which another process has taken."""
        self.loop.adopt(self._live.inputs.decisions)

    def rest(self) -> None:
        """Leave the decisions to another member."""
        self._follows = True

    def restart(self) -> None:
        """Decide from now on, beginning with the output that is in force, which is saved anew."""
        self._follows, self._measured, self._restarted = False, {}, {}
        self.loop.adopt(self._live.inputs.decisions)
        self._decisions.adopt(self._live.inputs.decisions)
        self._saved = (LoopOutput(), 0.0)
        self._changed.clear()
        if self._live.served is not None:
            self.use_fleet(self._live.served)

    async def save(self) -> None:
        """Save the output of the control loop for a restart, where that is due, and record its decisions."""
        await self._decisions.save()
        if self._needs_saving(self.loop.output, time.time()):
            try:
                await self._save_output(self.loop.output)
            except StoreError as error:
                self._failure.failed(f"the weights and ejections cannot be saved for a restart: {error}")
            else:
                self._failure.succeeded()

    async def _save_output(self, output: LoopOutput) -> None:
        async with self._writing:
            now = time.time()
            size = await self._state.save_loop_output(output, now)
            self._saved = (output, now)
            self._pace = max(_PUBLISH_INTERVAL, size / _BYTES_PER_SECOND)

    async def _publish(self) -> None:
        try:
            while True:
                await self._changed.wait()
                await self._publish_output()
        finally:
            await end_tasks(self._writes)

    async def _publish_output(self) -> None:
        await self._keep_pace()
        self._changed.clear()
        output = self.loop.output
        await self._tell_members(output)
        while not self._authority.decides:
            await asyncio.sleep(_UNSURE)
        self._latency.sending(self.loop.sampled_at)
        await self._live.apply(replace(self._live.inputs, decisions=output), "signals", save=False)
        self._latency.sent()

    async def _keep_pace(self) -> None:
        """Wait until the store may be written again, where other members follow what is written."""
        if self._shared:
            await asyncio.sleep(min(self._pace, max(0.0, self._saved[1] + self._pace - time.time())))

    async def _tell_members(self, output: LoopOutput) -> None:
        """Write what is published next, so that the proxies of no member have what the others cannot know.

        A store that does not answer holds nothing up for longer than a moment.
        """
        if not (self._shared and self._authority.acts) or self._writing.locked():
            return
        writing = asyncio.create_task(self._save_output(output))
        self._writes.add(writing)
        writing.add_done_callback(self._written)
        await asyncio.wait([writing], timeout=_WRITE)

    def _written(self, writing: asyncio.Task[None]) -> None:
        """Take the result of a write: a failure is repeated, and logged, by the next save."""
        self._writes.discard(writing)
        if not writing.cancelled():
            writing.exception()

    async def save_periodically(self) -> None:
        """Save what is decided until the task is cancelled."""
        while True:
            await asyncio.sleep(_SAVE_CHANGED)
            await self.save()

    def _needs_saving(self, output: LoopOutput, now: float) -> bool:
        before, at = self._saved
        return output != before or (now - at >= _SAVE_UNCHANGED and bool(output.weights or output.ejections))


def _patience(plans: Iterable[ScrapePlan]) -> dict[str, float]:
    """Return pool → the shortest `stale_after` of its replicas, in seconds."""
    shortest: dict[str, float] = {}
    for plan in plans:
        shortest[plan.pool] = min(plan.stale_after, shortest.get(plan.pool, math.inf))
    return shortest


def _plans(pools: Iterable[Pool], keys: Mapping[str, tuple[str, str]]) -> list[ScrapePlan]:
    plans = (scrape_plan(pool, replica, keys.get(pool.name)) for pool in pools for replica in pool.replicas)
    return [item for item in plans if item is not None]
