"""The control loop as it runs: what the scraper reports becomes events, and what follows is what proxies are told.

It decides and sends nothing: `moved` is called when `live` is another. Reports that come together are one event a pool,
so that a fleet of any size costs a bounded part of the time. A pool that tells nothing of itself is not in here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from lbctl.control.decisions import Decision, decisions
from lbctl.control.effects import Effect, HealthChanged, ModeChanged, WeightsChanged
from lbctl.control.events import Event, FleetChanged, Froze, Observed, Readmitted, Ticked, Unfroze
from lbctl.control.inputs import Observation
from lbctl.control.loop_output import LoopOutput, controlled
from lbctl.control.state import State
from lbctl.control.step import step
from lbctl.ir.topology import Topology
from lbctl.serve import log
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.serve.telemetry.reports import Report

_GATHER = 0.01
"""Seconds in which reports gather, at least."""
_GATHER_MOST = 0.25
_COST = 10
"""Gathering lasts so many times as long as the last decision took."""
_TICK = 1.0


InFlightOf = Callable[[str, str], int | None]
"""(pool, replica) → requests that the proxies have there; None where no proxy can say."""


class ControlLoop:
    """`clock`: the scraper's. `kept`: what was decided before a restart, for the first fleet."""

    def __init__(
        self,
        moved: Callable[[], None],
        stages: LatencyMetrics,
        kept: LoopOutput = LoopOutput(),  # noqa: B008 -- a frozen value
        clock: Callable[[], float] = time.monotonic,
        in_flight: InFlightOf | None = None,
    ) -> None:
        self.live = kept
        self.state = State()
        self.reports: dict[tuple[str, str], Report] = {}
        self.sampled: float | None = None
        """When the newest sample was taken that has changed `live`."""
        self._ejected: Mapping[str, frozenset[str]] = {}
        self._in_flight = in_flight or _unknown
        self._moved = moved
        self._stages = stages
        self._clock = clock
        self._waiting: dict[str, dict[str, Report]] = {}
        self._news = asyncio.Event()
        self._gather = _GATHER
        self._frozen: Mapping[str, str] = {}

    # ── What it is told ──────────────────────────────────────────────────────────────────────────────────────────────

    def follow(self, topology: Topology) -> None:
        """The fleet from now on."""
        pools = controlled(topology)
        if pools == tuple(item.pool for item in self.state.pools.values()):
            return
        there = {(pool.name, item.name) for pool in pools for item in pool.replicas}
        self.reports = {key: report for key, report in self.reports.items() if key in there}
        before = self.live.within(topology)
        self._say(FleetChanged(self._clock(), pools, before.weights, before.ejections))
        live = before
        for state in self.state.pools.values():
            live = live.with_pool(state)
        self._become(live)
        self.freeze(self._frozen)

    def report(self, report: Report) -> None:
        """A look; what follows from it, follows soon."""
        self.reports[report.pool, report.replica] = report
        self._waiting.setdefault(report.pool, {})[report.replica] = report
        self._news.set()

    def eject(self, ejected: Mapping[str, frozenset[str]]) -> None:
        """From now on active health checks hold these replicas out: pool → names."""
        self._ejected = ejected

    def freeze(self, pools: Mapping[str, str]) -> None:
        """These pools keep their weights (pool → why), and no others."""
        now = self._clock()
        self._frozen = pools
        for name, pool in self.state.pools.items():
            wanted = pools.get(name)
            if wanted != pool.freeze_reason:
                self._say(Unfroze(now, name) if wanted is None else Froze(now, name, wanted))

    def readmit(self, pool: str, replica: str) -> None:
        """An operator ends what deep health holds against it."""
        self._say(Readmitted(self._clock(), pool, replica))

    def decisions(self, pool: str) -> tuple[Decision, ...]:
        return decisions(replace(self.state, now=self._clock()), pool)

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self._news.wait()
            await asyncio.sleep(self._gather)
            self.decide()

    # ── What it makes of it ──────────────────────────────────────────────────────────────────────────────────────────

    def decide(self) -> None:
        """About all that has been reported and not yet been decided on, and about pools that have been silent."""
        self._news.clear()
        waiting, self._waiting = self._waiting, {}
        begun = time.perf_counter()
        for pool, reports in waiting.items():
            news = {name: seen for name, report in reports.items() if (seen := self._seen(report)) is not None}
            ejected = self._ejected.get(pool, frozenset())
            self._say(
                Observed(self._clock(), pool, news, ejected), max((item.at for item in reports.values()), default=None)
            )
        self._say(Ticked(self._clock()))
        took = time.perf_counter() - begun
        self._gather = min(max(_GATHER, _COST * took), _GATHER_MOST)
        if waiting:
            newest = max(item.at for reports in waiting.values() for item in reports.values())
            self._stages.decided(took, self._clock() - newest)

    def _seen(self, report: Report) -> Observation | None:
        return observation_of(report, self._in_flight(report.pool, report.replica))

    def _say(self, event: Event, sampled: float | None = None) -> None:
        self.state, effects = step(self.state, event)
        if isinstance(event, FleetChanged):
            return
        self._tell(effects)
        live = self.live
        for name in dict.fromkeys(item.pool for item in effects if isinstance(item, (WeightsChanged, HealthChanged))):
            live = live.with_pool(self.state.pools[name])
        self._become(live, sampled)

    def _become(self, live: LoopOutput, sampled: float | None = None) -> None:
        if live == self.live:
            return
        self.live, self.sampled = live, sampled
        self._moved()

    def _tell(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case HealthChanged():
                    level = log.event if effect.verdict == "in" else log.warn
                    words = "; ".join(effect.reasons) or None
                    level(
                        f"a replica is {_VERDICTS[effect.verdict]}", pool=effect.pool, replica=effect.replica, why=words
                    )
                case ModeChanged():
                    log.event(f"weights are {_MODES[effect.mode]}", pool=effect.pool, why=effect.reason or None)
                case WeightsChanged():
                    pass  # an operator may hold other weights: what is published is logged when it is


_VERDICTS = {"in": "in", "floor": "down to the floor", "out": "out"}
_MODES = {
    "acting": "following the evidence",
    "frozen": "frozen",
    "blind": "going back to the capacities",
    "held": "held by an operator",
}


def observation_of(report: Report, in_flight: int | None = None) -> Observation | None:
    """What a report says of a replica; None where nothing has ever been seen of it. `in_flight`: of `Observation`."""
    times = [item.good_at for item in report.sources if item.good_at is not None]
    return Observation(max(times), report.signals, in_flight, report.reserves_memory) if times else None


def _unknown(_pool: str, _replica: str) -> int | None:
    return None
