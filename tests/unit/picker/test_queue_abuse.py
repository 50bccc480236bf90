"""The queue under abuse: floods, clients that leave, forged headers, steps of the clock, and lost tables.

Whatever happens, each waiting request gets exactly one answer unless its client leaves, and none waits while a replica
has room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.ir.pools import PickPolicy, QueuePolicy
from lbctl.pick.decide import fullness
from lbctl.pick.table import Candidate, PoolTable
from lbctl.pick.waiting import FairQueue, WaitingRequest
from lbctl.picker.decision import Decider
from lbctl.picker.messages import Caller, PickerAnswer, PickerQuestion
from lbctl.picker.queues import flow_of
from lbctl.picker.service import PickService
from lbctl.picker.statistics import MAX_TENANTS, page
from lbctl.picker.wire import EngineSample

POOL = "chat"
MANY = 10_000


def table_of(limit: int | None = 1, replicas: int = 1, **policy: Any) -> PoolTable:
    """Return a table with a queue, whose replicas accept `limit` requests each. `policy`: settings of the queue."""
    candidates = tuple(Candidate(f"r{number}", f"10.0.0.{number}:80", limit=limit) for number in range(replicas))
    queue = QueuePolicy(**{"max_wait": 10_000, "max_requests": MANY, **policy})
    return PoolTable(POOL, PickPolicy((), None, queue=queue), candidates, stalled_after=15.0)


def plain(table: PoolTable) -> PoolTable:
    """Return the table without its queue."""
    return PoolTable(POOL, PickPolicy((), None), table.candidates, stalled_after=15.0)


def question(
    tenant: str = "", priority: str = "normal", size: int = 400, pick: str = "", **headers: str
) -> PickerQuestion:
    """Return a query with a prompt of `size` bytes. An underscore in the name of a header is a hyphen."""
    values = {name.replace("_", "-"): [value] for name, value in headers.items()}
    caller = Caller(POOL, tenant=tenant, priority=priority, waits=True)
    return PickerQuestion(caller, values, b"", size, id=pick)


class Site:
    """A picker on a virtual clock, with the answers that its requests have got."""

    def __init__(self, table: PoolTable) -> None:
        self.now = 1000.0
        self.service = PickService(lambda: self.now, Random(1))
        self.service.set_table(POOL, table)
        self.answers: dict[str, list[PickerAnswer]] = {}
        self.open: deque[str] = deque()
        """Requests at replicas, in the order in which they were sent there."""
        self.sent: list[str] = []
        """All requests that have got a replica, in this order."""
        self.left: set[str] = set()

    def ask(self, tenant: str = "", priority: str = "normal", size: int = 400, **headers: str) -> str:
        """Send a request, and return its id."""
        pick = f"{len(self.answers):032x}"
        asked = question(tenant, priority, size, pick, **headers)
        self.answers[pick] = []
        answer = self.service.pick(asked)
        if answer.must_wait:
            assert self.service.wait(asked, self._receiver(pick)) == pick
        else:
            self._receiver(pick)(answer)
        return pick

    def leave(self, pick: str) -> None:
        """Let the client of a waiting request leave."""
        self.left.add(pick)
        self.service.finished(pick)

    def finish(self) -> None:
        """End the oldest request at a replica."""
        self.service.finished(self.open.popleft())

    def serve_all(self) -> list[str]:
        """End all requests at replicas. Return the requests that were sent in the meantime, in this order."""
        before = len(self.sent)
        while self.open:
            self.finish()
        return self.sent[before:]

    @property
    def waiting(self) -> list[str]:
        """The requests without an answer whose clients are still there."""
        return [pick for pick, answers in self.answers.items() if not answers and pick not in self.left]

    def _receiver(self, pick: str) -> Callable[[PickerAnswer], None]:
        def receive(answer: PickerAnswer) -> None:
            self.answers[pick].append(answer)
            if answer.names:
                self.open.append(pick)
                self.sent.append(pick)

        return receive


# ── Floods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_ten_thousand_waiting_requests_are_served_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = 0
    decide = Decider.decide

    def counted(self: Decider, *arguments: Any, **options: Any) -> Any:
        nonlocal decisions
        decisions += 1
        return decide(self, *arguments, **options)

    monkeypatch.setattr(Decider, "decide", counted)
    site = Site(table_of())
    picks = [site.ask() for _ in range(MANY + 2)]
    assert len(site.service.queues) == MANY
    (refused,) = site.answers[picks.pop()]
    assert 1 <= refused.refused <= 60
    site.serve_all()
    assert site.sent == picks
    assert all(len(site.answers[pick]) == 1 for pick in picks)
    assert decisions <= 4 * MANY


@pytest.mark.slow
def test_ten_thousand_late_requests_are_rejected_at_once() -> None:
    site = Site(table_of())
    picks = [site.ask() for _ in range(MANY + 1)]
    site.now += 9.9
    site.service.serve_queues()
    assert len(site.waiting) == MANY
    site.now += 0.2
    site.service.serve_queues()
    assert site.waiting == []
    assert all(1 <= site.answers[pick][0].refused <= 60 for pick in picks[1:])
    assert site.service.statistics.queues[POOL].refused_late == MANY


@pytest.mark.slow
def test_thousands_of_tenants_have_bounded_statistics() -> None:
    site = Site(table_of(by="tenant"))
    for number in range(3000):
        site.ask(f"tenant-{number}")
    assert len(site.serve_all()) == 2999
    rows = [line for line in page(site.service.statistics, {}).decode().splitlines() if 'tenant="' in line]
    assert 0 < len(rows) <= 4 * (MAX_TENANTS + 1)
    assert len(site.service.queues) == 0


def test_queue_behind_a_full_lane_stays_small() -> None:
    queue = FairQueue()
    queue.add(WaitingRequest("blocked", "blocked", 1, 1.0, 0.0, "eu"))
    for number in range(1000):
        for part in "ab":
            queue.add(WaitingRequest(f"{number}{part}", f"t{number}", 1, 1.0, float(number), "us"))
        for _ in "ab":
            found = queue.next(lambda request, _: None if request.lane == "eu" else True, float(number))
            assert found is not None
            queue.take(found[0])
    assert list(queue.flows) == ["blocked"]
    assert sum(len(level._order) for level in queue._levels) < 500


def test_flood_does_not_keep_other_tenants_out_of_the_queue() -> None:
    site = Site(table_of(max_requests=20))
    flood = [site.ask("flood") for _ in range(30)]
    assert [pick for pick in flood if site.answers[pick] and site.answers[pick][0].refused] == flood[21:]
    others = [site.ask(f"t{number}") for number in range(19)]
    displaced = [site.answers[pick][0].refused for pick in flood[2:21]]
    assert all(1 <= seconds <= 60 for seconds in displaced), "its newest requests are rejected, except one"
    assert len(site.service.queues) == 20
    late = site.ask("t19")
    assert site.answers[late][0].refused, "no flow has more than one request"
    assert set(site.serve_all()) == {flood[1], *others}


def test_weight_counts_in_a_full_queue() -> None:
    site = Site(table_of(max_requests=8, weights=(("acme", 3.0),)))
    site.ask()
    for _ in range(8):
        site.ask("small")
    acme = [site.ask("acme") for _ in range(8)]
    assert [bool(site.answers[pick]) for pick in acme] == [False] * 6 + [True] * 2


def test_higher_priority_displaces_the_newest_lower_one() -> None:
    site = Site(table_of(max_requests=2))
    site.ask()
    first, second = site.ask("a", "low"), site.ask("a", "low")
    high = site.ask("b", "high")
    assert site.answers[second][0].refused
    assert site.answers[first] == site.answers[high] == []
    low = site.ask("c", "low")
    assert site.answers[low][0].refused


@pytest.mark.slow
def test_clients_that_leave_free_their_places() -> None:
    site = Site(table_of(max_requests=2000))
    site.ask()
    picks = [site.ask(f"t{number % 50}") for number in range(2000)]
    for pick in Random(1).sample(picks, 1500):
        site.leave(pick)
    assert len(site.service.queues) == 500
    assert site.service.statistics.queues[POOL].left == 1500
    more = [site.ask(f"t{number % 50}") for number in range(1501)]
    assert [site.answers[pick] for pick in more[:-1]] == [[]] * 1500
    assert site.answers[more[-1]][0].refused
    site.serve_all()
    assert site.waiting == []
    assert all(site.answers[pick] == [] for pick in site.left)


def test_client_that_left_before_its_query_takes_no_place() -> None:
    site = Site(table_of())
    site.ask()
    site.service.finished(f"{1:032x}")
    site.ask()
    assert site.answers[f"{1:032x}"] == [PickerAnswer(full=True)]
    assert len(site.service.queues) == 0


# ── Forged headers ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_listed_tenants_choose_a_priority() -> None:
    site = Site(table_of(priority_header="x-priority", priority_tenants=(("acme", "high"), ("beta", "normal"))))
    site.ask()
    forged = site.ask("mallory", "low", x_priority="high")
    unlisted = site.ask("mallory", x_priority="high")
    anonymous = site.ask("", x_priority="high")
    capped = site.ask("beta", x_priority="high")
    unknown = site.ask("acme", x_priority="urgent")
    chosen = site.ask("acme", x_priority=" High ")
    lowered = site.ask("acme", x_priority="low")
    assert site.serve_all() == [chosen, unlisted, anonymous, capped, unknown, forged, lowered]


@pytest.mark.parametrize(
    "value",
    ["", "0", "high,low", "high\0", "h" * 100_000, "\uff28\uff29\uff27\uff28"],
    ids=["empty", "number", "list", "null byte", "long", "full width"],
)
def test_unknown_priorities_are_ignored(value: str) -> None:
    site = Site(table_of(priority_header="x-priority", priority_tenants=(("acme", "high"),)))
    site.ask()
    first, second = site.ask("other"), site.ask("acme", x_priority=value)
    assert site.serve_all() == [first, second]


def test_flow_of_a_header_has_a_bounded_length() -> None:
    queue = QueuePolicy(10_000, by="header", header="x-user")
    assert len(flow_of(queue, question(x_user="u" * 1_000_000))) <= 128
    assert flow_of(queue, question()) == ""


def test_false_prompt_length_does_not_lock_a_tenant_out() -> None:
    """A tenant pays for a length that it claims itself, and other tenants do not wait for it."""
    site = Site(table_of())
    site.ask()
    huge = [site.ask("liar", size=1 << 60) for _ in range(3)]
    honest = [site.ask("honest") for _ in range(5)]
    order = site.serve_all()
    assert order[0] == huge[0]
    assert order[1:6] == honest
    assert order[6:] == huge[1:]


# ── The clock, the tables, and failures ──────────────────────────────────────────────────────────────────────────────


def test_clock_step_forward_rejects_each_request_once() -> None:
    site = Site(table_of())
    picks = [site.ask() for _ in range(50)]
    site.now += 1e7
    for _ in range(3):
        site.service.serve_queues()
    assert [len(site.answers[pick]) for pick in picks] == [1] * 50
    assert site.waiting == []


def test_clock_step_back_delays_no_answer() -> None:
    site = Site(table_of())
    picks = [site.ask(f"t{number}") for number in range(50)]
    site.finish()
    site.now -= 500.0
    site.service.serve_queues()
    site.serve_all()
    assert all(site.answers[pick][0].names for pick in picks)


@pytest.mark.parametrize(
    "end",
    [
        lambda service: service.set_table(POOL, None),
        lambda service: service.set_table(POOL, plain(table_of())),
        lambda service: service.dismiss_waiting(),
    ],
    ids=["pool removed", "queue removed", "picker ends"],
)
def test_waiting_requests_go_on_without_the_picker(end: Callable[[PickService], None]) -> None:
    site = Site(table_of())
    picks = [site.ask(f"t{number}") for number in range(100)]
    end(site.service)
    assert [site.answers[pick] for pick in picks[1:]] == [[PickerAnswer()]] * 99
    site.serve_all()
    assert [len(site.answers[pick]) for pick in picks] == [1] * 100


def test_failed_decision_sends_all_waiting_requests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(table_of())
    picks = [site.ask() for _ in range(20)]

    def failing(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(Decider, "decide", failing)
        site.finish()
    assert [site.answers[pick] for pick in picks[1:]] == [[PickerAnswer()]] * 19
    assert site.answers[site.ask()][0].names == ("r0",)


# ── Random histories ─────────────────────────────────────────────────────────────────────────────────────────────────

_NUMBER = st.integers(0, 99)
STEPS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from("abcd"), st.sampled_from(["high", "normal", "low"]), _NUMBER),
    st.tuples(st.just("ask"), st.sampled_from("abcd"), st.sampled_from(["high", "normal", "low"]), _NUMBER),
    st.tuples(st.just("leave"), _NUMBER),
    st.tuples(st.just("finish")),
    st.tuples(st.just("sample"), st.integers(0, 1), st.integers(0, 4), st.sampled_from([0.5, 0.97])),
    st.tuples(st.just("tick"), st.floats(0, 6)),
    st.tuples(st.just("table"), st.sampled_from([None, None, 1, 3]), st.integers(1, 2)),
    st.tuples(st.just("remove"), st.sampled_from([None, plain(table_of(2, 2))])),
)


def take(site: Site, kind: str, *arguments: Any) -> None:
    """Take one step of a history."""
    match kind:
        case "ask":
            tenant, priority, size = arguments
            site.ask(tenant, priority, 10 * size)
        case "leave":
            waiting = site.waiting
            if waiting:
                site.leave(waiting[arguments[0] % len(waiting)])
        case "finish":
            if site.open:
                site.finish()
        case "sample":
            replica, running, kv = arguments
            site.service.sampled(EngineSample(POOL, f"r{replica}", running, 0, None, False, kv=kv))
        case "tick":
            site.now += arguments[0]
            site.service.serve_queues()
        case "table":
            limit, replicas = arguments
            table = table_of(limit, replicas, max_requests=6, weights=(("a", 3.0),))
            site.service.set_table(POOL, table)
        case "remove":
            site.service.set_table(POOL, arguments[0])


def check(site: Site) -> None:
    """Assert that no request has two answers, that none is lost, and that none could go to a replica."""
    waiting = site.waiting
    assert len(site.service.queues) == len(waiting)
    assert all(len(answers) <= (0 if pick in site.left else 1) for pick, answers in site.answers.items())
    if waiting:
        table = site.service.suspects.without(site.service.tables[POOL], site.now)
        books = site.service._decider.books
        assert all(fullness(item, table, books) for item in table.candidates if item.fit)


@pytest.mark.slow
@given(st.lists(STEPS, min_size=20, max_size=80))
def test_each_request_gets_one_answer_and_no_replica_idles(steps: list[tuple[Any, ...]]) -> None:
    site = Site(table_of(None, 1, max_requests=6, weights=(("a", 3.0),)))
    for step in steps:
        take(site, *step)
        check(site)
    site.now += 11.0
    site.service.serve_queues()
    check(site)
    assert site.waiting == []
