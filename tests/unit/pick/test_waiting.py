"""The order in which waiting requests get replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from lbctl.pick.waiting import MAX_FINISHES, MAX_PASSED, FairQueue, WaitingRequest

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
        request = next(queue.heads(set()))
        queue.take(request, (weights or {}).get(request.flow, 1.0))
        taken.append(request)
    return taken


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


def test_pause_of_a_tenant_earns_no_credit() -> None:
    """A tenant that has not asked for a while shares from now on, and is not served alone until it has caught up."""
    queue = _queue(_request(number, "steady") for number in range(300))
    _taken(queue, 200)
    for number in range(100):
        queue.add(_request(1000 + number, "back"))
    flows = Counter(item.flow for item in _taken(queue, 40))
    assert abs(flows["steady"] - flows["back"]) <= 1


def test_return_to_the_queue_gives_no_further_turn() -> None:
    """A tenant with one request at a time gets its share, and not every second request at any size."""
    queue = _queue(_request(number, "many") for number in range(200))
    tokens: Counter[str] = Counter()
    for number in range(100):
        if not queue.flows.get("single"):
            queue.add(_request(1000 + number, "single", cost=500.0))
        (item,) = _taken(queue, 1)
        tokens[item.flow] += int(item.cost)
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
    assert [item.id for item in queue.heads({"EU"})] == ["a2"]
    assert [item.id for item in queue.heads({"EU", "US"})] == []
    assert {item.id for item in queue.heads(set())} == {"a1", "a2", "b3"}


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
    assert [item.flow for item in queue.heads(set())] == ["steady", "other"]
    assert len(queue._levels[NORMAL]._order) < 200


def test_full_lane_is_tried_once() -> None:
    """Otherwise, each request would sort all tenants."""
    queue = _queue(_request(number, f"t{number}", priority=number % 3) for number in range(30))
    full: set[object] = set()
    tried = []
    for item in queue.heads(full):
        tried.append(item)
        full.add(item.lane)
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
