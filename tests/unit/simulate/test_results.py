"""The figures of a replay, on runs that can be calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbctl.ir.pools import CircuitBreaker
from lbctl.simulate.load import conversation, poisson
from lbctl.simulate.results import Latency, summarise
from lbctl.simulate.setup import Outage
from lbctl.simulate.trace import Trace
from tests.support.simulate import EASY, pool, replayed

FOUR = Trace([0.0, 1.0, 2.0, 3.0], [100] * 4, [11, 21, 31, 101])
"""Consecutive requests: 0.11, 0.21, 0.31 and 1.01 s with EASY, of which 0.01 s are for the first token."""


def near(*seconds: float) -> Latency:
    return Latency(*(pytest.approx(each) for each in seconds))


def test_times_tokens_and_shares() -> None:
    figures = summarise(replayed(pool(1.0), FOUR, cost=EASY))
    assert (figures.requests, figures.failed, figures.shed, figures.unanswered) == (4, 0, 0, 0)
    assert figures.ttft == near(0.01, 0.01, 0.01)
    assert figures.tpot == near(0.01, 0.01, 0.01)
    assert figures.total == near(0.21, 1.01, 1.01)
    assert figures.throughput == pytest.approx((11 + 21 + 31 + 101) / 4.01)
    assert figures.utilisation == {"r0": pytest.approx((0.11 + 0.21 + 0.31 + 1.01) / 4.01)}
    assert figures.share == {"r0": 1.0}
    assert (figures.cache_hits, figures.preempted) == (None, 0)


def test_spread_is_between_most_and_least_busy_replica() -> None:
    figures = summarise(replayed(pool(1.0, 1.0), FOUR, "haproxy:least_request", cost=EASY))
    busy = sorted(figures.utilisation.values())
    assert busy == pytest.approx([(0.11 + 0.31) / 4.01, (0.21 + 1.01) / 4.01])
    assert figures.spread == pytest.approx(busy[1] - busy[0])
    assert figures.share == {"r0": 0.5, "r1": 0.5}


def test_cache_hits_are_a_share_of_all_prompt_tokens() -> None:
    trace = Trace([0.0, 10.0], [1024, 2048], [2, 2], (), [(1, 2), (1, 2, 3, 4)], 512)
    assert summarise(replayed(pool(1.0), trace)).cache_hits == pytest.approx(1024 / 3072)
    assert summarise(replayed(pool(1.0), trace.first(1))).cache_hits == 0
    assert summarise(replayed(pool(1.0), FOUR.first(1))).cache_hits is None


def test_failed_and_shed_requests_count_with_the_patience() -> None:
    breaker = CircuitBreaker(1_000_000, 1_000_000, 1_000_000, 1_000_000, replica_max_requests=1)
    trace = Trace([0.0, 0.5, 2.0, 3.0], [10] * 4, [101] * 4)
    result = replayed(
        replace(pool(1.0), circuit_breaker=breaker), trace, "nginx:round_robin", cost=EASY, outages=(Outage("r0", 2.5),)
    )
    figures = summarise(result)
    assert (figures.failed, figures.shed, figures.unanswered) == (0.5, 0.25, 0.75)
    assert (figures.ttft.p50, figures.ttft.p99) == (60.0, 60.0)
    assert figures.total.p99 == pytest.approx(1.01)


def test_a_synthetic_load_has_the_requested_rate_and_lengths() -> None:
    lengths = conversation(500.0, 80.0)
    load = poisson(20.0, 300.0, lengths, "seed")
    assert len(load.times) == pytest.approx(6000, rel=0.05)
    assert sum(load.prompts) / len(load.times) == pytest.approx(500, rel=0.05)
    assert sum(load.answers) / len(load.times) == pytest.approx(80, rel=0.05)
    assert list(load.times) == sorted(load.times)
    assert load.times[-1] < 300.0
    bursts = poisson(20.0, 300.0, lengths, "seed", burst=10.0)
    assert len(bursts.times) == pytest.approx(6000, rel=0.3)
    assert len(bursts.times) / len(set(bursts.times)) == pytest.approx(10, rel=0.2)
    for burst in (1.0, 1.2, 2.0, 4.0):
        small = poisson(20.0, 600.0, lengths, "seed", burst=burst)
        assert len(small.times) == pytest.approx(12_000, rel=0.05)
        assert len(small.times) / len(set(small.times)) == pytest.approx(burst, rel=0.03)
    assert not poisson(0.001, 1.0, lengths, "seed").times
