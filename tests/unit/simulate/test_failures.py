"""Replicas that fail, recover and join; limits of proxies and the requests beyond them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lbctl.ir.pools import ActiveCheck, CircuitBreaker, HttpCheck, LoadShedding, PassiveCheck, Pool, SlowStart
from lbctl.ir.routes import Retry
from lbctl.simulate.engine import CostModel
from lbctl.simulate.policies import POLICIES
from lbctl.simulate.replay import Replay
from lbctl.simulate.setup import Outage, SpeedChange
from lbctl.simulate.state import BROKEN, DONE, SHED
from lbctl.simulate.trace import Trace
from tests.support.simulate import EASY, UNLIMITED, load, pool, replayed

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down

FRAIL = replace(pool(1.0, 1.0, 1.0), passive=None)
DEAD = Outage("r1", 20.0)
STEADY = load(1000, 20.0, 100, 100)
ONCE = Retry(attempts=0)


def states(result: Replay, state: int) -> list[int]:
    return [at for at, each in enumerate(result.requests.state) if each == state]


def arrival_times(result: Replay, requests: list[int]) -> list[float]:
    return [float(result.requests.arrived[at]) for at in requests]


@pytest.mark.parametrize("policy", [name for name in POLICIES if not name.endswith(":hash")])
def test_requests_of_a_dead_replica_break_and_others_succeed(policy: str) -> None:
    result = replayed(FRAIL, STEADY, policy, cost=EASY, outages=(DEAD,))
    broken = states(result, BROKEN)
    assert 0 < len(broken) < 30
    assert max(arrival_times(result, broken)) < 20.0
    assert len(states(result, DONE)) + len(broken) == 1000
    assert not [at for at in range(1000) if result.requests.replica[at] == 1 and result.requests.arrived[at] > 20.0]


def test_refused_connections_fail_until_a_health_check_fails() -> None:
    without = replayed(FRAIL, STEADY, "nginx:round_robin", cost=EASY, outages=(DEAD,), retry=ONCE)
    assert max(arrival_times(without, states(without, BROKEN))) > 45.0
    check = ActiveCheck(HttpCheck(), interval=2_000, unhealthy_threshold=2)
    checked = replayed(
        replace(FRAIL, active=check), STEADY, "nginx:round_robin", cost=EASY, outages=(DEAD,), retry=ONCE
    )
    assert 20.0 < max(arrival_times(checked, states(checked, BROKEN))) <= 24.0
    assert len(states(checked, BROKEN)) < len(states(without, BROKEN)) / 3


def test_a_replica_that_refuses_connections_is_ejected() -> None:
    passive = PassiveCheck(consecutive_connect_failures=3, ejection_time=10_000)
    result = replayed(
        replace(FRAIL, passive=passive), STEADY, "envoy:round_robin", cost=EASY, outages=(DEAD,), retry=ONCE
    )
    after = [at for at in arrival_times(result, states(result, BROKEN)) if at > 20.0]
    assert [sum(20 + 10 * turn < at <= 30 + 10 * turn for at in after) for turn in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("policy", ["envoy:pick", "haproxy:pick", "nginx:pick"])
def test_the_picker_backs_off_from_a_refusing_replica(policy: str) -> None:
    """It waits 0.5 s, then twice as long each time, up to 10 s. Otherwise an idle replica gets every request."""
    result = replayed(FRAIL, load(1000, 50.0, 10, 10), policy, cost=EASY, outages=(Outage("r1", 2.0),), retry=ONCE)
    late = [at for at in arrival_times(result, states(result, BROKEN)) if at > 2.0]
    assert len(late) <= 12
    gaps = [after - before for before, after in pairwise(late)]
    assert 3.5 < max(gaps) < 8.5
    again = replayed(FRAIL, load(1000, 50.0, 10, 10), policy, cost=EASY, outages=(Outage("r1", 2.0),))
    assert [at for at in arrival_times(again, states(again, BROKEN)) if at > 2.0] == []


def test_only_consecutive_connect_failures_eject() -> None:
    """Each outage causes two failures; three in a row would eject the replica."""
    where = replace(pool(1.0, 1.0), passive=PassiveCheck(consecutive_connect_failures=3, ejection_time=1_000_000))
    times = [0.0, 1.0, 2.0, 3.0, 20.0, 21.0, 22.0, 23.0, 40.0, 41.0, 42.0, 43.0]
    outages = Outage("r1", 0.5, 10.0), Outage("r1", 19.0, 30.0)
    result = replayed(where, Trace(times, [10] * 12, [2] * 12), "haproxy:round_robin", cost=EASY, outages=outages)
    assert [int(each) for each in result.requests.replica[8:]].count(1) == 2


def test_events_at_time_0_come_before_the_first_request() -> None:
    first = Trace([0.0, 0.0, 1.0], [10] * 3, [5] * 3)
    for change in ({"outages": (Outage("r0", 0.0),)}, {"joins": {"r0": 0.0}}):
        result = replayed(pool(1.0), first, cost=EASY, retry=ONCE, **change)  # type: ignore[arg-type]
        assert set(result.requests.state) == ({BROKEN} if "outages" in change else {DONE})
    slow = SpeedChange(0.0, "r0", 0.5)
    assert replayed(pool(1.0), first, "nginx:random", slow, cost=EASY).requests.first[0] == pytest.approx(0.02)


def test_overlapping_outages_are_merged() -> None:
    trace = Trace([1.0 * each for each in range(60)], [10] * 60, [2] * 60)
    overlapping = Outage("r0", 20.0, 39.5), Outage("r0", 9.5, 30.0), Outage("r0", 12.0, 15.0)
    result = replayed(replace(pool(1.0), passive=None), trace, cost=EASY, outages=overlapping)
    assert states(result, BROKEN) == list(range(10, 40))


def test_broken_requests_fail_without_another_replica() -> None:
    repeated = Retry(idempotent=True)
    result = replayed(
        replace(limited(3), replicas=pool(1.0).replicas), BURST, "nginx:random", cost=replace(EASY, a=1.0),
        outages=(Outage("r0", 0.5),), retry=repeated,
    )  # fmt: skip
    assert (len(states(result, BROKEN)), len(states(result, SHED))) == (3, 17)


def test_only_idempotent_requests_are_retried_after_a_break() -> None:
    slow = replace(EASY, a=0.5)
    times = [0.1 * index for index in range(10)]
    trace = Trace(times, [10] * 10, [5] * 10)
    outage = Outage("r1", 1.05)
    once = replayed(FRAIL, trace, "haproxy:round_robin", cost=slow, outages=(outage,))
    again = replayed(FRAIL, trace, "haproxy:round_robin", cost=slow, outages=(outage,), retry=Retry(idempotent=True))
    assert len(states(again, BROKEN)) < len(states(once, BROKEN))
    # A request cannot be retried after its answer has begun.
    begun = [at for at in states(once, BROKEN) if once.requests.first[at] >= 0]
    assert states(again, BROKEN) == begun


def test_a_recovered_replica_ramps_after_its_checks() -> None:
    back = Outage("r1", 10.0, 30.0)
    check = ActiveCheck(HttpCheck(), interval=1_000, healthy_threshold=3)
    where = replace(FRAIL, active=check, slow_start=SlowStart(window=20_000, min_weight=1.0))
    trace = load(4000, 50.0, 10, 2)
    result = replayed(where, trace, "envoy:round_robin", cost=EASY, outages=(back,))

    def share(begin: float, end: float) -> float:
        between = [at for at in range(4000) if begin <= result.requests.arrived[at] < end]
        return sum(result.requests.replica[at] == 1 for at in between) / len(between)

    assert share(14, 32) == 0
    assert 0 < share(33, 37) < 0.12 < share(43, 47) < 0.28 < share(56, 79) < 0.36
    at_once = replayed(replace(where, slow_start=None), trace, "envoy:round_robin", cost=EASY, outages=(back,))
    placed = [int(at_once.requests.replica[at]) for at in range(4000) if 33.5 < trace.times[at] < 37]
    assert placed.count(1) / len(placed) > 0.28


@pytest.mark.parametrize("policy", ["nginx:round_robin", "haproxy:round_robin", "envoy:pick"])
def test_a_joining_replica_gets_no_requests_before(policy: str) -> None:
    where = replace(FRAIL, slow_start=SlowStart(window=10_000))
    result = replayed(where, STEADY, policy, cost=EASY, joins={"r2": 15.0})
    joined = [float(result.requests.arrived[at]) for at in range(1000) if result.requests.replica[at] == 2]
    assert min(joined) >= 15.0
    assert 0.2 < sum(at > 30 for at in joined) / sum(at > 30 for at in STEADY.times) < 0.5


@pytest.mark.parametrize("policy", ["envoy:round_robin", "envoy:least_request", "haproxy:round_robin"])
def test_slow_start_begins_at_the_minimum_weight(policy: str) -> None:
    """A tenth of the weight next to two full replicas: idle replicas are chosen by weight."""
    where, idle = replace(FRAIL, slow_start=SlowStart(window=10_000_000, min_weight=10.0)), load(4000, 20.0, 10, 2)
    placed = list(replayed(where, idle, policy, cost=EASY, joins={"r2": 1.0}).requests.replica)
    assert placed.count(2) / 4000 == pytest.approx(0.1 / 2.1, abs=0.01)


def test_slow_start_of_nginx_leaves_half_of_the_capacity() -> None:
    """Two of three replicas join: without the rule, each would have a twelfth of the requests."""
    where, idle = replace(FRAIL, slow_start=SlowStart(window=10_000_000)), load(4000, 20.0, 10, 2)
    placed = replayed(where, idle, "nginx:round_robin", cost=EASY, joins={"r1": 1.0, "r2": 1.0}).requests.replica
    assert list(placed).count(0) / 4000 == pytest.approx(2 / 3, abs=0.02)


def test_a_dead_engine_loses_its_cache() -> None:
    trace = Trace([0.0, 5.0, 20.0, 30.0], [1024] * 4, [2] * 4, (), [(1, 2)] * 4, 512)
    result = replayed(pool(1.0), trace, "haproxy:round_robin", outages=(Outage("r0", 10.0, 15.0),))
    assert list(result.requests.hit) == [0, 1023, 0, 1023]


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def limited(limit: int, waiting: int = 1000, queue_timeout: int = 10_000) -> Pool:
    breaker = CircuitBreaker(1_000_000, waiting, 1_000_000, 1_000_000, replica_max_requests=limit)
    return replace(pool(1.0, 1.0), circuit_breaker=breaker, queue_timeout=queue_timeout)


BURST = Trace([0.001 * index for index in range(20)], [10] * 20, [101] * 20)
"""Each request takes 1.01 s."""


def most_at_once(result: Replay) -> int:
    """Return the largest number of requests that a replica had at one time."""
    events = [
        (float(time), change, int(result.requests.replica[at]))
        for at in states(result, DONE)
        for time, change in ((result.requests.first[at], 1), (result.requests.last[at], -1))
    ]
    at_once, most = {0: 0, 1: 0}, 0
    for _, change, replica in sorted(events):
        at_once[replica] += change
        most = max(most, at_once[replica])
    return most


@pytest.mark.parametrize("policy", ["envoy:round_robin", "haproxy:least_request", "haproxy:hash", "haproxy:pick"])
def test_requests_beyond_replica_limits_wait_in_the_proxy(policy: str) -> None:
    result = replayed(limited(3), BURST, policy, cost=EASY)
    assert len(states(result, DONE)) == 20
    assert most_at_once(result) == 3
    assert max(result.requests.last) > 3 * 1.01


@pytest.mark.parametrize("policy", [name for name in POLICIES if name.startswith("nginx:")])
def test_nginx_rejects_requests_beyond_the_limit(policy: str) -> None:
    result = replayed(limited(3), BURST, policy, cost=EASY)
    assert most_at_once(result) == 3
    assert len(states(result, SHED)) >= 14
    assert len(states(result, SHED)) + len(states(result, DONE)) == 20


def test_queues_are_limited_in_length_and_in_haproxy_in_time() -> None:
    few = replayed(limited(3, waiting=4), BURST, "haproxy:round_robin", cost=EASY)
    assert len(states(few, SHED)) == 20 - 6 - 4
    soon = replayed(limited(3, queue_timeout=500), BURST, "haproxy:round_robin", cost=EASY)
    assert len(states(soon, SHED)) == 14
    envoy = replayed(limited(3, queue_timeout=500), BURST, "envoy:round_robin", cost=EASY)
    assert len(states(envoy, SHED)) == 0


def test_the_limit_of_the_pool_is_shared_by_the_proxies() -> None:
    where = replace(pool(1.0, 1.0), circuit_breaker=replace(UNLIMITED, max_requests=8))
    result = replayed(where, BURST, "envoy:least_request", cost=EASY, proxies=2)
    done = len(states(result, DONE))
    assert 6 <= done <= 8
    assert len(states(result, SHED)) == 20 - done


def test_requests_queued_for_a_dead_replica_move() -> None:
    result = replayed(limited(3), BURST, "envoy:round_robin", cost=EASY, outages=(Outage("r1", 0.5),))
    assert len(states(result, BROKEN)) == 3
    assert len(states(result, DONE)) == 17


def test_the_haproxy_queue_moves_to_a_new_replica() -> None:
    where = replace(limited(3), passive=PassiveCheck(ejection_time=500))
    for change in ({"joins": {"r1": 0.5}}, {"outages": (Outage("r1", 0.0, 0.3),)}):
        result = replayed(where, BURST, "haproxy:least_request", cost=EASY, **change)  # type: ignore[arg-type]
        first = sorted(float(result.requests.first[at]) for at in range(20) if result.requests.replica[at] == 1)
        assert first[:3] == pytest.approx([0.51] * 3, abs=0.02)


def test_a_retry_while_other_replicas_are_full() -> None:
    """nginx rejects it. HAProxy retries the same server, and queues the request after that server is marked down."""
    outages, trace = (Outage("r1", 0.0),), Trace([1.0, 1.1], [10] * 2, [101] * 2)
    alone = replace(limited(1), passive=None)
    nginx = replayed(alone, trace, "nginx:least_request", cost=EASY, outages=outages)
    assert list(nginx.requests.state) == [DONE, SHED]
    assert list(replayed(alone, trace, "haproxy:least_request", cost=EASY, outages=outages).requests.state) == [
        DONE, BROKEN
    ]  # fmt: skip
    passive = PassiveCheck(consecutive_connect_failures=3)
    where, thrice = replace(alone, passive=passive), Retry(attempts=3)
    marked = replayed(where, trace, "haproxy:least_request", cost=EASY, outages=outages, retry=thrice)
    assert list(marked.requests.state) == [DONE, DONE]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["nginx:random", "envoy:least_request"])
def test_retries_are_spread_evenly(policy: str) -> None:
    for dead in range(3):
        result = replayed(FRAIL, load(3000, 20.0, 10, 10), policy, cost=EASY, outages=(Outage(f"r{dead}", 0.0),))
        placed = list(result.requests.replica)
        assert [placed.count(at) / 3000 for at in range(3) if at != dead] == pytest.approx([0.5] * 2, abs=0.03)


def test_load_shedding_below_the_minimum_of_healthy_replicas() -> None:
    check = ActiveCheck(HttpCheck(), interval=1_000, unhealthy_threshold=1)
    where = replace(FRAIL, active=check, load_shedding=LoadShedding(min_healthy=60.0))
    outages = (Outage("r0", 10.0), Outage("r1", 10.0, 20.0))
    result = replayed(where, STEADY, "envoy:least_request", cost=EASY, outages=outages)
    refused = arrival_times(result, states(result, SHED))
    assert 10 < min(refused) < 12
    assert 20 < max(refused) < 24
    assert len(refused) > 100


def test_failures_are_deterministic() -> None:
    check = ActiveCheck(HttpCheck(), interval=1_000)
    where = replace(limited(16), active=check, slow_start=SlowStart())
    one, two = (
        replayed(where, STEADY, "envoy:least_request", cost=CostModel(), outages=(Outage("r1", 5.0, 15.0),), proxies=2)
        for _ in range(2)
    )
    assert (list(one.requests.last), list(one.requests.state)) == (list(two.requests.last), list(two.requests.state))


@pytest.mark.parametrize("policy", ["envoy:pick", "haproxy:pick", "nginx:pick"])
def test_replica_limits_hold_if_nothing_can_be_picked(policy: str) -> None:
    limits = replace(UNLIMITED, replica_max_requests=4, max_pending_requests=40)
    where, trace = replace(pool(1.0, 1.0), circuit_breaker=limits), load(3000, 30.0, 100, 50)
    other = policy.replace("pick", "least_request")
    shed = [len(states(replayed(where, trace, name, cost=EASY, proxies=2), SHED)) for name in (policy, other)]
    assert shed[0] == pytest.approx(shed[1], rel=0.1)
