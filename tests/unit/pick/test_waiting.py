"""The order in which waiting requests get replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from lbctl.pick.waiting import CREDIT, MAX_FINISHES, MAX_PASSED, RESERVE_SECONDS, FairQueue, WaitingRequest

HIGH, NORMAL, LOW = range(3)


def _request(
    number: int, flow: str = "", *, priority: int = NORMAL, cost: float = 100.0, lane: str = "all"
) -> WaitingRequest:
    return WaitingRequest(f"{flow}{number}", flow, priority, cost, float(number), lane)


def _queue(requests: Iterable[WaitingRequest]) -> FairQueue:
    queue = FairQueue()
    for request in requests:
        queue.add(request)
    return queue


def _taken(queue: FairQueue, count: int | None = None, weights: dict[str, float] | None = None) -> list[WaitingRequest]:
    taken: list[WaitingRequest] = []
    while len(queue) and (count is None or len(taken) < count):
        request = _next(queue)
        assert request is not None
        queue.take(request, (weights or {}).get(request.flow, 1.0))
        taken.append(request)
    return taken


def _next(queue: FairQueue, *full: str, crowded: bool = False, now: float = 0.0) -> WaitingRequest | None:
    """Return the request that goes next if these lanes are full, and only the reserve is free if it is `crowded`."""

    def decide(request: WaitingRequest, leaves_reserve: bool) -> bool | None:
        return None if request.lane in full or (crowded and leaves_reserve) else True

    found = queue.next(decide, now)
    return None if found is None else found[0]


def test_requests_of_one_flow_go_in_order_of_arrival() -> None:
    queue = _queue(_request(number) for number in range(5))
    assert [item.id for item in _taken(queue)] == ["0", "1", "2", "3", "4"]
    assert len(queue) == 0


def test_flood_of_one_tenant_delays_others_by_one_request() -> None:
    queue = _queue(_request(number, "flood") for number in range(100))
    _taken(queue, 10)
    for number in range(3):
        queue.add(_request(200 + number, "other"))
    flows = [item.flow for item in _taken(queue, 7)]
    assert flows.index("other") <= 1
    assert Counter(flows)["other"] == 3


def test_tenants_share_by_tokens_and_not_by_requests() -> None:
    long = [_request(number, "long", cost=1000.0) for number in range(50)]
    short = [_request(number, "short", cost=100.0) for number in range(500)]
    tokens: Counter[str] = Counter()
    for item in _taken(_queue([*long, *short]), 220):
        tokens[item.flow] += int(item.cost)
    assert 0.9 < tokens["long"] / tokens["short"] < 1.1


def test_weight_gives_a_tenant_a_larger_share() -> None:
    queue = _queue(_request(number, flow) for number in range(200) for flow in ("gold", "plain"))
    flows = Counter(item.flow for item in _taken(queue, 200, {"gold": 3.0}))
    assert flows["gold"] / flows["plain"] == pytest.approx(3.0, rel=0.05)


def test_pause_of_a_tenant_earns_a_limited_credit() -> None:
    """A tenant that has not asked for a while goes first, but is not served alone until it has caught up."""
    credit = int(CREDIT / 100)
    queue = _queue(_request(number, "steady") for number in range(1000))
    _taken(queue, 500)
    for number in range(2 * credit):
        queue.add(_request(1000 + number, "back"))
    assert Counter(item.flow for item in _taken(queue, credit)) == {"back": credit}
    flows = Counter(item.flow for item in _taken(queue, 40))
    assert abs(flows["steady"] - flows["back"]) <= 2


def test_share_that_was_used_leaves_no_credit() -> None:
    queue = _queue(_request(number, flow) for number in range(300) for flow in ("steady", "left"))
    _taken(queue, 200)
    for request in [item for item in queue._requests.values() if item.flow == "left"]:
        queue.remove(request.id)
    queue.add(_request(1000, "left"))
    assert queue._levels[NORMAL].credit("left") <= 0.0


def test_return_to_the_queue_gives_no_further_turn() -> None:
    """A tenant with one request at a time gets its share, and not every second request at any size."""
    queue = _queue(_request(number, "many") for number in range(200))
    tokens: Counter[str] = Counter()
    for number in range(100):
        if not queue.flows.get("single"):
            queue.add(_request(1000 + number, "single", cost=500.0))
        (item,) = _taken(queue, 1)
        tokens[item.flow] += int(item.cost)
    tokens["single"] -= int(CREDIT)
    assert tokens["single"] / tokens["many"] < 1.2


def test_higher_priority_goes_first() -> None:
    queue = _queue([_request(1, "a", priority=LOW), _request(2, "b"), _request(3, "c", priority=HIGH)])
    assert [item.flow for item in _taken(queue)] == ["c", "b", "a"]


def test_low_priority_does_not_starve() -> None:
    queue = _queue(_request(number, "high", priority=HIGH) for number in range(1000))
    for number in range(20):
        queue.add(_request(number, "low", priority=LOW))
    low = [place for place, item in enumerate(_taken(queue, 200)) if item.flow == "low"]
    assert low == [(MAX_PASSED + 1) * turn + MAX_PASSED for turn in range(20)]


def test_full_lane_does_not_block_other_replicas() -> None:
    queue = _queue([_request(1, "a", lane="EU"), _request(2, "a", lane="US"), _request(3, "b", lane="EU")])
    assert _next(queue, "EU") == _request(2, "a", lane="US")
    assert _next(queue, "EU", "US") is None
    assert _next(queue) == _request(1, "a", lane="EU")
    assert _next(queue, "US") == _request(1, "a", lane="EU")


def test_client_that_leaves_frees_its_place() -> None:
    queue = _queue(_request(number, "a") for number in range(3))
    assert queue.remove("a0") is not None
    assert queue.remove("a0") is None
    assert [item.id for item in _taken(queue)] == ["a1", "a2"]
    assert queue.flows == {}
    assert set(queue.priorities.values()) == {0}


def test_overdue_requests_are_the_oldest() -> None:
    queue = _queue(_request(number, str(number % 2)) for number in range(6))
    assert [item.since for item in queue.overdue(2.0)] == [0.0, 1.0, 2.0]


def test_position_counts_what_goes_before() -> None:
    queue = _queue(_request(number, "flood") for number in range(100))
    _taken(queue, 5)
    assert queue.before("other", NORMAL, {}) == (0, 0)
    assert queue.before("flood", NORMAL, {}) == (95, 1)
    assert queue.before("other", HIGH, {}) == (0, 0)
    assert queue.before("other", LOW, {}) == (95, 1)


def test_position_agrees_with_the_order() -> None:
    queue = _queue(_request(number, flow, cost=50.0 + number % 7) for number in range(30) for flow in "abc")
    _taken(queue, 20)
    before, _ = queue.before("new", NORMAL, {})
    queue.add(_request(99, "new"))
    assert abs([item.flow for item in _taken(queue)].index("new") - before) <= 1


def test_finished_tenants_are_forgotten() -> None:
    """Tenants that come once do not take memory, even if the queue is never empty."""
    queue = _queue(_request(number, "steady", cost=1e9) for number in range(3))
    for number in range(10_000):
        queue.add(_request(number, f"once{number}-"))
        _taken(queue, 1)
    level = queue._levels[NORMAL]
    assert len(level._finishes) <= MAX_FINISHES


def test_tenant_that_leaves_and_returns_takes_no_memory() -> None:
    """No replica becomes free in the meantime, so its start tag is always the same."""
    queue = _queue([_request(0, "steady")])
    for number in range(1000):
        queue.add(_request(number, "other"))
        queue.remove(f"other{number}")
    queue.add(_request(1000, "other"))
    assert [item.flow for item in _taken(queue)] == ["steady", "other"]
    assert len(queue._levels[NORMAL]._order) < 200


def test_full_lane_is_tried_once() -> None:
    """Otherwise, each request would sort all tenants."""
    queue = _queue(_request(number, f"t{number}", priority=number % 3) for number in range(30))
    tried = list[WaitingRequest]()
    assert queue.next(lambda item, _: tried.append(item), 0.0) is None
    assert len(tried) == 1


def test_reserve_is_for_flows_below_their_share() -> None:
    queue = _queue(_request(number, "flood") for number in range(300))
    _taken(queue, 200)
    assert _next(queue, crowded=True) == _request(200, "flood"), "without other flows, it uses all places"
    assert queue.goes_at_once("other", NORMAL, 300.0)
    assert not queue.goes_at_once("flood", NORMAL, 300.0)
    queue.add(_request(300, "other"))
    assert _next(queue, crowded=True, now=300.0) == _request(300, "other")
    _taken(queue, 1)
    assert _next(queue, crowded=True, now=300.0) is None
    assert _next(queue, crowded=True, now=301.0 + RESERVE_SECONDS) == _request(200, "flood")


def test_busy_flows_leave_no_reserve() -> None:
    """Their shares differ only by chance."""
    queue = _queue(_request(number, "flood") for number in range(300))
    _taken(queue, 200)
    queue.pass_by(_request(300, "other", cost=0.9 * CREDIT))
    queue.add(_request(400, "other"))
    assert queue._levels[NORMAL].credit("other") > 0.0
    assert _next(queue, crowded=True, now=400.0) == _request(400, "other")
    _taken(queue, 1)
    assert _next(queue, crowded=True, now=400.0) == _request(200, "flood")


def test_reserve_is_for_higher_priorities_and_for_a_turn() -> None:
    queue = _queue(_request(number, "high", priority=HIGH) for number in range(100))
    queue.add(_request(0, "low", priority=LOW))
    assert not queue.goes_at_once("new", LOW, 0.0)
    order = list[str]()
    while (request := _next(queue, crowded=True, now=99.0)) is not None:
        queue.take(request)
        order.append(request.flow)
    assert order == ["high"] * MAX_PASSED + ["low"] + ["high"] * (100 - MAX_PASSED)


def test_reserve_is_for_the_highest_priority_of_the_last_second() -> None:
    queue = _queue([_request(0, "low", priority=LOW)])
    assert queue.goes_at_once("normal", NORMAL, 0.0)
    queue.pass_by(_request(1, "high", priority=HIGH))
    assert not queue.goes_at_once("normal", NORMAL, 1.0)
    assert queue.goes_at_once("high", HIGH, 1.0)
    assert queue.goes_at_once("normal", NORMAL, 1.1 + RESERVE_SECONDS)


def test_request_that_goes_at_once_uses_the_credit() -> None:
    queue = _queue(_request(number, "flood") for number in range(1000))
    _taken(queue, 500)
    count = 0
    while queue.goes_at_once("other", NORMAL, 0.0):
        queue.pass_by(_request(200 + count, "other", cost=1000.0))
        count += 1
    assert count == pytest.approx(CREDIT / 1000, abs=1)
    assert queue.flows == {"flood": 500}


def test_reserve_is_decided_once_for_each_lane() -> None:
    """Otherwise, each event would try all tenants while only the reserve is free."""
    queue = _queue(_request(number, f"t{number % 30}") for number in range(6000))
    _taken(queue, 5000)
    queue.pass_by(_request(100, "other"))
    tried = list[WaitingRequest]()
    assert queue.next(lambda item, _: tried.append(item), 100.0) is None
    assert len(tried) == 1


def test_displaced_request_is_of_the_largest_flow() -> None:
    """The numbers of waiting requests stay exact while requests come and go."""
    random, queue, weights = Random(1), FairQueue(), {"t1": 2.0, "t2": 0.5}
    waiting: dict[str, WaitingRequest] = {}
    for number in range(2000):
        if waiting and random.random() < 0.48:
            removed = waiting.pop(random.choice(list(waiting)))
            queue.remove(removed.id)
        else:
            request = _request(number, f"t{random.randrange(6)}")
            waiting[request.id] = request
            queue.add(request)
        lengths = Counter(item.flow for item in waiting.values())
        sizes = {flow: count / weights.get(flow, 1.0) for flow, count in lengths.items()}
        displaced = queue.displaced("new", NORMAL, weights)
        if not sizes or max(sizes.values()) <= 1:
            assert displaced is None
        else:
            assert displaced is not None
            assert sizes[displaced.flow] == max(sizes.values())
            assert displaced.since == max(item.since for item in waiting.values() if item.flow == displaced.flow)
