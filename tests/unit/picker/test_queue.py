"""Requests of a pool with a queue wait at the picker until a replica has room."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random

import pytest

from lbctl.ir.pools import PickPolicy, QueuePolicy, SessionKey, TokenLimit
from lbctl.pick.table import Candidate, PoolTable
from lbctl.pick.waiting import RESERVE_SECONDS, Position
from lbctl.picker.messages import Caller, PickerAnswer, PickerQuestion
from lbctl.picker.service import PickService
from lbctl.picker.statistics import MAX_TENANTS, OTHER, page
from lbctl.picker.wire import EngineSample

QUEUE = QueuePolicy(10_000, 3)
A, B = Candidate("a", "10.0.0.1:80", limit=1), Candidate("b", "10.0.0.2:80", limit=1, region="eu")


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _table(*candidates: Candidate, queue: QueuePolicy | None = QUEUE) -> PoolTable:
    return PoolTable("chat", PickPolicy((SessionKey(header="x-session-id"),), queue=queue), candidates)


class _Fleet:
    """A picker with one pool, and the responses to its requests in the order of their arrival."""

    def __init__(self, *candidates: Candidate, queue: QueuePolicy | None = QUEUE) -> None:
        self.clock = _Clock()
        self.service = PickService(self.clock, Random(1))
        self.use(*candidates, queue=queue)
        self.responses: dict[str, list[PickerAnswer]] = {}
        self.ids: dict[str, str] = {}

    def use(self, *candidates: Candidate, queue: QueuePolicy | None = QUEUE) -> None:
        self.service.set_table("chat", _table(*candidates, queue=queue))

    def ask(self, name: str, **keys: object) -> None:
        """Ask for a replica, and wait if there is none. `keys`: `tenant`, `priority`, `regions`, `header`, `client`."""
        question = _question(**keys)  # type: ignore[arg-type]
        responses = self.responses[name] = list[PickerAnswer]()
        answer = self.service.pick(question)
        if answer.must_wait:
            self.ids[name] = self.service.wait(question, responses.append)
        else:
            self.ids[name] = answer.id
            responses.append(answer)

    def end(self, name: str) -> None:
        """End a request, or let its client leave."""
        (*_, answer) = self.responses[name] or [PickerAnswer(self.ids[name])]
        self.service.finished(answer.id)

    def first_byte(self, name: str) -> None:
        """Report the first byte of a response."""
        self.service.first_byte(self.responses[name][0].id)

    def sample(self, replica: str, running: float, queue: float = 0.0, kv: float | None = None) -> None:
        self.service.sampled(EngineSample("chat", replica, running, queue, None, False, kv=kv))

    def replica(self, name: str) -> str:
        """Return the replica of a request; empty while it waits."""
        return "".join(answer.names[0] for answer in self.responses[name] if answer.names)

    def waiting(self) -> list[str]:
        return [name for name, responses in self.responses.items() if not responses]


def _question(
    *, tenant: str = "", priority: str = "normal", regions: tuple[str, ...] = (), header: str = "", client: str = "",
    proxy: str = "", pick: str = "", subset: frozenset[str] | None = None, tokens: int = 0,
) -> PickerQuestion:  # fmt: skip
    caller = Caller("chat", proxy, tenant=tenant, priority=priority, regions=frozenset(regions))
    headers = {"x-flow": [header]} if header else {}
    return PickerQuestion(caller, headers, b"", 4 * tokens, subset, id=pick, client=client)


def test_request_waits_and_gets_the_first_free_replica() -> None:
    fleet = _Fleet(A, B)
    for name in ("first", "second", "third"):
        fleet.ask(name)
    assert fleet.waiting() == ["third"]
    freed = fleet.replica("second")
    fleet.end("second")
    assert fleet.replica("third") == freed
    assert fleet.service.open_picks == 2
    for name in ("first", "third"):
        fleet.end(name)
    assert fleet.service.open_picks == 0


def _reading(**changes: object) -> _Fleet:
    """Return a fleet with one replica, which computes 10,000 prompt tokens per second."""
    fleet = _Fleet(replace(A, limit=64), queue=replace(QUEUE, max_requests=100, **changes))  # type: ignore[arg-type]
    fleet.ask("measured", tokens=1000)
    fleet.clock.now += 0.1
    fleet.first_byte("measured")
    return fleet


def test_request_waits_until_the_replica_has_read_its_prompts() -> None:
    fleet = _reading()
    for name in ("reads", "waits"):
        fleet.ask(name, tokens=3000)
    assert fleet.waiting() == ["waits"]
    fleet.first_byte("reads")
    assert fleet.waiting() == []


def test_lost_first_byte_delays_requests_only_for_a_while() -> None:
    fleet = _reading()
    for name in ("reads", "waits"):
        fleet.ask(name, tokens=3000)
    fleet.clock.now += 0.05
    fleet.service.serve_queues()
    assert fleet.waiting() == ["waits"]
    fleet.clock.now += 0.2
    fleet.service.serve_queues()
    assert fleet.waiting() == []


def test_other_tenant_passes_held_prompts_of_a_flood() -> None:
    fleet = _reading()
    for number in range(9):
        fleet.ask(f"flood{number}", tenant="flood", tokens=3000)
    fleet.clock.now += 0.3
    fleet.first_byte("flood0")
    fleet.ask("other", tenant="other", tokens=3000)
    fleet.clock.now += 0.3
    fleet.first_byte("flood1")
    assert fleet.replica("other") == "a"
    assert fleet.waiting() == [f"flood{number}" for number in range(2, 9)]


def test_flood_leaves_the_reserve_to_other_tenants() -> None:
    fleet = _Fleet(replace(A, limit=64), queue=replace(QUEUE, max_requests=100))
    for number in range(112):
        fleet.ask(f"flood{number}", tenant="flood", tokens=1000)
    for number in range(15):
        fleet.end(f"flood{number}")
    fleet.ask("first", tenant="other")
    for number in range(15, 32):
        fleet.end(f"flood{number}")
    assert (fleet.replica("first"), fleet.service.open_picks) == ("a", 62)
    assert fleet.service.pick(_question(tenant="other")).names == ("a",), "it need not wait"
    assert (fleet.service.open_picks, len(fleet.waiting())) == (63, 19)
    fleet.clock.now += RESERVE_SECONDS + 0.1
    fleet.service.serve_queues()
    assert fleet.service.open_picks == 64, "no other tenant sends requests"


def test_gateway_does_not_wait_for_unread_prompts() -> None:
    """It would reject the request, although the replica has free places."""
    fleet = _reading()
    for name in ("reads", "waits"):
        fleet.ask(name, tokens=3000)
    question = _question(subset=frozenset({A.address}))
    asked = question._replace(caller=replace(question.caller, pool=None))
    assert fleet.service.pick(asked).names == ("a",)


def test_without_a_queue_a_full_pool_answers_at_once() -> None:
    fleet = _Fleet(A, queue=None)
    for name in ("first", "second"):
        fleet.ask(name)
    assert fleet.responses["second"] == [PickerAnswer(full=True)]


def test_request_over_the_bound_is_rejected_at_once() -> None:
    fleet = _Fleet(A)
    for number in range(6):
        fleet.ask(str(number))
    assert fleet.waiting() == ["1", "2", "3"]
    assert [fleet.responses[name][0].refused for name in "45"] == [10, 10], "no request has left the queue so far"


def test_retry_after_is_the_time_until_the_queue_is_empty() -> None:
    fleet = _Fleet(A)
    fleet.ask("0")
    for number in range(1, 20):
        fleet.ask(str(number))
        fleet.clock.now += 2.0
        fleet.end(str(number - 1))
    fleet.clock.now += 50.0  # a pause of the clients does not make the replica slower
    for number in range(20, 24):
        fleet.ask(str(number))
    assert fleet.responses["23"][0].refused == 6, "three requests at one every two seconds"


def test_request_that_waited_too_long_is_rejected() -> None:
    fleet = _Fleet(A)
    for name in ("runs", "waits"):
        fleet.ask(name)
    fleet.clock.now += 9.9
    fleet.service.serve_queues()
    assert fleet.waiting() == ["waits"]
    fleet.clock.now += 0.2
    fleet.service.serve_queues()
    assert fleet.responses["waits"][0].refused >= 1
    fleet.end("runs")
    assert fleet.replica("waits") == ""
    assert fleet.service.open_picks == 0


def test_client_that_leaves_frees_its_place_in_the_queue() -> None:
    fleet = _Fleet(A)
    for name in ("runs", "leaves", "waits"):
        fleet.ask(name)
    fleet.end("leaves")
    fleet.end("runs")
    assert (fleet.replica("leaves"), fleet.replica("waits")) == ("", "a")
    assert fleet.service.statistics.queues["chat"].left == 1


def test_new_request_does_not_overtake_a_waiting_one() -> None:
    """A replica becomes free without a report of the end: its suspicion ends, for example."""
    fleet = _Fleet(A)
    for name in ("runs", "waits"):
        fleet.ask(name)
    fleet.service._decider.books.finished(fleet.ids["runs"])
    fleet.ask("new")
    assert (fleet.replica("waits"), fleet.waiting()) == ("a", ["new"])


def test_higher_priority_and_other_tenants_go_first() -> None:
    fleet = _Fleet(A, queue=replace(QUEUE, max_requests=10))
    fleet.ask("runs")
    for number in range(3):
        fleet.ask(f"flood{number}", tenant="flood")
    fleet.ask("other", tenant="other")
    fleet.ask("urgent", tenant="flood", priority="high")
    order: list[str] = []
    last = "runs"
    for _ in range(5):
        fleet.end(last)
        (last,) = [name for name in fleet.responses if fleet.replica(name) and name not in ("runs", *order)]
        order.append(last)
    assert order == ["urgent", "flood0", "other", "flood1", "flood2"]


@pytest.mark.parametrize(
    ("by", "first", "second"),
    [
        ("tenant", {"tenant": "x"}, {"tenant": "y"}),
        ("client_ip", {"client": "192.0.2.1"}, {"client": "192.0.2.2"}),
        ("header", {"header": "x"}, {"header": "y"}),
    ],
)
def test_flow_is_the_tenant_the_client_or_the_header(by: str, first: dict[str, str], second: dict[str, str]) -> None:
    fleet = _Fleet(A, queue=replace(QUEUE, by=by, header="x-flow"))  # type: ignore[arg-type]
    fleet.ask("runs", **first)
    for name, keys in (("1", first), ("2", first), ("other", second)):
        fleet.ask(name, **keys)
    fleet.end("runs")
    fleet.end("1")
    assert fleet.waiting() == ["2"]


def test_fifo_ignores_flows() -> None:
    fleet = _Fleet(A, queue=replace(QUEUE, order="fifo"))
    fleet.ask("runs", tenant="x")
    for name, tenant in (("1", "x"), ("2", "x"), ("other", "y")):
        fleet.ask(name, tenant=tenant)
    fleet.end("runs")
    fleet.end("1")
    assert fleet.waiting() == ["other"]


@pytest.mark.parametrize(
    ("tenant", "asked", "goes_first"),
    [
        ("acme", "high", True),
        ("acme", " HIGH ", True),
        ("acme", "urgent", False),
        ("modest", "high", False),
        ("stranger", "high", False),
        ("", "high", False),
    ],
)
def test_only_listed_tenants_choose_their_priority(tenant: str, asked: str, *, goes_first: bool) -> None:
    tenants = (("acme", "high"), ("modest", "normal"))
    fleet = _Fleet(A, queue=replace(QUEUE, priority_header="x-flow", priority_tenants=tenants))
    fleet.ask("runs")
    fleet.ask("before", tenant="before")
    fleet.ask("asks", tenant=tenant, header=asked)
    fleet.end("runs")
    assert (fleet.waiting() == ["before"]) is goes_first


def test_request_for_another_region_does_not_wait_for_a_full_one() -> None:
    fleet = _Fleet(A, B)
    for name in ("1", "2"):
        fleet.ask(name)
    fleet.ask("eu", regions=("eu",))
    fleet.ask("any")
    fleet.end("1" if fleet.replica("1") == "a" else "2")
    assert fleet.waiting() == ["eu"]
    assert fleet.replica("any") == "a"


def test_engine_with_a_queue_is_full_with_what_it_runs() -> None:
    fleet = _Fleet(replace(A, limit=None))
    for number in range(4):
        fleet.ask(str(number))
    fleet.clock.now += 1
    fleet.sample("a", running=3.0, queue=1.0)
    fleet.ask("waits")
    assert fleet.waiting() == ["waits"]
    fleet.end("0")
    assert fleet.waiting() == ["waits"], "the engine still has three requests"
    fleet.end("1")
    assert fleet.waiting() == []


def test_new_requests_in_an_engine_do_not_make_it_full() -> None:
    """They may wait only for its next step."""
    fleet = _Fleet(replace(A, limit=None))
    fleet.ask("runs")
    fleet.clock.now += 1
    for number in range(3):
        fleet.ask(str(number))
    fleet.sample("a", running=1.0, queue=3.0)
    fleet.ask("goes")
    assert fleet.waiting() == []


def test_engine_with_a_full_cache_is_full() -> None:
    fleet = _Fleet(replace(A, limit=None))
    fleet.ask("runs")
    fleet.sample("a", running=1.0, kv=0.97)
    fleet.ask("waits")
    assert fleet.waiting() == ["waits"]
    fleet.sample("a", running=1.0, kv=0.5)
    assert fleet.waiting() == [], "the limit grows while the engine has room"


def test_cache_that_is_always_full_does_not_idle_an_engine() -> None:
    """An engine may count reusable blocks as used. A report may miss requests that have just begun."""
    fleet = _Fleet(replace(A, limit=32), queue=replace(QUEUE, max_wait=10**8, max_requests=10_000))
    for number in range(200):
        fleet.ask(str(number))
    for second in range(60):
        for number in range(8):
            fleet.service.finished(next(iter(fleet.service._open)))
            fleet.ask(f"{second}-{number}")
        fleet.clock.now += 1.0
        fleet.sample("a", running=max(0.0, fleet.service.open_picks - second % 3), kv=1.0)
        assert fleet.service.open_picks == 32


def test_engine_without_reports_is_not_full_for_ever() -> None:
    fleet = _Fleet(replace(A, limit=None))
    fleet.ask("runs")
    fleet.clock.now += 1
    fleet.sample("a", running=1.0, queue=1.0)
    fleet.ask("waits")
    assert fleet.waiting() == ["waits"]
    fleet.clock.now += 61
    fleet.service.sweep()
    fleet.ask("new")
    assert fleet.replica("new") == "a"


@pytest.mark.parametrize("change", ["no queue", "gone", "end of the picker"])
def test_waiting_requests_go_on_when_their_queue_ends(change: str) -> None:
    fleet = _Fleet(A)
    for name in ("runs", "1", "2"):
        fleet.ask(name)
    if change == "no queue":
        fleet.use(A, queue=None)
    elif change == "gone":
        fleet.service.set_table("chat", None)
    else:
        fleet.service.dismiss_waiting()
    assert fleet.responses["1"] == fleet.responses["2"] == [PickerAnswer()]
    assert len(fleet.service.queues) == 0


def test_waiting_requests_get_a_new_replica() -> None:
    fleet = _Fleet(A)
    for name in ("runs", "waits"):
        fleet.ask(name)
    fleet.use(A, B)
    assert fleet.replica("waits") == "b"


def test_waiting_requests_go_on_if_no_replica_is_left() -> None:
    fleet = _Fleet(A)
    for name in ("runs", "waits"):
        fleet.ask(name)
    fleet.use(replace(A, fit=False))
    assert fleet.responses["waits"] == [PickerAnswer()]


def test_requests_without_a_replica_do_not_count_as_released() -> None:
    fleet = _Fleet(A)
    for name in ("first", "second"):
        fleet.ask(name)
    fleet.use(replace(A, weight=0.0))
    assert fleet.responses["second"] == [PickerAnswer()]
    assert sum(fleet.service.statistics.queues["chat"].waits.counts) == 0


def test_request_does_not_wait_for_replicas_that_it_may_not_use() -> None:
    fleet = _Fleet(A, B)
    for name in ("first", "second"):
        fleet.ask(name)
    fleet.ask("third", subset=frozenset({"10.9.9.9:80"}))
    assert fleet.responses["third"] == [PickerAnswer()]


def test_question_that_does_not_wait_displaces_no_request() -> None:
    """nginx first asks whether the request has to wait, and its client may leave before the second query."""
    fleet = _Fleet(A)
    for number in range(4):
        fleet.ask(str(number), tenant="flood")
    assert fleet.service.pick(_question(tenant="other")).must_wait
    assert fleet.waiting() == ["1", "2", "3"]
    fleet.ask("other", tenant="other")
    assert fleet.waiting() == ["1", "2", "other"]


def test_waiting_requests_of_a_proxy_that_ended_get_no_replica() -> None:
    fleet = _Fleet(A)
    for name in ("first", "second"):
        fleet.ask(name, proxy="edge")
    fleet.ask("third", proxy="other")
    fleet.service.proxy_left("edge")
    assert fleet.responses["second"] == [PickerAnswer()]
    assert (fleet.replica("third"), fleet.service.open_picks) == ("a", 1)


def test_both_requests_with_the_same_id_are_answered() -> None:
    fleet = _Fleet(A)
    for name in ("first", "second", "third"):
        fleet.ask(name, pick="" if name == "first" else "0" * 36)
    fleet.end("first")
    assert fleet.responses["second"] == [PickerAnswer()]
    assert fleet.replica("third") == "a"
    assert not any(fleet.service.statistics.queues["chat"].waiting.values())


def test_waiting_request_does_not_keep_its_body() -> None:
    fleet = _Fleet(A)
    fleet.ask("first")
    body = b'{"prompt": "' + b"x" * 60_000 + b'"}'
    question = _question()._replace(body=body, body_length=len(body))
    references = sys.getrefcount(question)
    assert fleet.service.pick(question).must_wait
    fleet.service.wait(question, lambda _: None)
    assert sys.getrefcount(question) == references


def test_position_is_reported_for_a_request_that_would_wait() -> None:
    fleet = _Fleet(A, queue=replace(QUEUE, max_requests=10))
    assert fleet.service.position(_question()) is None
    fleet.ask("runs")
    assert fleet.service.position(_question()) == Position(0, 0, None)
    for tenant in ("x", "x", "y"):
        fleet.ask(f"waits{len(fleet.responses)}", tenant=tenant)
    position = fleet.service.position(_question(tenant="x", priority="low"))
    assert position is not None
    assert (position.requests, position.flows) == (3, 2)


def test_metrics_count_waits_without_unbounded_tenants() -> None:
    fleet = _Fleet(A, queue=replace(QUEUE, max_requests=2))
    fleet.ask("0", tenant="t0")
    for number in range(1, MAX_TENANTS + 5):
        fleet.ask(str(number), tenant=f"t{number}")
        fleet.clock.now += 0.3
        fleet.end(str(number - 1))
    fleet.ask("waits", priority="high")
    fleet.ask("also")
    fleet.ask("refused")
    statistics = fleet.service.statistics.queues["chat"]
    assert len(statistics.tenants) == MAX_TENANTS + 1
    assert statistics.tenants[OTHER].requests == 4
    text = page(fleet.service.statistics, {}).decode()
    assert 'lbctl_queue_waiting{pool="chat",priority="high"} 1\n' in text
    assert 'lbctl_queue_refused_total{pool="chat",reason="full"} 1\n' in text
    assert 'lbctl_queue_wait_seconds_bucket{pool="chat",le="0.5"} 24\n' in text
    assert 'lbctl_queue_tenant_requests_total{pool="chat",tenant="t1"} 1\n' in text


# ── Limits of prompt tokens ──────────────────────────────────────────────────────────────────────────────────────────


def _limited(tenant: str = "acme", route: str = "chat") -> PickerQuestion:
    return PickerQuestion(Caller("chat", tenant=tenant, route=route), {}, b"", 4000)


def _budgeted(*candidates: Candidate, queue: QueuePolicy | None = None) -> tuple[PickService, _Clock]:
    clock = _Clock()
    service = PickService(clock, Random(1))
    limit = TokenLimit("chat", "tenant", 6_000, 60_000)
    service.set_table("chat", PoolTable("chat", PickPolicy((), queue=queue, token_limits=(limit,)), candidates))
    return service, clock


def test_tenant_over_its_token_limit_is_rejected() -> None:
    service, clock = _budgeted(replace(A, limit=None))
    answers = [service.pick(_limited()) for _ in range(40)]
    picked = [answer for answer in answers if answer.names]
    assert 4 <= len(picked) <= 12
    seconds = answers[-1].refused
    assert 1 <= seconds <= 20
    assert service.pick(_limited("other")).names
    assert service.pick(_limited(route="other")).names
    clock.now += seconds
    assert service.pick(_limited()).names
    assert service.statistics.reasons["chat", "token_limit"] == 40 - len(picked)


def test_several_pickers_share_a_token_limit() -> None:
    counts = []
    for pickers in (1, 4):
        service, _ = _budgeted(replace(A, limit=None))
        service.share_budgets(pickers)
        counts.append(sum(bool(service.pick(_limited()).names) for _ in range(40)))
    assert counts[0] // 4 <= counts[1] <= counts[0] // 4 + 1


def test_waiting_request_is_charged_once() -> None:
    """The proxy asks a first time without waiting, as nginx does."""
    service, _ = _budgeted(A, queue=QUEUE)
    service.pick(_limited())
    (before,) = service._budgets._balances.values()
    for _ in range(5):
        assert service.pick(_limited()).must_wait
    (unchanged,) = service._budgets._balances.values()
    assert unchanged == before
    answers: list[PickerAnswer] = []
    service.wait(_limited(), answers.append)
    (after,) = service._budgets._balances.values()
    assert after.tokens < before.tokens


@pytest.mark.parametrize("end", ["late", "left", "displaced", "no replica"])
def test_waiting_request_that_gets_no_replica_is_not_charged(end: str) -> None:
    service, clock = _budgeted(A, queue=replace(QUEUE, max_requests=1))
    service.pick(_limited())
    (before,) = service._budgets._balances.values()
    answers: list[PickerAnswer] = []
    assert service.pick(_limited()).must_wait
    pick = service.wait(_limited(), answers.append)
    if end == "left":
        service.finished(pick)
    elif end == "displaced":
        urgent = replace(_limited().caller, tenant="urgent", priority="high")
        service.wait(_limited()._replace(caller=urgent), answers.append)
    elif end == "no replica":
        table = service.tables["chat"]
        service.set_table("chat", replace(table, candidates=(replace(A, fit=False),)))
    else:
        clock.now += 11.0
        service.serve_queues()
    assert [answer.refused > 0 for answer in answers] == {"left": [], "no replica": [False]}.get(end, [True])
    after = next(iter(sorted(service._budgets._balances.values(), key=lambda item: item.tokens)))
    assert after.tokens >= before.tokens


def test_waiting_request_with_a_repeated_id_is_charged_once() -> None:
    service, _ = _budgeted(A, queue=QUEUE)
    service.pick(_limited())
    question = _limited()._replace(id="0" * 36)
    answers: list[PickerAnswer] = []
    service.wait(question, answers.append)
    (once,) = service._budgets._balances.values()
    service.wait(question, answers.append)
    assert answers == [PickerAnswer()]
    (after,) = service._budgets._balances.values()
    assert after.tokens == pytest.approx(once.tokens)


def test_request_that_leaves_a_pool_is_charged_once() -> None:
    """Its first pool used all tokens of the budget. nginx sends the id of the first pick with the second query."""
    service, _ = _budgeted(replace(A, limit=None))
    large = _limited()._replace(body_length=400_000)
    first = service.pick(large)
    (charged,) = service._budgets._balances.values()
    assert charged.tokens < 0
    second = service.pick(large._replace(left=first.id))
    assert second.names
    (after,) = service._budgets._balances.values()
    assert after.tokens == pytest.approx(charged.tokens)
    for left in ("", "unknown", first.id):
        assert service.pick(large._replace(left=left)).refused, "the first pick is not refunded again"


def test_request_that_leaves_a_pool_waits_at_the_price_of_one() -> None:
    service, _ = _budgeted(A, queue=QUEUE)
    first = service.pick(_limited())
    (before,) = service._budgets._balances.values()
    question = _limited()._replace(left=first.id)
    for _ in range(2):
        assert service.pick(question).must_wait
    answers: list[PickerAnswer] = []
    service.wait(question, answers.append)
    service.finished(first.id)
    assert answers[0].names
    (after,) = service._budgets._balances.values()
    assert after.tokens == pytest.approx(before.tokens)
