"""Verdicts of rollout analysis, and their effect on a rollout."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.control.analysis.evidence import (
    AnalysisState,
    IntervalObservation,
    LatencyValues,
    MetricValues,
    RequestCounts,
)
from lbctl.control.analysis.latency import histogram
from lbctl.control.analysis.slowness import cluster_of
from lbctl.control.analysis.statistics import FALSE_ALARM, cluster_size, level, upper_tail
from lbctl.control.rollouts import RolloutState, act, advance, blocker, evaluate, reconcile, splits
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Analysis, AnalysisMetric, Forward, Rollout, RolloutStep, Route, Share
from lbctl.ir.topology import Topology
from tests.benchmarks.analysis import ROWS, simulate

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down

CRITERIA = Analysis(interval=10_000, min_requests=200, max_error_rate=2.0, failures=2)
STEPS = (RolloutStep(10, 20_000), RolloutStep(50, 20_000), RolloutStep(100))
FINE = IntervalObservation(RequestCounts(1000, 5), RequestCounts(9000, 45), reporting=3)
WORSE = replace(FINE, new=RequestCounts(1000, 200))


class Course:
    """A rollout that is evaluated every ten seconds."""

    def __init__(self, steps: tuple[RolloutStep, ...] = STEPS, **criteria: Any) -> None:
        self.rollout = Rollout("new", "analysis", steps, replace(CRITERIA, **criteria))
        route = Route("chat", Forward((Share("new", 0), Share("old", 1))), rollout=self.rollout)
        self.topology = Topology((), (route,), (Pool("new"), Pool("old")))
        self.now = 0.0
        self.in_force = (route.name,)
        (self.state,) = advance(reconcile((), self.topology, self.now), self.topology, self.now, self.in_force)

    def see(self, *observations: IntervalObservation) -> RolloutState:
        for observation in observations:
            self.now += 10
            self.state = evaluate(self.state, self.rollout, observation, self.now)
            for _ in range(2):  # a step that begins is in force at once
                (self.state,) = advance((self.state,), self.topology, self.now, self.in_force)
        return self.state

    @property
    def last(self) -> tuple[str, str]:
        evaluation = self.state.analysis.evaluations[-1]
        return evaluation.verdict, evaluation.reason

    @property
    def waits_for(self) -> str:
        return blocker(self.state, self.rollout, self.now)


def test_good_evidence_ends_steps_and_promotes_the_rollout() -> None:
    course = Course()
    assert (course.state.phase, course.waits_for) == ("progressing", "the first evaluation of this step")
    assert course.see(FINE).step == 0, "the hold has not passed"
    assert course.see(FINE).step == 1
    assert course.state.analysis.step_new == RequestCounts(), "each step has its own evidence"
    state = course.see(FINE, FINE)
    assert (state.phase, splits((state,), course.topology)) == ("promoted", {"chat": (("new", 1), ("old", 0))})


def test_bad_intervals_in_a_row_roll_back_with_a_reason() -> None:
    course = Course()
    assert course.see(WORSE).phase == "progressing"
    assert course.waits_for == "a good evaluation after 1 of 2 bad ones in a row"
    state = course.see(WORSE)
    assert (state.phase, splits((state,), course.topology)) == ("rolled_back", {})
    assert state.reason == (
        "2 bad evaluations in a row, the last one bad (its error rate is significantly higher): new 200 errors in 1000 "
        "requests (20.00 %), old 45 errors in 9000 requests (0.50 %)"
    )
    assert (
        advance((state,), course.topology, 9_999, course.in_force)
        == reconcile((state,), course.topology, 9_999)
        == (state,)
    )
    assert act(state, course.rollout, "start", 100).analysis == AnalysisState()


def test_on_failure_pause_pauses_and_resumes_with_new_evidence() -> None:
    course = Course(on_failure="pause")
    state = course.see(WORSE, WORSE)
    assert (state.phase, state.percent) == ("paused", 10)
    course.state = act(state, course.rollout, "resume", course.now)
    assert (course.state.analysis.failures, course.state.analysis.step_new) == (0, RequestCounts())
    assert course.see(WORSE).phase == "progressing"


def test_a_resumed_step_needs_new_evidence() -> None:
    course = Course(steps=(RolloutStep(10, 15_000), RolloutStep(100)))
    assert course.see(FINE).step == 0, "the hold has not passed"
    course.now += 4
    paused = act(course.state, course.rollout, "pause", course.now)
    resumed = act(paused, course.rollout, "resume", course.now)
    (course.state,) = advance((resumed,), course.topology, course.now, course.in_force)
    course.now += 2
    assert advance((course.state,), course.topology, course.now, course.in_force) == (course.state,)
    assert course.waits_for == "the first evaluation of this step"
    assert course.see(FINE).phase == "promoted"


def test_only_a_good_interval_resets_the_count_of_bad_ones() -> None:
    silent = replace(FINE, silent=("edge",))
    course = Course()
    assert course.see(WORSE, FINE, WORSE).phase == "progressing"
    assert course.see(silent, WORSE).phase == "rolled_back"


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        (IntervalObservation(RequestCounts(), RequestCounts()), "no proxy reports its requests"),
        (replace(FINE, new=RequestCounts(19, 9)), "the new pool has {} of the required 200 requests"),
        (replace(FINE, old=RequestCounts(19, 0)), "the old pools have {} of the required 200 requests"),
        (replace(FINE, silent=("edge", "ha")), "no report from edge, ha"),
        (replace(FINE, metrics=(MetricValues("m", 1.5, problem="new: no"),)), "m: new: no"),
        (replace(FINE, metrics=(MetricValues("m", 1.5, 1.0, 0.0),)), "m: a ratio to 0 is undefined"),
    ],
)
def test_too_little_evidence_is_inconclusive_with_a_reason(observation: IntervalObservation, reason: str) -> None:
    course = Course()
    for number in range(1, 10):
        assert course.see(observation).phase == "progressing"
        assert (course.state.step, *course.last) == (0, "inconclusive", reason.format(19 * number))
        assert course.waits_for == course.last[1]


def test_intervals_with_too_few_requests_are_joined() -> None:
    course = Course()
    few = IntervalObservation(RequestCounts(90, 0), RequestCounts(900, 9), reporting=1)
    course.see(few, few)
    assert course.last == ("inconclusive", "the new pool has 180 of the required 200 requests")
    course.see(few)
    assert course.last == ("good", "")
    assert course.state.analysis.evaluations[-1].new == RequestCounts(270, 0)


@pytest.mark.parametrize("requests", [20, 40, 200])
@pytest.mark.parametrize("min_requests", [20, 1000])
def test_pool_that_fails_nearly_all_requests_is_bad(requests: int, min_requests: int) -> None:
    outage = IntervalObservation(RequestCounts(requests, requests), RequestCounts(requests, 0), reporting=1)
    course = Course((RolloutStep(50, 20_000), RolloutStep(100)), min_requests=min_requests)
    course.see(IntervalObservation(RequestCounts(900, 0), RequestCounts(900, 0), reporting=1))
    assert course.see(outage).phase == "progressing"
    assert course.last[0] == "bad"
    assert course.see(outage).phase == "rolled_back"


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (RequestCounts(19, 19), RequestCounts(19, 0)),
        (RequestCounts(20, 17), RequestCounts(20, 0)),
        (RequestCounts(20, 20), RequestCounts(20, 1)),
        (RequestCounts(20, 20), RequestCounts(19, 0)),
    ],
)
def test_nearly_all_means_many_failures_of_one_pool(new: RequestCounts, old: RequestCounts) -> None:
    course = Course((RolloutStep(50, 20_000), RolloutStep(100)), min_requests=1000)
    course.see(IntervalObservation(new, old, reporting=1))
    assert course.last[0] == "inconclusive"


def test_an_outage_of_both_pools_is_inconclusive() -> None:
    course = Course()
    outage = IntervalObservation(RequestCounts(1000, 300), RequestCounts(9000, 2700), reporting=1)
    assert course.see(*[outage] * 9).phase == "progressing"
    assert course.last == (
        "inconclusive",
        "an error rate of 30.00 % is above max_error_rate (2.00 %), but not significantly higher than in the old pools",
    )


def test_without_old_traffic_max_error_rate_alone_decides() -> None:
    steps = (RolloutStep(100, 20_000), RolloutStep(100))
    alone = IntervalObservation(RequestCounts(1000, 5), RequestCounts(), reporting=1)
    assert Course(steps).see(alone, alone).phase == "promoted"
    bad = replace(alone, new=RequestCounts(1000, 60))
    assert Course(steps).see(bad, bad).phase == "rolled_back"


def test_a_metric_above_its_ratio_is_bad_and_two_zeros_are_equal() -> None:
    metric = AnalysisMetric("flagged", "http://127.0.0.1:9090", '{pool="{pool}"}', 1.5)
    course = Course(metrics=(metric,))
    course.see(replace(FINE, metrics=(MetricValues("flagged", 1.5, 0.0, 0.0),)))
    assert course.last == ("good", "")
    course.see(replace(FINE, metrics=(MetricValues("flagged", 1.5, 3.2, 2.0),)))
    assert course.last == ("bad", "flagged is 1.6 times the old value")


def test_old_evidence_does_not_end_a_step() -> None:
    course = Course()
    course.see(FINE)
    assert advance((course.state,), course.topology, 9_999, course.in_force) == (course.state,)
    assert blocker(course.state, course.rollout, 9_999) == "a new evaluation"


def test_an_unmeasured_latency_never_passes() -> None:
    course = Course(latency_metric="total")
    course.see(FINE, FINE, FINE)
    assert course.state.step == 0
    assert course.waits_for == "the latency of only 0 requests of the new pool is known (at least 200 are needed)"


def _with_latencies(new: Iterable[float], old: Iterable[float]) -> IntervalObservation:
    return replace(FINE, latency_new=histogram(new), latency_old=histogram(old))


def test_a_slower_pool_rolls_back_and_an_equal_one_is_promoted() -> None:
    old = [100 + number % 100 for number in range(2000)]
    equal = Course(latency_metric="first_byte", latency_ratio=1.2)
    assert equal.see(*[_with_latencies(old[:400], old)] * 4).phase == "promoted"
    slower = Course(latency_metric="first_byte", latency_ratio=1.2)
    state = slower.see(*[_with_latencies([1.6 * each for each in old[:400]], old)] * 2)
    assert state.phase == "rolled_back"
    assert "first_byte p95 is 311 ms against 194 ms, a ratio of 1.6 (at most 1.2), significantly slower" in state.reason


def test_a_latency_difference_within_chance_is_inconclusive() -> None:
    old = [100 + number % 100 for number in range(2000)]
    course = Course(latency_metric="first_byte", latency_ratio=1.2)
    assert course.see(*[_with_latencies([1.22 * each for each in old[:200]], old)] * 3).step == 0
    assert course.last == (
        "inconclusive",
        "first_byte p95 is 238 ms against 194 ms, a ratio of 1.22 (at most 1.2), which is not significant",
    )


def test_a_difference_below_measurement_precision_is_ignored() -> None:
    course = Course(latency_metric="first_byte", latency_ratio=1.2)
    assert course.see(*[_with_latencies([2.0] * 400, [1.0] * 4000)] * 4).phase == "promoted"


def test_few_latencies_are_joined_but_errors_count_at_once() -> None:
    course = Course(latency_metric="first_byte", latency_ratio=1.2)
    course.see(_with_latencies([100.0] * 150, [100.0] * 150))
    assert course.last == (
        "inconclusive",
        "the latency of only 150 requests of the new pool is known (at least 200 are needed)",
    )
    course.see(_with_latencies([100.0] * 150, [100.0] * 150))
    assert course.last == ("good", "")
    worse = replace(WORSE, latency_new=histogram([]), latency_old=histogram([]))
    assert course.see(worse, worse).phase == "rolled_back"


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99])
def test_histogram_percentiles_are_exact_to_a_bucket_width(share: float) -> None:
    values = sorted(math.exp(number / 150) for number in range(1, 1500))
    percentile = histogram(values).percentile(share)
    assert percentile == pytest.approx(values[int(share * len(values))], rel=0.05)
    assert histogram([]).percentile(share) is None
    assert histogram(values).above(values[700]) == pytest.approx(len(values) - 701, abs=40)


def test_abort_wins_over_the_analysis() -> None:
    course = Course()
    course.see(FINE)
    course.state = act(course.state, course.rollout, "abort", course.now)
    assert advance((course.state,), course.topology, 15.0, course.in_force) == (course.state,)


# ── Statistics ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0, 1))
def test_upper_tail_matches_the_binomial_distribution(successes: int, trials: int, probability: float) -> None:
    expected = sum(
        math.comb(trials, count) * probability**count * (1 - probability) ** (trials - count)
        for count in range(successes, trials + 1)
    )
    assert upper_tail(successes, trials, probability) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_all_intervals_together_keep_the_false_alarm_rate(failures: int) -> None:
    assert sum(level(tests, failures) ** failures for tests in range(1, 100_000)) <= FALSE_ALARM


def test_cluster_size_ignores_high_rates_and_common_outages() -> None:
    def pair(new: int, old: int) -> tuple[RequestCounts, RequestCounts]:
        return RequestCounts(1000, new), RequestCounts(9000, old)

    assert cluster_size([pair(100, 45)] * 20) == 1.0
    assert cluster_size([pair(5, 0), pair(5, 90)] * 10) > 10
    assert cluster_size([pair(5, 45), pair(300, 2700)] * 10) < 2
    rare = [pair(0, 0), pair(0, 0), pair(0, 30), pair(0, 0)] * 10
    assert cluster_size(rare) > 20, "a pool without errors does not lower the estimate"


def test_a_common_stall_does_not_hide_a_slow_pool() -> None:
    """A stall delays the requests of both pools, so that interval does not make the new pool look slower."""

    def interval(new: float, old: float, slow: int) -> LatencyValues:
        return LatencyValues("first_byte p90", 1.2, new, old, RequestCounts(80, slow), RequestCounts(120, 12))

    usual, stalled, only_old = interval(262, 29, 80), interval(913, 689, 20), interval(265, 689, 20)
    assert cluster_of([usual] * 8) < 2
    assert cluster_of([*[usual] * 4, stalled, *[usual] * 4]) < 2
    assert cluster_of([*[usual] * 4, only_old, *[usual] * 4]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if row.name in ("equal, 1 %", "equal, 0.1 % in clusters of 10")])
def test_an_equal_pool_is_hardly_ever_rolled_back(row: Any) -> None:
    ends = simulate(row, 60, 7)
    assert ends.ends["rolled_back"] <= 1
    assert ends.ends["promoted"] >= 59


def test_a_doubled_error_rate_is_detected_in_three_intervals() -> None:
    (row,) = (row for row in ROWS if row.name.startswith("2 % → 4 %, 60,000 requests ("))
    assert simulate(row, 60, 7).fast >= 54
