"""The evidence about running rollouts: differences of the proxies' counts over a window, and PromQL values.

A window belongs to one step of one rollout and to this process: after a restart a new one begins, so that no count is
negative and nothing counts twice. Times are seconds on the clock of the traffic ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import aiohttp

from lbctl.control import rollouts
from lbctl.control.analysis.evidence import NO_REQUESTS, IntervalObservation, RequestCounts
from lbctl.control.analysis.latency import NO_LATENCIES, LatencyHistogram
from lbctl.control.rollouts import DEFAULT_ANALYSIS, Rollouts, RolloutState
from lbctl.ir.rollout_metrics import LatencyKey
from lbctl.ir.routes import Rollout
from lbctl.ir.topology import Topology
from lbctl.serve.operator.promql import metric_values
from lbctl.serve.traffic.ledger import NO_COUNTS, Counts, ReplicaKey, TrafficLedger

Totals = Mapping[tuple[str, ReplicaKey], Counts]
Latencies = Mapping[tuple[str, LatencyKey], LatencyHistogram]


@dataclass(frozen=True, slots=True)
class _Window:
    """Values of the ledger at the beginning of the window."""

    step: tuple[str, int, float]
    """Key of the rollout, index of the step, and when that began or was resumed."""
    began: float
    """When the window began, on the clock of the ledger."""
    totals: Totals
    """Counts of every proxy at that time."""
    own_errors: Mapping[tuple[str, str], int]
    """(proxy, pool) → the errors that the proxy had answered itself then."""
    reporting: frozenset[str]
    """The proxies that were not silent then."""
    latencies: Latencies
    """The latencies that every proxy had reported then, where the rollout is judged by them."""


class RolloutEvidence:
    """Collects the evidence about each analysed step since its last evaluation."""

    def __init__(self, ledger: TrafficLedger, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: the ledger's clock."""
        self._ledger = ledger
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def due(self, states: Rollouts, topology: Topology) -> Iterator[tuple[RolloutState, Rollout]]:
        """Yield the rollouts whose interval has passed, and begin windows for new steps."""
        for state in states:
            rollout = rollouts.rollout_of(topology, state.route)
            if rollout is None or not rollouts.is_analysed(state, rollout):
                self._windows.pop(state.route, None)
                continue
            window = self._windows.get(state.route)
            if window is None or window.step != _step(state):
                self._windows[state.route] = self._window(state, rollout)
            elif self._clock() - window.began >= (rollout.analysis or DEFAULT_ANALYSIS).interval / 1000:
                yield state, rollout

    async def observe(
        self, session: aiohttp.ClientSession, state: RolloutState, rollout: Rollout, at: float
    ) -> tuple[IntervalObservation, Callable[[], None]]:
        """Return the evidence since the window began, and a function that begins the next window at its end.

        `at`: in seconds since the epoch, the instant of the PromQL queries.
        """
        window, following = self._windows[state.route], self._window(state, rollout)
        old = {
            pool: share
            for pool, share in rollouts.shares_at(state.base, rollout.to, state.percent)
            if pool != rollout.to and share
        }
        counts = _by_pool(window.totals, following.totals)
        own_errors = _own_errors_by_pool(window.own_errors, following.own_errors)
        counts = {
            pool: counts.get(pool, NO_REQUESTS) + own_errors.get(pool, NO_REQUESTS) for pool in counts | own_errors
        }
        latencies = _latencies_by_pool(window.latencies, following.latencies)
        metrics = (rollout.analysis or DEFAULT_ANALYSIS).metrics if old else ()
        observation = IntervalObservation(
            new=counts.get(rollout.to, NO_REQUESTS),
            old=sum((counts.get(pool, NO_REQUESTS) for pool in old), NO_REQUESTS),
            reporting=len(following.reporting),
            silent=tuple(sorted(window.reporting - following.reporting)),
            metrics=await metric_values(session, metrics, rollout.to, old, at),
            latency_new=latencies.get(rollout.to, NO_LATENCIES),
            latency_old=sum((latencies.get(pool, NO_LATENCIES) for pool in old), NO_LATENCIES),
        )
        return observation, lambda: self._windows.update({state.route: following})

    def _window(self, state: RolloutState, rollout: Rollout) -> _Window:
        now = self._clock()
        metric = (rollout.analysis or DEFAULT_ANALYSIS).latency_metric
        wanted = [LatencyKey(pool, metric) for pool in (rollout.to, *dict(state.base))] if metric else []
        ledger = self._ledger
        latencies = ledger.latencies(frozenset(wanted))
        return _Window(_step(state), now, ledger.totals(), ledger.own_errors(), ledger.reporting(now), latencies)


def _step(state: RolloutState) -> tuple[str, int, float]:
    return state.key, state.step, state.since


def _by_pool(before: Totals, after: Totals) -> dict[str, RequestCounts]:
    """Return pool → what was counted between two totals.

    A proxy whose total is smaller than before was forgotten meanwhile, and all of its new total was counted since.
    No pool has more errors than requests, on which the tests of the analysis and the saved state rely.
    """
    pools: dict[str, RequestCounts] = {}
    for key, counts in after.items():
        earlier = before.get(key, NO_COUNTS)
        gained = counts - earlier if counts.requests >= earlier.requests else counts
        pool, errors = key[1].pool, max(0, gained.errors)
        pools[pool] = pools.get(pool, NO_REQUESTS) + RequestCounts(max(gained.requests, errors), errors)
    return pools


def _own_errors_by_pool(
    before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]
) -> dict[str, RequestCounts]:
    """Return pool → the requests that proxies answered with an error themselves between two readings."""
    pools: dict[str, RequestCounts] = {}
    for key, count in after.items():
        earlier = before.get(key, 0)
        errors = count - earlier if count >= earlier else count
        pools[key[1]] = pools.get(key[1], NO_REQUESTS) + RequestCounts(errors, errors)
    return pools


def _latencies_by_pool(before: Latencies, after: Latencies) -> dict[str, LatencyHistogram]:
    """Return pool → the latencies that were reported between two readings."""
    pools: dict[str, LatencyHistogram] = {}
    for key, latencies in after.items():
        pool = key[1].pool
        pools[pool] = pools.get(pool, NO_LATENCIES) + latencies.since(before.get(key, NO_LATENCIES))
    return pools
