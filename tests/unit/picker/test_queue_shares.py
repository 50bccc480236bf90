"""Several pickers share the replicas of a pool while requests wait at more than one of them."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from math import inf
from random import Random

import pytest

from lbctl.ir.pools import PickPolicy, QueuePolicy
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.exchange import message_of, parse
from lbctl.picker.messages import Caller, PickerAnswer, PickerQuestion
from lbctl.picker.queue_shares import Demand, QueueShares
from lbctl.picker.service import PickService

LIMIT = 8
BEGIN, COUNTED, END = 1000.0, 1006.0, 1040.0
"""Requests are sent from the first time, and counted from the second one, until the third one."""


class _Site:
    """Pickers on a virtual clock that exchange messages every 50 ms, and a replica for `limit` requests of about 1 s.

    No picker sends its messages at the same time as another one.
    """

    def __init__(self, pickers: int, limit: int, weights: dict[str, float] | None = None) -> None:
        self.now = BEGIN
        self.limit = limit
        self.random = Random(1)
        queue = QueuePolicy(60_000, 500, weights=tuple((weights or {}).items()))
        table = PoolTable("chat", PickPolicy((), None, queue=queue), (Candidate("a", "10.0.0.1:80", limit=limit),))
        self.pickers = [PickService(lambda: self.now, Random(number)) for number in range(pickers)]
        self.served: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.waits: defaultdict[str, list[float]] = defaultdict(list)
        self.most = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for number, picker in enumerate(self.pickers):
            picker.set_table("chat", table)
            self._at(BEGIN + number * 0.05 / pickers, partial(self._exchange, number))
            self._at(BEGIN + self.random.uniform(0.0, 0.05), partial(self._serve_queue, picker))

    def flood(self, picker: int, tenant: str, priority: str = "normal") -> None:
        """Keep more requests of a tenant at a picker than the replica can run."""
        for _ in range(2 * self.limit):
            self._at(BEGIN + picker, partial(self._ask, picker, tenant, priority, repeats=True))

    def send(self, picker: int, tenant: str, rate: float, priority: str = "normal", begin: float = 5.0) -> None:
        """Send requests of a tenant at a rate."""
        time = BEGIN + begin
        while (time := time + self.random.expovariate(rate)) < END:
            self._at(time, partial(self._ask, picker, tenant, priority))

    def run(self) -> None:
        while self._events[0][0] < END:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def share(self, tenant: str) -> float:
        return self.served[tenant] / self.served.total()

    def _at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, self.random.getrandbits(60), act))

    def _ask(self, number: int, tenant: str, priority: str, *, repeats: bool = False) -> None:
        picker = self.pickers[number]
        question = PickerQuestion(Caller("chat", tenant=tenant, priority=priority), {}, b"", 400)
        asked = self.now

        def respond(answer: PickerAnswer) -> None:
            if not answer.names:
                self.rejected[tenant] += 1
                return
            if self.now >= COUNTED:
                self.served[tenant] += 1
                self.waits[tenant].append(self.now - asked)
            self.most = max(self.most, sum(item.open_picks for item in self.pickers))
            self._at(self.now + self.random.uniform(0.8, 1.2), lambda: end(answer))

        def end(answer: PickerAnswer) -> None:
            picker.finished(answer.id)
            if repeats:
                self._ask(number, tenant, priority, repeats=True)

        answer = picker.pick(question)
        if answer.must_wait:
            picker.wait(question, respond)
        else:
            respond(answer)

    def _exchange(self, number: int) -> None:
        sender = self.pickers[number]
        message = message_of(str(number), sender.counts(), sender.demands())
        for other, picker in enumerate(self.pickers):
            if other != number:
                self._at(self.now + 0.001, partial(self._receive, picker, message, number < other))
        self._at(self.now + 0.05, partial(self._exchange, number))

    @staticmethod
    def _receive(picker: PickService, message: bytes, precedes: bool) -> None:
        parsed = parse(message)
        assert parsed is not None
        sender, counts, demands = parsed
        picker.merge_demands(sender, demands, precedes)
        picker.merge(sender, counts)

    def _serve_queue(self, picker: PickService) -> None:
        picker.serve_queues()
        self._at(self.now + 0.05, partial(self._serve_queue, picker))


@pytest.mark.parametrize("limit", [1, 4, LIMIT])
def test_flood_at_one_picker_does_not_starve_another_picker(limit: int) -> None:
    site = _Site(2, limit)
    site.flood(0, "flood")
    site.send(1, "other", 0.2 * limit)
    site.run()
    assert site.served["other"] >= 4 * limit
    assert not site.rejected
    assert site.served.total() >= 32 * limit, "hardly any time of a replica is lost"
    assert site.most <= limit


@pytest.mark.slow
@pytest.mark.parametrize(("pickers", "limit"), [(2, 1), (2, LIMIT), (3, 1), (5, LIMIT)])
def test_pickers_with_a_flood_each_share_equally(pickers: int, limit: int) -> None:
    site = _Site(pickers, limit)
    for number in range(pickers):
        site.flood(number, str(number))
    site.run()
    served = [site.served[str(number)] for number in range(pickers)]
    assert max(served) - min(served) <= 0.1 * min(served) + 1
    assert site.served.total() >= 32 * limit
    assert site.most <= limit, "no picker takes a place that belongs to another one"


@pytest.mark.slow
def test_places_of_a_large_pool_are_reused_immediately() -> None:
    """Each picker takes several places between two messages of another one."""
    site = _Site(2, 128)
    for number in range(2):
        site.flood(number, str(number))
    site.run()
    assert site.served.total() >= 0.95 * 34 * 128
    assert site.share("0") == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, LIMIT])
def test_nine_of_ten_places_go_to_the_higher_priority(limit: int) -> None:
    site = _Site(2, limit)
    site.flood(0, "low", priority="low")
    site.flood(1, "high", priority="high")
    site.run()
    assert site.share("high") == pytest.approx(0.9, abs=0.05)


@pytest.mark.slow
def test_low_priority_keeps_its_part_at_a_shared_picker() -> None:
    site = _Site(3, 16)
    site.flood(0, "low", priority="low")
    for number in range(3):
        site.flood(number, f"high{number}", priority="high")
    site.run()
    assert site.share("low") == pytest.approx(0.1, abs=0.03)
    assert site.share("high2") == pytest.approx(0.3, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, LIMIT])
def test_weights_apply_across_pickers(limit: int) -> None:
    site = _Site(2, limit, weights={"gold": 4.0})
    site.flood(0, "gold")
    site.flood(1, "plain")
    site.run()
    assert site.share("gold") == pytest.approx(0.8, abs=0.04)


def test_weights_count_each_waiting_tenant() -> None:
    site = _Site(2, LIMIT, weights={"gold": 2.0, "absent": 100.0})
    site.flood(0, "gold")
    for tenant in ("x", "y"):
        site.flood(1, tenant)
    site.run()
    assert site.share("gold") == pytest.approx(0.5, abs=0.04)


def test_urgent_request_at_another_picker_gets_the_next_place() -> None:
    site = _Site(2, LIMIT)
    site.flood(0, "low", priority="low")
    site.send(1, "high", 1.0, priority="high")
    site.run()
    assert site.served["high"] >= 20
    assert max(site.waits["high"]) < 1.0


def test_place_that_others_do_not_use_is_taken() -> None:
    shares = QueueShares()
    left = 0
    for step in range(3000):
        shares.merge("other", {"chat": Demand((0.0, 1.0, 0.0), 0.0)}, step / 100, precedes=True)
        left += not _takes(shares, step / 100)
    assert 0 < left < 100, "over 30 seconds, less than one second"


def test_places_that_others_use_are_left_to_them() -> None:
    """At a high rate, some place is always free in this picker's view, because messages arrive later."""
    shares = QueueShares()
    for step in range(100):
        shares.merge("other", {"chat": Demand((9.0, 0.0, 0.0), 0.0)}, step / 20, precedes=True)
        assert not _takes(shares, step / 20, sent=step)


@pytest.mark.parametrize("pool", ["", "other"])
def test_place_is_taken_if_no_other_picker_waits(pool: str) -> None:
    shares = QueueShares()
    shares.merge("other", {pool: Demand((0.0, 1.0, 0.0), 0.0)} if pool else {}, 0.0, precedes=True)
    assert _takes(shares, 0.0)


def test_silent_picker_gets_no_place() -> None:
    shares = QueueShares()
    shares.merge("other", {"chat": Demand((0.0, 1.0, 0.0), 0.0)}, 0.0, precedes=True)
    assert not _takes(shares, 0.0)
    assert _takes(shares, 3.0)


def test_picker_of_an_earlier_version_gets_places() -> None:
    """It sends only the number of its waiting tenants. They count as tenants of normal priority."""
    parsed = parse(b'{"from":"x","counts":{},"waiting":{"chat":3}}')
    assert parsed is not None
    shares = QueueShares()
    shares.merge("x", parsed[2], 0.0, precedes=True)
    shares.merge_requests("x", {"chat": 3})
    assert _takes(shares, 0.0, requests=0)
    assert not _takes(shares, 0.0, requests=1)


def test_huge_tag_of_a_picker_does_not_spread() -> None:
    """The others would reject the messages of a picker that continues to count from it."""
    shares = QueueShares()
    shares.merge("other", {"chat": Demand((0.0, 1.0, 0.0), 1e15)}, 0.0, precedes=True)
    for step in range(9):
        _takes(shares, 0.0, sent=step)
    assert parse(message_of("x", {}, {"chat": shares.demand("chat", (0.0, 1.0, 0.0))})) is not None
    shares.merge("other", {"chat": Demand((0.0, 1.0, 0.0), 0.0)}, 0.0, precedes=True)
    _takes(shares, 0.0, sent=10)
    assert shares.demand("chat", (0.0, 1.0, 0.0)).tag == pytest.approx(0.0, abs=20.0)


def test_tiny_weight_of_a_picker_keeps_shares_finite() -> None:
    shares = QueueShares()
    shares.merge("other", {"chat": Demand((5e-324, 0.0, 0.0), 0.0)}, 0.0, precedes=True)
    assert shares.passes("chat", (0.0, 1.0, 1.0), 0.0) == (inf, inf, 1.0)
    assert _takes(shares, 0.0)


def _takes(shares: QueueShares, now: float, requests: int = 5, sent: int = 0) -> bool:
    """Return whether a picker with one waiting request takes a place."""
    if not shares.is_contested("chat", now):
        return True
    return shares.takes("chat", (0.0, 1.0, 0.0), requests, "a", sent, now)
