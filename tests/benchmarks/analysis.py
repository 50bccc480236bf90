"""`python -m tests.benchmarks.analysis [--runs N] [--seed S] [-k WORD]`: measure how often rollout analysis errs.

Each row is a kind of traffic, and each run is a whole rollout through the real `lbctl.control.rollouts`: three steps of
5 %, 25 % and 50 %, each held for twenty intervals, with `failures: 2`. Errors are Poisson-distributed, single or in
clusters as after an engine restart. Latencies are log-normal, and are compared with `ratio: 1.2` at p95.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from lbctl.control.analysis.evidence import IntervalObservation, RequestCounts
from lbctl.control.analysis.latency import LAST_BUCKET as LAST_BUCKET
from lbctl.control.analysis.latency import STEPS_OF_TWO, LatencyHistogram, bucket
from lbctl.control.rollouts import RolloutState, advance, evaluate, reconcile
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Analysis, Forward, Rollout, RolloutStep, Route, Share
from lbctl.ir.topology import Topology

INTERVAL = 10
HELD = 20
"""Intervals for which each step is held."""
MAX_INTERVALS = 4 * 3 * HELD
"""Maximum number of intervals of a run."""
HEAD = f"{'TRAFFIC':<62} {'ROLLED BACK':>11} {'≤ 3 INTERVALS':>13} {'PROMOTED':>8}"
End = Literal["rolled_back", "promoted", "waiting"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests and errors of one simulated rollout."""

    name: str
    old: float
    """The error rate of the old pool."""
    new: float
    """The error rate of the new pool."""
    requests: int = 24_000
    """Requests of both pools per interval."""
    cluster: int = 1
    """Number of errors in a cluster."""
    outage: float = 0.0
    """Probability that a tenth of all requests of an interval fails, in both pools alike."""
    slower: float | None = None
    """Latency of the new pool relative to the old one; None: latencies are not compared."""
    spread: float = 0.6
    """Standard deviation of the logarithm of the latencies."""
    slow_cluster: int = 1
    """Number of equal latencies in a cluster."""
    drift: float = 0.0
    """Standard deviation of the logarithm of the median latency of both pools, over the intervals."""
    stall: float = 0.0
    """Probability that a quarter of all requests of an interval takes a second longer, in both pools alike."""
    max_error_rate: float = 2.0
    failures: int = 2
    min_requests: int = 200


@dataclass(slots=True)
class Ends:
    """Outcomes of the runs of one row."""

    ends: Counter[End] = field(default_factory=Counter)
    fast: int = 0
    """Runs that were rolled back within three intervals."""


ROWS = (
    Traffic("equal, no errors", 0, 0),
    Traffic("equal, 0.1 %", 0.001, 0.001),
    Traffic("equal, 1 %", 0.01, 0.01),
    Traffic("equal, 2 %, as much as max_error_rate", 0.02, 0.02),
    Traffic("equal, 5 %, above max_error_rate", 0.05, 0.05),
    Traffic("equal, 1 %, failures: 1", 0.01, 0.01, failures=1),
    Traffic("equal, 1 %, failures: 3", 0.01, 0.01, failures=3),
    Traffic("equal, 1 %, 300 requests per interval", 0.01, 0.01, requests=300),
    Traffic("equal, 1 % in clusters of 10", 0.01, 0.01, cluster=10),
    Traffic("equal, 0.1 % in clusters of 10", 0.001, 0.001, cluster=10),
    Traffic("equal, 0.1 % in clusters of 30", 0.001, 0.001, cluster=30),
    Traffic("equal, 0.1 % in clusters of 10, 3,000 requests", 0.001, 0.001, cluster=10, requests=3000),
    Traffic("equal, 1 %, an outage of both pools in 5 % of the intervals", 0.01, 0.01, outage=0.05),
    Traffic("2 % → 4 %, 60,000 requests (3,000 of the new pool)", 0.02, 0.04, requests=60_000),
    Traffic("2 % → 4 %, 24,000 requests (1,200 of the new pool)", 0.02, 0.04),
    Traffic("2 % → 4 %, 4,000 requests (200 of the new pool)", 0.02, 0.04, requests=4_000),
    Traffic("2 % → 4 %, 60,000 requests, failures: 1", 0.02, 0.04, requests=60_000, failures=1),
    Traffic("2 % → 4 %, 120,000 requests, failures: 3", 0.02, 0.04, requests=120_000, failures=3),
    Traffic("2 % → 4 %, 90,000 requests, max_error_rate 5 %", 0.02, 0.04, requests=90_000, max_error_rate=5),
    Traffic("1 % → 2 %, 120,000 requests (6,000 of the new pool)", 0.01, 0.02, requests=120_000),
    Traffic("0.1 % → 1 %, 24,000 requests", 0.001, 0.01),
    Traffic("0 % → 1 %, 24,000 requests", 0, 0.01),
    Traffic("1 % → 20 %, 4,000 requests", 0.01, 0.2, requests=4_000),
    Traffic("latency: equal", 0, 0, slower=1.0),
    Traffic("latency: equal, 4,000 requests (200 of the new pool)", 0, 0, slower=1.0, requests=4_000),
    Traffic("latency: equal, wide (σ = 1.2)", 0, 0, slower=1.0, spread=1.2),
    Traffic("latency: equal, in clusters of 10", 0, 0, slower=1.0, slow_cluster=10),
    Traffic("latency: equal, in clusters of 30", 0, 0, slower=1.0, slow_cluster=30),
    Traffic("latency: equal, both slower and faster by turns", 0, 0, slower=1.0, drift=0.5),
    Traffic("latency: equal, failures: 1", 0, 0, slower=1.0, failures=1),
    Traffic("latency: × 1.1", 0, 0, slower=1.1),
    Traffic("latency: × 1.2, as much as the ratio", 0, 0, slower=1.2),
    Traffic("latency: × 1.2, failures: 1", 0, 0, slower=1.2, failures=1),
    Traffic("latency: × 1.2, in clusters of 10", 0, 0, slower=1.2, slow_cluster=10),
    Traffic("latency: × 1.2, both slower and faster by turns", 0, 0, slower=1.2, drift=0.5),
    Traffic("latency: × 1.5", 0, 0, slower=1.5),
    Traffic("latency: × 1.5, 60,000 requests", 0, 0, slower=1.5, requests=60_000),
    Traffic("latency: × 2, 4,000 requests", 0, 0, slower=2.0, requests=4_000),
    Traffic("latency: × 2, 24,000 requests", 0, 0, slower=2.0),
    Traffic("latency: × 2, 24,000 requests in clusters of 10", 0, 0, slower=2.0, slow_cluster=10),
    Traffic("latency: × 3, 10,000 requests", 0, 0, slower=3.0, requests=10_000),
    Traffic("latency: equal, both stand still in 20 % of the intervals", 0, 0, slower=1.0, stall=0.2),
    Traffic("latency: × 1.2, both stand still in 20 % of the intervals", 0, 0, slower=1.2, stall=0.2),
    Traffic("latency: × 3, both stand still in 20 % of the intervals", 0, 0, slower=3.0, stall=0.2),
    Traffic("latency: × 8, 4,000 requests, both stand still in 20 %", 0, 0, slower=8.0, stall=0.2, requests=4_000),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.analysis")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-k", metavar="WORD", default="")
    options = parser.parse_args()
    print(HEAD)
    for traffic in ROWS:
        if options.k in traffic.name:
            print(line(traffic, simulate(traffic, options.runs, options.seed)), flush=True)


def line(traffic: Traffic, ends: Ends) -> str:
    runs = ends.ends.total()
    shares = (ends.ends["rolled_back"], ends.fast, ends.ends["promoted"])
    cells = [f"{100 * count / runs:.2f} %" for count in shares]
    return f"{traffic.name:<62} {cells[0]:>11} {cells[1]:>13} {cells[2]:>8}"


def simulate(traffic: Traffic, runs: int, seed: int) -> Ends:
    ends = Ends()
    for number in range(runs):
        intervals, end = run(traffic, random.Random(f"{seed} {number}"))
        ends.ends[end] += 1
        ends.fast += end == "rolled_back" and intervals <= 3
    return ends


def run(traffic: Traffic, chance: random.Random) -> tuple[int, End]:
    """Run one rollout. Return the number of intervals that it took, and how it ended."""
    topology = _fleet(traffic)
    (state,) = advance(reconcile((), topology, 0.0), topology, 0.0, (topology.routes[0].name,))
    rollout = topology.routes[0].rollout
    assert rollout is not None
    for number in range(1, MAX_INTERVALS + 1):
        state = evaluate(state, rollout, _observation(traffic, state, chance), now := number * INTERVAL)
        for _ in range(2):  # a new step is in force at once
            (state,) = advance((state,), topology, now, (state.route,))
        if state.phase == "rolled_back":
            return number, "rolled_back"
        if state.phase == "promoted":
            return number, "promoted"
    return MAX_INTERVALS, "waiting"


def _fleet(traffic: Traffic) -> Topology:
    analysis = Analysis(
        interval=INTERVAL * 1000,
        min_requests=traffic.min_requests,
        max_error_rate=traffic.max_error_rate,
        failures=traffic.failures,
        latency_metric=None if traffic.slower is None else "first_byte",
    )
    held = HELD * INTERVAL * 1000
    steps = (*(RolloutStep(percent, held) for percent in (5, 25, 50)), RolloutStep(100))
    rollout = Rollout("new", "analysis", steps, analysis)
    route = Route("chat", Forward((Share("new", 0), Share("old", 1))), rollout=rollout)
    return Topology((), (route,), (Pool("new"), Pool("old")))


def _observation(traffic: Traffic, state: RolloutState, chance: random.Random) -> IntervalObservation:
    extra = 0.1 if chance.random() < traffic.outage else 0.0
    requests = traffic.requests * state.percent / 100, traffic.requests * (100 - state.percent) / 100
    new, old = (
        _counts(part, min(1.0, rate + extra), traffic.cluster, chance)
        for part, rate in zip(requests, (traffic.new, traffic.old), strict=True)
    )
    if traffic.slower is None:
        return IntervalObservation(new, old, reporting=1)
    middle = 200.0 * math.exp(chance.gauss(0.0, traffic.drift))
    stalls = chance.random() < traffic.stall
    latencies = (
        _latencies(traffic, counts.requests, middle * factor, chance, stalls=stalls)
        for counts, factor in ((new, traffic.slower), (old, 1.0))
    )
    return IntervalObservation(new, old, 1, (), (), *latencies)


def _latencies(
    traffic: Traffic, requests: int, middle: float, chance: random.Random, *, stalls: bool
) -> LatencyHistogram:
    """Return a histogram of this number of log-normal latencies with the median `middle`."""
    counts: Counter[int] = Counter()
    for number, share in _shares(traffic.spread, middle):
        cluster = traffic.slow_cluster
        count = cluster * poisson(requests * share / cluster, chance)
        later = count // 4 if stalls else 0
        counts[number] += count - later
        counts[bucket(2 ** (number / STEPS_OF_TWO) + 1000)] += later
    return LatencyHistogram({number: count for number, count in counts.items() if count})


@lru_cache(100)
def _shares(spread: float, middle: float) -> tuple[tuple[int, float], ...]:
    """Return (bucket, share of latencies in it)."""
    return tuple(_each_share(spread, middle))


def _each_share(spread: float, middle: float) -> Iterator[tuple[int, float]]:
    below = 0.0
    for number in range(LAST_BUCKET):
        upto = 2 ** (number / STEPS_OF_TWO)
        share = 0.5 * math.erfc(-math.log(upto / middle) / (spread * math.sqrt(2)))
        if share - below > 1e-7:
            yield number, share - below
        below = share


def _counts(requests: float, rate: float, cluster: int, chance: random.Random) -> RequestCounts:
    total = poisson(requests, chance)
    errors = cluster * poisson(requests * rate / cluster, chance)
    return RequestCounts(total, min(total, errors))


def poisson(mean: float, chance: random.Random) -> int:
    """Return a random number: Poisson-distributed if the mean is below 50, otherwise normal with the same mean and
    variance."""
    if mean >= 50:
        return max(0, round(chance.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count


if __name__ == "__main__":
    main()
