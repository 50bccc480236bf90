"""The queue at the picker in a simulation: its order, its limits, and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lbctl.ir.pools import Balance, PickPolicy, Pool, QueuePolicy, Telemetry
from lbctl.pick.waiting import MAX_PASSED, PRIORITIES
from lbctl.simulate.engine import CostModel
from lbctl.simulate.queue_figures import (
    MAX_TENANTS,
    OTHER,
    QueueFigures,
    ReplicaChange,
    longest_idle,
    queue_figures,
)
from lbctl.simulate.replay import Replay
from lbctl.simulate.results import summarise
from lbctl.simulate.setup import Outage
from lbctl.simulate.state import BROKEN, DONE, GAVE_UP, SHED
from lbctl.simulate.trace import Trace
from tests.support.simulate import EASY, UNLIMITED, pool, replayed

HIGH, NORMAL, LOW = range(len(PRIORITIES))
PICKED = ("envoy:pick", "haproxy:pick", "nginx:pick")


def queued(*capacities: float, limit: int | None = 1, **policy: Any) -> Pool:
    """Return a pool with a queue, whose replicas accept `limit` requests each. `policy`: settings of the queue."""
    settings = QueuePolicy(**{"max_wait": 60_000, **policy})
    return replace(
        pool(*capacities),
        balance=Balance(pick=PickPolicy((), queue=settings)),
        circuit_breaker=replace(UNLIMITED, replica_max_requests=limit),
    )


def requests(*arrivals: tuple[float, str], answer: int = 11, priorities: Sequence[int] = ()) -> Trace:
    """Return requests as (time, tenant). With EASY, each takes a replica for 10 ms for each token of the answer."""
    times, tenants = [at for at, _ in arrivals], [tenant for _, tenant in arrivals]
    count = len(arrivals)
    return Trace(times, [100] * count, [answer] * count, tenants=tenants, priorities=priorities)


def order(result: Replay) -> list[int]:
    """Return the answered requests in the order of their first tokens."""
    done = [request for request, state in enumerate(result.requests.state) if state == DONE]
    return sorted(done, key=lambda request: float(result.requests.first[request]))


def figures(result: Replay) -> QueueFigures:
    found = queue_figures(result)
    assert found is not None
    return found


FLOOD = requests(*[(0.0, "flood")] * 8, (0.05, "small"))


@pytest.mark.parametrize("policy", PICKED)
def test_small_tenant_waits_for_few_requests_of_a_flood(policy: str) -> None:
    fair = replayed(queued(1.0), FLOOD, policy, cost=EASY)
    assert order(fair).index(8) == 2
    assert figures(fair).tenants["small"].wait_max == pytest.approx(0.17, abs=0.01)
    fifo = replayed(queued(1.0, order="fifo"), FLOOD, policy, cost=EASY)
    assert order(fifo).index(8) == 8
    together = replayed(queued(1.0, by="all"), FLOOD, policy, cost=EASY)
    assert order(together).index(8) == 8


def test_tenants_share_replicas_by_weight() -> None:
    trace = requests(*[(0.0, "a"), (0.0, "b")] * 40)
    result = replayed(queued(1.0, weights=(("a", 3.0),)), trace, "envoy:pick", cost=EASY)
    first = [trace.tenants[request] for request in order(result)[:40]]
    assert first.count("a") == pytest.approx(30, abs=1)


def test_high_priority_goes_first_but_low_does_not_starve() -> None:
    trace = requests(*[(0.0, "a")] * 32, priorities=[NORMAL, LOW, *[HIGH] * 30])
    result = replayed(queued(1.0), trace, "envoy:pick", cost=EASY)
    assert order(result).index(1) == 1 + MAX_PASSED
    assert list(figures(result).priorities) == list(PRIORITIES)


@pytest.mark.parametrize("policy", PICKED)
def test_requests_beyond_the_queue_are_rejected(policy: str) -> None:
    result = replayed(queued(1.0, max_requests=3), requests(*[(0.0, "a")] * 6), policy, cost=EASY)
    assert list(result.requests.state) == [DONE] * 4 + [SHED] * 2
    assert (figures(result).total.waited, figures(result).total.rejected) == (3, 2)
    assert summarise(result).shed == pytest.approx(2 / 6)


def test_small_tenant_waits_in_a_queue_that_a_flood_has_filled() -> None:
    trace = requests(*[(0.0, "flood")] * 8, (0.05, "small"))
    result = replayed(queued(1.0, max_requests=3), trace, "envoy:pick", cost=EASY)
    assert list(result.requests.state) == [DONE] * 3 + [SHED] * 5 + [DONE]
    tenants = figures(result).tenants
    assert (tenants["flood"].rejected, tenants["small"].rejected) == (5, 0)


@pytest.mark.parametrize("policy", PICKED)
def test_requests_that_wait_too_long_are_rejected(policy: str) -> None:
    result = replayed(queued(1.0, max_wait=150), requests(*[(0.0, "a")] * 6), policy, cost=EASY)
    assert list(result.requests.state) == [DONE] * 2 + [SHED] * 4
    assert figures(result).total.wait_max == pytest.approx(0.11, abs=0.01)


def test_haproxys_own_queue_time_does_not_end_the_wait() -> None:
    where = replace(queued(1.0), queue_timeout=150)
    result = replayed(where, requests(*[(0.0, "a")] * 6), "haproxy:pick", cost=EASY)
    assert list(result.requests.state) == [DONE] * 6


def test_client_that_leaves_frees_its_place() -> None:
    trace = Trace([0.0, 0.1, 1.5], [100] * 3, [201, 11, 11])
    result = replayed(queued(1.0, max_requests=1), trace, "envoy:pick", cost=EASY, patience=1.0)
    assert list(result.requests.state) == [DONE, GAVE_UP, DONE]
    assert figures(result).total.left == 1


def test_no_replica_is_free_while_requests_wait() -> None:
    trace = requests(*[(0.02 * index, f"t{index % 7}") for index in range(300)])
    result = replayed(queued(1.0, 1.0, limit=2), trace, "envoy:pick", cost=EASY)
    assert result.queue is not None
    sent = [trace.times[request] + wait for request, wait in result.queue.waits.items()]
    assert len(sent) > 200
    ends = [float(at) for at in result.requests.last]
    assert all(min(abs(at - end) for end in ends) < 1e-9 for at in sent), "each is sent when another one ends"


SLOW_PROMPTS = CostModel(a=0.01, b=0.0, c=1e-12, p=0.0001, sequences=64, cache=1_000_000)
"""An engine that computes a prompt of 2,000 tokens in 0.2 s."""


def test_burst_in_free_places_waits_for_the_prompts_of_others() -> None:
    """The places of the replica are sufficient for all requests."""
    burst = [(10.0, "burst")] * 20
    arrivals = sorted([*burst, *((index / 2 + 0.01, "small") for index in range(40))])
    prompts = [2000 if tenant == "burst" else 100 for _, tenant in arrivals]
    trace = replace(requests(*arrivals), prompts=prompts)
    columns = replayed(queued(1.0, limit=64), trace, "envoy:pick", cost=SLOW_PROMPTS).requests
    small = [index for index, (_, tenant) in enumerate(arrivals) if tenant == "small"]
    slowest = max(float(columns.first[index] - columns.arrived[index]) for index in small)
    assert slowest < 0.7, "in the order of arrival, it is 4 s"


def test_idle_time_is_measured() -> None:
    trace = requests(*[(0.02 * index, f"t{index % 7}") for index in range(300)])
    result = replayed(queued(1.0, 1.0, limit=2), trace, "envoy:pick", cost=EASY)
    assert figures(result).idle == 0.0
    assert figures(replayed(queued(1.0, limit=None), FLOOD, "envoy:pick", cost=EASY)).idle is None
    died = replayed(queued(1.0, 1.0), FLOOD, "envoy:pick", cost=EASY, outages=(Outage("r0", 0.2),))
    assert figures(died).idle is None


def test_longest_idle_needs_a_place_and_no_unread_prompt() -> None:
    waiting = [(0.0, 1), (10.0, -1)]
    reads = [ReplicaChange(0.0, 0, 1, 1), ReplicaChange(4.0, 0, 0, -1), ReplicaChange(5.0, 0, 1, 1)]
    assert longest_idle(waiting, reads, 1, 7) == 1.0
    full = [ReplicaChange(0.0, 0, 7, 7), ReplicaChange(2.0, 0, 0, -7), ReplicaChange(7.0, 0, -1, 0)]
    assert longest_idle(waiting, full, 1, 7) == 3.0
    assert longest_idle(waiting, full, 1, 8) == 3.0, "the eighth place is the reserve"
    assert longest_idle([], reads, 1, 7) == 0.0


def test_full_engine_lets_requests_wait_without_a_limit() -> None:
    """The engine answers 36 requests a second, and the tenant `flood` sends 72 for 5 s."""
    slots = CostModel(a=0.01, b=0.0, c=1e-12, p=0.0, sequences=4, cache=1_000_000)
    arrivals = sorted([(index / 72, "flood") for index in range(360)] + [(index / 2, "small") for index in range(10)])
    where = replace(queued(1.0, limit=None), telemetry=Telemetry(100))
    result = replayed(where, requests(*arrivals), "envoy:pick", cost=slots, delay=0.05)
    plain = replayed(replace(where, balance=Balance()), requests(*arrivals), "envoy:pick", cost=slots, delay=0.05)
    assert queue_figures(plain) is None

    def slowest(run: Replay) -> float:
        columns = run.requests
        small = [index for index, (at, tenant) in enumerate(arrivals) if tenant == "small" and at > 1.0]
        return max(float(columns.first[index] - columns.arrived[index]) for index in small)

    assert slowest(result) < 0.7
    assert slowest(plain) > 1.5
    assert max(result.requests.last) == pytest.approx(max(plain.requests.last), rel=0.15)


@pytest.mark.parametrize("policy", PICKED)
def test_waiting_requests_end_when_all_replicas_die(policy: str) -> None:
    where, trace = queued(1.0, 1.0), requests(*[(0.0, f"t{index}") for index in range(20)])
    result = replayed(where, trace, policy, cost=EASY, outages=(Outage("r0", 0.2), Outage("r1", 0.2)))
    assert Counter(result.requests.state) == {DONE: 2, BROKEN: 18}


def test_waiting_requests_go_to_a_replica_that_joins() -> None:
    trace = requests((0.0, "a"), (0.1, "a"), answer=501)
    result = replayed(queued(1.0, 1.0), trace, "envoy:pick", cost=EASY, joins={"r1": 1.0})
    assert list(result.requests.replica) == [0, 1]
    assert result.requests.first[1] == pytest.approx(1.01, abs=0.02)


def test_other_algorithms_have_no_queue() -> None:
    assert summarise(replayed(queued(1.0), FLOOD, "envoy:least_request", cost=EASY)).queue is None
    assert summarise(replayed(pool(1.0), FLOOD, "envoy:pick", cost=EASY)).queue is None


def test_runs_with_a_queue_are_deterministic() -> None:
    trace = requests(*[(0.03 * index, f"t{index % 5}") for index in range(200)])
    one, two = (replayed(queued(1.0, 0.5, limit=2), trace, "envoy:pick", proxies=2) for _ in range(2))
    assert summarise(one) == summarise(two)


def test_small_tenants_are_shown_together() -> None:
    trace = requests(*[(0.0, "big")] * 3, *[(0.0, f"t{index:02}") for index in range(40)])
    tenants = figures(replayed(queued(1.0), trace, "envoy:pick", cost=EASY)).tenants
    assert len(tenants) == MAX_TENANTS + 1
    assert tenants["big"].requests == 3
    assert tenants[OTHER].requests == 40 - (MAX_TENANTS - 1)
