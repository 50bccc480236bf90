"""Several pickers share the replicas of a pool while requests wait at more than one of them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from lbctl.ir.pools import PickPolicy, QueuePolicy
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.messages import Caller, PickerAnswer, PickerQuestion
from lbctl.picker.queue_shares import QueueShares
from lbctl.picker.service import PickService

LIMIT = 8


class _Site:
    """Two pickers on a virtual clock that exchange messages every 50 ms, and a pool for `limit` requests of 1 s."""

    def __init__(self, limit: int) -> None:
        self.now = 1000.0
        self.random = Random(1)
        queue = QueuePolicy(10_000, 500)
        replica = Candidate("a", "10.0.0.1:80", limit=limit)
        table = PoolTable("chat", PickPolicy((), None, queue=queue), (replica,))
        self.pickers = [PickService(lambda: self.now, Random(number)) for number in range(2)]
        for picker in self.pickers:
            picker.set_table("chat", table)
        self.served: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.most = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._exchange()

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, self.random.getrandbits(60), act))

    def send(self, picker: int, tenant: str, rate: float, begin: float = 0.0) -> None:
        """Send requests of a tenant for 60 seconds."""
        time = 1000.0 + begin
        while (time := time + self.random.expovariate(rate)) < 1060.0:
            self.at(time, lambda: self._ask(self.pickers[picker], tenant))

    def run(self) -> None:
        while self._events and self._events[0][0] < 1060.0:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def _ask(self, picker: PickService, tenant: str) -> None:
        question = PickerQuestion(Caller("chat", tenant=tenant), {}, b"", 400)

        def respond(answer: PickerAnswer) -> None:
            if not answer.names:
                self.rejected[tenant] += 1
                return
            self.served[tenant] += 1
            self.most = max(self.most, sum(item.open_picks for item in self.pickers))
            self.at(self.now + self.random.uniform(0.8, 1.2), lambda: picker.finished(answer.id))

        answer = picker.pick(question)
        if answer.must_wait:
            picker.wait(question, respond)
        else:
            respond(answer)

    def _exchange(self) -> None:
        first, second = self.pickers
        for own, other, name in ((first, second, "second"), (second, first, "first")):
            own.merge_waiting(name, other.waiting_flows())
            own.merge(name, other.counts())
        for picker in self.pickers:
            picker.serve_queues()
        self.at(self.now + 0.05, self._exchange)


@pytest.mark.parametrize("limit", [1, 4, LIMIT])
def test_flood_at_one_picker_does_not_starve_another_picker(limit: int) -> None:
    site = _Site(limit)
    site.send(0, "flood", rate=2.0 * limit)
    site.send(1, "other", rate=0.2 * limit, begin=5.0)
    site.run()
    assert site.served["other"] >= 5 * limit
    assert site.rejected["other"] == 0
    assert site.served.total() >= 54 * limit, "hardly any time of a replica is lost"
    assert site.most <= limit + 1


def test_pickers_with_a_flood_each_get_half() -> None:
    site = _Site(LIMIT)
    site.send(0, "one", rate=2.0 * LIMIT)
    site.send(1, "two", rate=2.0 * LIMIT, begin=5.0)
    site.run()
    assert 0.8 < site.served["two"] / (site.served["one"] - 5 * LIMIT) < 1.25
    assert site.served.total() >= 54 * LIMIT


def test_place_that_others_do_not_use_is_taken() -> None:
    shares = QueueShares()
    shares.merge("other", {"chat": 1}, 0.0)
    waits = []
    for step in range(3000):
        now = step / 100
        shares.merge("other", {"chat": 1}, now)
        if shares.leaves("chat", 1, 5, 5, now):
            waits.append(now)
    assert 0 < len(waits) < 100, "over 30 seconds, less than one second"


@pytest.mark.parametrize("flows", [{}, {"other": 1}])
def test_place_is_taken_if_no_other_picker_waits(flows: dict[str, int]) -> None:
    shares = QueueShares()
    shares.merge("other", flows, 0.0)
    assert not shares.leaves("chat", 1, 5, 5, 0.0)


def test_silent_picker_gets_no_place() -> None:
    shares = QueueShares()
    shares.merge("other", {"chat": 1}, 0.0)
    assert shares.leaves("chat", 1, 5, 5, 0.0)
    assert not shares.leaves("chat", 1, 5, 5, 3.0)
    assert shares.is_alone
