"""Engines of `lbctl simulate`: durations of requests, and invariants under any load."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbctl.simulate import kernel
from lbctl.simulate.engine import CostModel, Engine, SimulatedRequest
from lbctl.simulate.setup import SpeedChange
from lbctl.simulate.state import DONE, GAVE_UP
from lbctl.simulate.trace import Trace
from tests.support.simulate import EASY, load, pool, replayed

ONE = pool(1.0)
TIGHT = replace(CostModel(), sequences=8, cache=3000)


def test_a_single_request_takes_the_time_of_its_iterations() -> None:
    cost = CostModel(a=0.03, b=0.002, c=1e-6, p=1e-4)
    result = replayed(ONE, Trace([0.0], [1000], [3]), cost=cost)
    first = 0.03 + 0.1
    assert result.requests.first[0] == pytest.approx(first)
    assert result.requests.last[0] == pytest.approx(first + 2 * 0.032 + 1e-6 * (1000 + 1001))


def test_an_answer_of_one_token_ends_with_its_prompt() -> None:
    result = replayed(ONE, Trace([0.0], [10], [1]), cost=EASY)
    assert result.requests.state[0] == DONE
    assert result.requests.first[0] == result.requests.last[0] == pytest.approx(0.01)


def test_long_prompts_are_read_in_chunks_while_others_generate() -> None:
    result = replayed(ONE, Trace([0.0, 0.015], [10, 4096], [10, 2]), cost=EASY)
    assert result.requests.last[0] == pytest.approx(0.1)
    # From 20 ms on there are three iterations: one sequence generates, so that 2047 tokens are read in each of two.
    assert result.requests.first[1] == pytest.approx(0.05)


def test_an_arrival_waits_for_the_end_of_the_iteration() -> None:
    result = replayed(ONE, Trace([0.0, 0.234], [10, 10], [1000, 1]), cost=EASY)
    assert result.requests.first[1] == pytest.approx(0.25)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([2.0, 10.0, 50.0]))
def test_invariants_hold_under_any_load(seed: int, rate: float) -> None:
    """No token is lost, requests are admitted in order, and only a single request may exceed the cache."""
    trace = load(60, rate, prompt=300, answer=120, seed=seed)
    watched = WatchedCache()
    with watched:
        result = replayed(ONE, trace, cost=TIGHT)
    requests, engines = result.requests, result.engines
    done = [index for index in range(60) if requests.state[index] == DONE]
    assert done or GAVE_UP in requests.state
    if len(done) == 60:
        assert engines.decode_tokens[0] == sum(trace.answers)
        assert engines.context[0] == 0
    assert all(requests.first[index] <= requests.last[index] for index in done)
    firsts = [requests.first[index] for index in done]
    assert firsts == sorted(firsts)
    assert engines.busy_seconds[0] <= result.end + 1e-6
    assert watched.over == []


class WatchedCache:
    """Records when the cache of an engine exceeds its size at the start of an iteration."""

    def __init__(self) -> None:
        self.over: list[tuple[int, int]] = []
        self._begin = kernel.begin

    def __enter__(self) -> None:
        def begin(engines, requests, settings, progress, replica, now) -> None:  # type: ignore[no-untyped-def]
            self._begin(engines, requests, settings, progress, replica, now)
            together = engines.running[replica] + engines.reading[replica]
            needed = engines.context[replica] + engines.running[replica] * engines.planned[replica]
            needed += engines.tokens[replica]
            if together > 1 and needed > engines.cache[replica]:
                self.over.append((together, needed))

        kernel.begin = begin

    def __exit__(self, *_: object) -> None:
        kernel.begin = self._begin


def test_preempted_requests_finish_without_extra_tokens() -> None:
    trace = Trace([0.0] * 8, [200] * 8, [500] * 8)
    result = replayed(ONE, trace, cost=TIGHT)
    assert result.engines.preempted[0] > 0
    assert set(result.requests.state) == {DONE}
    assert result.engines.decode_tokens[0] == 8 * 500


def test_a_client_that_leaves_after_preemption_frees_the_queue() -> None:
    """The second prompt is preempted during prefill, because the first answer has grown. Its client leaves then."""
    cost, preempted = replace(EASY, cache=3000), 0
    for tokens in range(20):
        trace = Trace([0.0, 0.01 * tokens], [100, 2890], [400, 5])
        result = replayed(ONE, trace, cost=cost, patience=1.0)
        preempted += result.engines.preempted[0]
        assert (list(result.engines.waiting), list(result.engines.left)) == ([0], [0])
    assert preempted > 0


def test_a_prompt_larger_than_the_cache_runs_alone() -> None:
    result = replayed(ONE, Trace([0.0, 0.0], [5000, 10], [20, 5]), cost=TIGHT)
    assert set(result.requests.state) == {DONE}


def test_clients_that_lose_patience_cost_no_more_work() -> None:
    wedged = SpeedChange(0.005, "r0", 0.0)
    again = SpeedChange(100.0, "r0", 1.0)
    result = replayed(
        ONE, Trace([0.0, 1.0, 50.0], [10, 10, 10], [5, 5, 5]), "haproxy:round_robin", wedged, again, cost=EASY
    )
    assert [int(each) for each in result.requests.state] == [DONE, GAVE_UP, DONE]
    assert result.requests.first[2] >= 100.0
    assert result.engines.decode_tokens[0] == 5 + 5


def test_a_speed_change_counts_from_the_next_iteration() -> None:
    half = SpeedChange(0.105, "r0", 0.5)
    result = replayed(ONE, Trace([0.0], [10], [20]), "haproxy:round_robin", half, cost=EASY)
    assert result.requests.last[0] == pytest.approx(0.11 + 9 * 0.02)


def test_a_wedged_engine_resumes_its_iteration() -> None:
    stop, go = SpeedChange(0.055, "r0", 0.0), SpeedChange(7.0, "r0", 1.0)
    result = replayed(ONE, Trace([0.0], [10], [10]), "haproxy:round_robin", stop, go, cost=EASY)
    assert result.requests.last[0] == pytest.approx(7.0 + 4 * 0.01)


def test_runs_of_iterations_take_as_long_as_single_ones() -> None:
    """Waiting arrivals do not end a run of iterations, admitted ones do. The first answer takes equally long."""
    cost = CostModel(sequences=1)
    alone = replayed(ONE, Trace([0.0], [100], [400]), cost=cost)
    times = [0.0, *(0.1 * index for index in range(1, 40))]
    crowded = replayed(ONE, Trace(times, [100] * 40, [400] + [1] * 39), cost=cost)
    assert crowded.requests.last[0] == pytest.approx(alone.requests.last[0])
    assert all(one <= two for one, two in pairwise(crowded.requests.first))


def requests_after_real_engine(trace: Trace) -> list[SimulatedRequest]:
    """Return the requests of the trace after an `Engine`, as used by simulated HTTP replicas, has answered them."""
    engine, now, end = Engine(1.0), 0.0, math.inf
    sent = [SimulatedRequest(*each) for each in zip(trace.times, trace.prompts, trace.answers, strict=True)]
    coming = iter(sent)
    request = next(coming, None)
    while request is not None or end < math.inf:
        if request is not None and request.arrived < end:
            now = request.arrived
            engine.add(request)
            request = next(coming, None)
        else:
            now = end
            engine.end(now)
            engine.busy = False
        if not engine.busy:
            end = engine.begin(now) or math.inf
    return sent


def test_the_engine_behind_http_has_the_same_times() -> None:
    trace = load(200, 4.0, 900, 100)
    result = replayed(ONE, trace, cost=CostModel())
    sent = requests_after_real_engine(trace)
    assert [item.first for item in sent] == pytest.approx(list(result.requests.first))
    assert [item.last for item in sent] == pytest.approx(list(result.requests.last))


def test_a_prefix_is_read_once() -> None:
    trace = Trace([0.0, 10.0, 20.0], [1024, 1024, 1024], [2, 2, 2], [1, 1, 2], [(1, 2), (1, 2), (1, 9)], 512)
    result = replayed(ONE, trace)
    assert list(result.requests.hit) == [0, 1023, 512]
    assert result.engines.prefill_tokens[0] == 1024 + 1 + 512


def test_a_weak_replica_keeps_fewer_prefixes() -> None:
    """Sixteen blocks of 512 tokens, twice: the strong engine has room for all blocks, the weak one for eight."""
    strong, weak = replace(EASY, cache=20_000), replace(EASY, cache=5_000)
    count = 16
    trace = Trace(
        [5.0 * index for index in range(2 * count)], [1024] * 2 * count, [2] * 2 * count, (),
        [(index % count,) for index in range(2 * count)], 512,
    )  # fmt: skip
    assert sum(replayed(ONE, trace, cost=strong).requests.hit) == count * 512
    assert sum(replayed(ONE, trace, cost=weak).requests.hit) == 0
    both = replayed(pool(1.0, 1.0), trace, costs=(strong, weak))
    assert list(both.engines.cache_sets) == [4, 1]
    hits = [0, 0]
    for request in range(2 * count):
        hits[both.requests.replica[request]] += both.requests.hit[request]
    assert hits[0] > 0


def test_the_same_seed_gives_the_same_run() -> None:
    trace, where = load(300, 20.0), pool(5.0, 2.0, 1.0)
    one, same, other = (replayed(where, trace, "envoy:least_request", seed=seed, proxies=3) for seed in (1, 1, 2))
    assert list(one.requests.last) == list(same.requests.last)
    assert list(one.requests.replica) != list(other.requests.replica)
