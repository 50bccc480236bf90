"""The capacity of a fleet: the load bound, service-level objectives and the searches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbctl.simulate import capacity
from lbctl.simulate.engine import CostModel
from lbctl.simulate.results import Latency, Summary, summarise
from lbctl.simulate.trace import Trace
from tests.support.simulate import load, pool, replayed

_NONE = Latency(0.0, 0.0, 0.0)
_SUMMARY = Summary("envoy:round_robin", 1000, 0.0, 0.0, _NONE, _NONE, _NONE, 0.0, {}, 0.0, {}, None, 0)


def test_requests_fail_only_beyond_the_capacity() -> None:
    where = pool(1.0, 1.0)
    costs = capacity.engines_of(where, CostModel())
    trace = load(2500, 10.0, 800, 150)
    once = capacity.load_of(costs, trace)
    below, above = trace.faster(0.8 / once), trace.faster(2.5 / once)
    assert capacity.load_of(costs, below) == pytest.approx(0.8)
    assert summarise(replayed(where, below, "nginx:least_request")).failed == 0
    assert summarise(replayed(where, above, "nginx:least_request")).failed > 0.02


def test_repeated_prefixes_add_no_load() -> None:
    """If nine of ten prompts are cached, engines handle a load that exceeds their prefill speed."""
    count = 400
    blocks = [tuple(range(8)) if index % 10 else tuple(range(1000 + index, 1008 + index)) for index in range(count)]
    times = [0.08 * index for index in range(count)]
    trace = Trace(times, [4096] * count, [20] * count, (), blocks, 512).first(count)
    assert trace.repeated == pytest.approx(0.9 * count * 4095, rel=0.01)
    costs = capacity.engines_of(pool(1.0), CostModel())
    load_with, load_without = (capacity.load_of(costs, each) for each in (trace, replace(trace, repeated=0)))
    assert load_with < 1 < load_without
    assert summarise(replayed(pool(1.0), trace, "nginx:least_request")).ttft.p99 < 10


def test_objectives_are_parsed_or_rejected() -> None:
    limits = capacity.objectives("ttft p99 < 2s, tpot p50<50ms ,failed < 0.5%")
    assert [str(limit) for limit in limits] == ["ttft p99 < 2s", "tpot p50 < 0.05s", "failed < 0.5%"]
    for text in ("", "ttft < 2s", "ttft p98 < 2s", "ttft p99 < soon", "failed < 1..0%", "ttft p99 > 2s"):
        with pytest.raises(ValueError, match=r"\S"):
            capacity.objectives(text)


def test_a_fleet_that_sheds_meets_no_latency_objective() -> None:
    """Shedding makes the remaining requests faster, so latency objectives count only up to 1 % of shed requests."""
    latency = Latency(0.1, 0.1, 0.1)
    for shed, met in ((0.009, True), (0.011, False), (1.0, False)):
        summary = replace(_SUMMARY, shed=shed, total=latency, tpot=latency, ttft=latency)
        limits = capacity.objectives("total p99 < 1s, tpot p99 < 1s, ttft p99 < 100s")
        assert [item.is_met(summary) for item in limits] == [met] * 3
    assert capacity.objectives("total p50 < 1s")[0].is_met(replace(_SUMMARY, shed=0.3, total=latency))


def test_the_searches_find_the_boundary() -> None:
    for start in (0.1, 1.0, 3.0, 8.0):
        assert capacity.largest_rate(lambda factor: factor < 3.0, start) == pytest.approx(3.0, rel=0.03)
    assert capacity.largest_rate(lambda _: False, 1.0) is None
    for start in (1, 7, 50):
        assert capacity.fewest_replicas(lambda count: count >= 7, start, 100) == 7
    assert capacity.fewest_replicas(lambda _: False, 3, 100) is None


def test_added_replicas_are_copies_of_existing_ones() -> None:
    grown = capacity.with_replicas(pool(5.0, 2.0), 5)
    assert sorted(item.capacity for item in grown.replicas) == [2.0, 2.0, 5.0, 5.0, 5.0]
    assert len({item.name for item in grown.replicas}) == 5
    assert [item.capacity for item in capacity.with_replicas(pool(2.0, 5.0), 1).replicas] == [5.0]
