"""Runs the control loop: turns the scraper's reports into events, and their effects into the loop's output.

The loop makes decisions but does not publish them: `on_change` is called when `output` has changed. Reports that arrive
together are combined into one event per pool, so that the loop uses a bounded share of CPU time regardless of the size
of the fleet. Pools without telemetry are not included.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from lbctl.control.decisions import Decision, decisions
from lbctl.control.effects import Effect, HealthChanged, ModeChanged, RemapAcceptanceChanged, WeightsChanged
from lbctl.control.events import Event, FleetChanged, Froze, Observed, Readmitted, Ticked, Unfroze
from lbctl.control.inputs import UNKNOWN_REQUESTS, Observation, ProxyRequests
from lbctl.control.loop_output import LoopOutput, controlled
from lbctl.control.state import State
from lbctl.control.step import step
from lbctl.ir.topology import Topology
from lbctl.runtime import log
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.serve.telemetry.decision_audit import DecisionAudit
from lbctl.serve.telemetry.reports import ScrapeReport

_MIN_GATHER = 0.01
"""Minimum time spent collecting reports, in seconds."""
_MAX_GATHER = 0.25
"""Maximum time spent collecting reports, in seconds."""
_GATHER_FACTOR = 10
"""Reports are collected for this multiple of the duration of the last decision."""
_TICK = 1.0
"""Maximum time between two decisions in seconds, even if no reports arrive."""
_SUSPICION_MAX_AGE = 10.0
"""Seconds after which the picker's last report on stalled replicas is ignored. Until then, a hung picker does not
change any weights."""


RequestsOf = Callable[[str, str], ProxyRequests]
"""Returns the number of requests at the proxies, by (pool, replica)."""


class ControlLoop:
    """The control loop for all pools with telemetry."""

    def __init__(
        self,
        on_change: Callable[[], None],
        latency: LatencyMetrics,
        saved: LoopOutput = LoopOutput(),  # noqa: B008 -- a frozen value
        clock: Callable[[], float] = time.monotonic,
        requests_of: RequestsOf = lambda _pool, _replica: UNKNOWN_REQUESTS,
        audit: DecisionAudit | None = None,
        ejected: Callable[[], Mapping[str, frozenset[str]]] = dict,
    ) -> None:
        """Start with the output `saved` before a restart. `clock`: the scraper's clock.

        `audit` records the decisions. `ejected` returns the replicas, by pool, that have been ejected by active checks.
        """
        self._audit = audit
        self.output = saved
        """The weights and ejections that proxies should currently have."""
        self.state = State()
        self.reports: dict[tuple[str, str], ScrapeReport] = {}
        self.restarts: dict[tuple[str, str], int] = {}
        """Maps each (pool, replica) pair to the number of times its engine's counters have restarted since this process
        began to track them."""
        self.sampled_at: float | None = None
        """Time at which the newest sample that changed `output` was taken; None if no sample has changed it."""
        self._ejected_by_checks = ejected
        self._requests_of = requests_of
        self._on_change = on_change
        self._latency = latency
        self._clock = clock
        self._pending: dict[str, dict[str, ScrapeReport]] = {}
        self._reported = asyncio.Event()
        self._gather = _MIN_GATHER
        self._frozen: Mapping[str, str] = {}
        self._suspected: Mapping[str, frozenset[str]] = {}
        self._suspected_at = float("-inf")

    # ── Inputs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def use_topology(self, topology: Topology) -> None:
        """From now on, control this fleet's pools."""
        pools = controlled(topology)
        if pools == tuple(item.pool for item in self.state.pools.values()):
            return
        current = {(pool.name, item.name) for pool in pools for item in pool.replicas}
        self.reports = {key: report for key, report in self.reports.items() if key in current}
        self.restarts = {key: number for key, number in self.restarts.items() if key in current}
        if self._audit is not None:
            self._audit.keep(current)
        before = self.output.within(topology)
        event = FleetChanged(
            self._clock(), pools, before.weights, before.ejections, before.asleep, before.accepted_remaps
        )
        self._handle(event, before)
        self.freeze(self._frozen)

    def adopt(self, output: LoopOutput) -> None:
        """Continue from this output of another process, discarding earlier decisions."""
        self.state = State()
        self.reports, self._pending = {}, {}
        self.output, self.sampled_at = output, None

    def report(self, report: ScrapeReport) -> None:
        """Add a report from the scraper. The loop will soon make a decision based on it."""
        key = report.pool, report.replica
        self.reports[key] = report
        if report.restarted:
            self.restarts[key] = self.restarts.get(key, 0) + 1
        self._pending.setdefault(report.pool, {})[report.replica] = report
        self._reported.set()

    def suspect(self, stalled: Mapping[str, frozenset[str]]) -> None:
        """Use the picker's newest report, which maps pools to the replicas whose engines have stopped.

        The loop will soon make a decision based on it.
        """
        if stalled != self._suspected:
            self._reported.set()
        self._suspected, self._suspected_at = stalled, self._clock()

    def freeze(self, pools: Mapping[str, str]) -> None:
        """Freeze the weights of exactly these pools, each given with a reason."""
        now = self._clock()
        self._frozen = pools
        for name, pool in self.state.pools.items():
            reason = pools.get(name)
            if reason != pool.freeze_reason:
                self._handle(Unfroze(now, name) if reason is None else Froze(now, name, reason), self.output)

    def readmit(self, pool: str, replica: str) -> None:
        """End a replica's ejection by the deep health check at an operator's request."""
        self._handle(Readmitted(self._clock(), pool, replica), self.output)

    def decisions(self, pool: str) -> tuple[Decision, ...]:
        """Return the current decision for each of a pool's replicas, with its reasons."""
        return decisions(replace(self.state, now=self._clock()), pool)

    async def run(self) -> None:
        """Make decisions based on the reports until the task is cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self._reported.wait()
            await asyncio.sleep(self._gather)
            self.decide()

    # ── Decisions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self) -> None:
        """Make decisions based on all new reports, and for pools without reports."""
        self._reported.clear()
        pending, self._pending = self._pending, {}
        started = time.perf_counter()
        suspected = self._current_suspicions()
        for pool, state in self.state.pools.items():
            if state.suspected != suspected.get(pool, frozenset()):
                pending.setdefault(pool, {})
        ejected_by_checks = self._ejected_by_checks() if pending else {}
        for pool, reports in pending.items():
            observations = {
                name: observation
                for name, report in reports.items()
                if (observation := self._observation(report)) is not None
            }
            ejected = ejected_by_checks.get(pool, frozenset())
            newest = max((report.at for report in reports.values()), default=None)
            event = Observed(self._clock(), pool, observations, ejected, suspected.get(pool, frozenset()))
            self._handle(event, self.output, newest)
        self._handle(Ticked(self._clock()), self.output)
        took = time.perf_counter() - started
        self._gather = min(max(_MIN_GATHER, _GATHER_FACTOR * took), _MAX_GATHER)
        sampled = [item.at for reports in pending.values() for item in reports.values()]
        if sampled:
            self._latency.decided(took, self._clock() - max(sampled))

    def _current_suspicions(self) -> Mapping[str, frozenset[str]]:
        return self._suspected if self._clock() - self._suspected_at < _SUSPICION_MAX_AGE else {}

    def _observation(self, report: ScrapeReport) -> Observation | None:
        return observation_of(report, self._requests_of(report.pool, report.replica))

    def _handle(self, event: Event, before: LoopOutput, sampled_at: float | None = None) -> None:
        """Apply the event's effects to the output as it was `before` the event."""
        self.state, effects = step(self.state, event)
        self._log(effects)
        self._set_output(before.after(effects), sampled_at)

    def _set_output(self, output: LoopOutput, sampled_at: float | None = None) -> None:
        if output != self.output:
            self.output, self.sampled_at = output, sampled_at
            self._on_change()

    def _log(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if self._audit is not None:
                self._audit.note(effect)
            match effect:
                case HealthChanged():
                    level = log.event if effect.verdict in ("in", "asleep") else log.warn
                    reasons = "; ".join(effect.reasons) or None
                    level(
                        f"a replica is {_VERDICTS[effect.verdict]}",
                        pool=effect.pool,
                        replica=effect.replica,
                        why=reasons,
                    )
                case ModeChanged():
                    log.event(f"weights are {_MODES[effect.mode]}", pool=effect.pool, why=effect.reason or None)
                case RemapAcceptanceChanged():
                    pass  # the operator's command is logged instead
                case WeightsChanged():
                    pass  # an override may replace these weights; the published ones are logged instead


_VERDICTS = {"in": "in", "floor": "at the floor weight", "out": "out", "asleep": "asleep"}
_MODES = {
    "acting": "following the signals",
    "frozen": "frozen",
    "blind": "returning to the configured capacities",
    "held": "overridden by an operator",
}


def observation_of(report: ScrapeReport, requests: ProxyRequests = UNKNOWN_REQUESTS) -> Observation | None:
    """Convert a report to an observation; None if none of the replica's sources has ever returned a value."""
    times = [item.good_at for item in report.sources if item.good_at is not None]
    return Observation(max(times), report.signals, requests, report.reserves_memory) if times else None
