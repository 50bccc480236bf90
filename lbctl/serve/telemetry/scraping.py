"""Scrapes the published fleet's pools, and passes the reports to the control loop or to the outbox for another member.

If several members share the pools, each member scrapes the pools that it owns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from lbctl.control.loop_output import controlled
from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import key_of
from lbctl.runtime.guard import Guard, Work
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.serve.telemetry.scraper import Scraper
from lbctl.signals.plan import ScrapePlan, scrape_plan


class FleetScraper:
    """The published fleet's scraper."""

    def __init__(self, loop: ControlLoop, guard: Guard) -> None:
        """Initially, reports are passed to `loop`."""
        self._loop = loop
        self._receive: Callable[[ScrapeReport], None] = loop.report
        self._owns: Callable[[str], bool] = _every_pool
        self._scraper = Scraper(self._scraped, guard)
        self._pools: tuple[Pool, ...] = ()
        self._keys: Mapping[str, tuple[str, str]] = {}
        """Maps each pool to the name and value of the header that contains its replicas' API key."""
        self._plans: Mapping[tuple[str, str], ScrapePlan] = {}
        self._patience: Mapping[str, float] = {}

    @property
    def plans(self) -> Mapping[tuple[str, str], ScrapePlan]:
        """Maps each (pool, replica) pair to the plan by which any member scrapes its metrics."""
        return self._plans

    @property
    def pools(self) -> tuple[str, ...]:
        """Names of the pools with telemetry."""
        return tuple(pool.name for pool in self._pools)

    def patience(self, pool: str) -> float:
        """Return the number of seconds for which this pool's samples stay fresh."""
        return self._patience.get(pool, math.inf)

    def tasks(self) -> Mapping[str, Work]:
        """Return the scraping task and its name."""
        return {"scraper": self._scraper.run}

    def use_fleet(self, served: PublishedFleet) -> None:
        """From now on, scrape this fleet's pools."""
        whole = served.composed.whole
        pools = controlled(whole.topology)
        keys = {pool.name: key for pool in pools if (key := key_of(pool, whole.secrets))}
        if pools != self._pools or keys != self._keys:
            self._pools, self._keys = pools, keys
            self._plans = {(item.pool, item.replica): item for item in _plans(pools, keys)}
            self._patience = _patience(self._plans.values())
            self._watch()

    def share(self, owns: Callable[[str], bool]) -> None:
        """Scrape exactly the pools that this member currently `owns`. Call this method when ownership has changed."""
        self._owns = owns
        self._watch()

    def report_to(self, receive: Callable[[ScrapeReport], None]) -> None:
        """From now on, pass the reports to this receiver."""
        self._receive = receive

    def source_states(self, pool: str, replica: str) -> tuple[SourceState, ...]:
        """Return the state of each of the replica's sources, even if another member scrapes it; empty if unknown."""
        report = self._loop.reports.get((pool, replica))
        return self._scraper.states(pool, replica) or (report.sources if report else ())

    def _watch(self) -> None:
        owned = {pool: self._owns(pool) for pool in self.pools}
        self._scraper.watch(plan for (pool, _), plan in self._plans.items() if owned[pool])

    def _scraped(self, report: ScrapeReport) -> None:
        self._receive(report)


def _every_pool(_pool: str) -> bool:
    return True


def _patience(plans: Iterable[ScrapePlan]) -> dict[str, float]:
    """Map each pool to the shortest `stale_after` among its replicas, in seconds."""
    shortest: dict[str, float] = {}
    for plan in plans:
        shortest[plan.pool] = min(plan.stale_after, shortest.get(plan.pool, math.inf))
    return shortest


def _plans(pools: Iterable[Pool], keys: Mapping[str, tuple[str, str]]) -> list[ScrapePlan]:
    plans = (scrape_plan(pool, replica, keys.get(pool.name)) for pool in pools for replica in pool.replicas)
    return [item for item in plans if item is not None]
