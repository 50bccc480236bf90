"""Accounting of work in flight: exact for the picker's own events, corrected by reports, never negative."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbctl.pick.backlog import REPORT_TTL
from lbctl.pick.books import MAX_AGE, PEER_TTL, REQUEST_TOKENS, Books, Count
from lbctl.pick.prompt import PromptLength

POOL = "p"


def books_of(*requests: tuple[str, float], began: float = 0.0) -> Books:
    books = Books()
    for request, tokens in requests:
        books.started(request, POOL, "a", tokens, began)
    return books


def counts(books: Books, replica: str = "a") -> tuple[int, int]:
    load = books.load(POOL, replica)
    return load.requests, load.unread


def test_a_prompt_counts_until_its_first_token() -> None:
    books = books_of(("1", 1000), ("2", 500))
    assert counts(books) == (2, 1500)
    assert books.load(POOL, "a").work == 1500 + 2 * REQUEST_TOKENS
    books.first_token("1")
    books.first_token("1")
    assert counts(books) == (2, 500)
    books.finished("1")
    books.finished("2")
    books.finished("2")
    assert counts(books) == (0, 0)


def test_first_tokens_of_the_engine_mark_oldest_prompts_as_read() -> None:
    books = books_of(("1", 100), ("2", 200), ("3", 400))
    books.reconcile(POOL, "a", 3, 0, first_tokens=7, taken=1)
    assert counts(books) == (3, 700)
    books.reconcile(POOL, "a", 3, 0, first_tokens=9, taken=2)
    assert counts(books) == (3, 400)
    books.first_token("3")
    assert counts(books) == (3, 400), "headers may come before the first token, so the engine's count wins"


def test_a_first_byte_marks_its_prompt_as_read() -> None:
    books = Books()
    for number, tokens in enumerate((100, 200, 300)):
        books.started(str(number), "p", "a", tokens, 0.0)
    books.first_byte("1", 1.0)
    books.first_byte("1", 1.1)
    books.first_byte("unknown", 1.1)
    assert books.load("p", "a").unread == 400
    books.finished("1")
    assert books.load("p", "a").unread == 400


def test_first_bytes_are_counted_once_with_the_reports() -> None:
    books = Books()
    load = books.load("p", "a")
    for number in range(6):
        books.started(str(number), "p", "a", 100, 0.0)
    books.reconcile("p", "a", 6, 0, 10, 0.5)
    books.first_byte("3", 1.0)
    books.first_byte("4", 2.0)
    assert load.unread == 400
    books.reconcile("p", "a", 6, 0, 11, 1.5)
    assert load.unread == 400, "the report includes request 3, but not request 4"
    books.reconcile("p", "a", 6, 0, 13, 2.5)
    assert load.unread == 300, "the report includes request 4, and another one whose first byte was not reported"


def test_requests_that_end_between_reports_count_once() -> None:
    books = books_of(("1", 100), ("2", 200), ("3", 400))
    books.reconcile(POOL, "a", 3, 0, first_tokens=0, taken=1)
    books.finished("1")
    books.reconcile(POOL, "a", 2, 0, first_tokens=1, taken=2)
    assert counts(books) == (2, 600)


def test_report_from_before_a_request_does_not_end_it() -> None:
    """An engine that computes a long prompt in one step does not update its number of requests meanwhile."""
    books = books_of(("1", 100_000), began=3)
    for taken in (10, 11, 12):
        books.reconcile(POOL, "a", 0, 0, first_tokens=7, taken=taken, progressed_at=2)
    assert counts(books) == (1, 100_000)
    for taken in (13, 14):
        books.reconcile(POOL, "a", 0, 0, first_tokens=7, taken=taken, progressed_at=taken)
    assert counts(books) == (0, 0)


def test_speed_is_known_from_first_tokens() -> None:
    books = books_of(("1", 1000), ("2", 3000), ("3", 500))
    books.reconcile(POOL, "a", 3, 0, first_tokens=0, taken=1)
    assert books.load(POOL, "a").speed == 0
    books.reconcile(POOL, "a", 3, 0, first_tokens=2, taken=2, ttft=0.5)
    assert books.load(POOL, "a").speed == 4000
    assert (books.load(POOL, "a").unread_before(0), books.load(POOL, "a").unread_before(-1)) == (500, 0)


def test_waits_at_a_stopped_engine_do_not_change_the_speed() -> None:
    """The engine continues after 12 s. Two prompts were sent before, and one is sent later."""
    books = books_of(("1", 1000), ("2", 1000))
    books.reconcile(POOL, "a", 2, 0, first_tokens=0, taken=1)
    books.load(POOL, "a").stopped(12.0)
    books.reconcile(POOL, "a", 1, 0, first_tokens=1, taken=12.5, ttft=12.0)
    books.first_byte("2", 13.0)
    assert books.load(POOL, "a").speed == 0
    books.started("3", POOL, "a", 1000, 13.0)
    books.first_byte("3", 13.5)
    assert books.load(POOL, "a").speed == 2000


def test_speed_is_known_from_first_bytes() -> None:
    books = books_of(("1", 1000))
    books.first_byte("1", 0.5)
    assert books.load(POOL, "a").speed == 2000


def test_a_restarted_engine_counts_from_zero() -> None:
    books = books_of(("1", 100))
    books.reconcile(POOL, "a", 1, 0, first_tokens=50, taken=1)
    books.reconcile(POOL, "a", 1, 0, first_tokens=0, taken=2)
    assert counts(books) == (1, 100)


def test_lost_requests_are_removed_after_two_reports() -> None:
    books = books_of(("1", 100), ("2", 200))
    books.reconcile(POOL, "a", 1, 0, None, taken=3)
    books.reconcile(POOL, "a", 1, 0, None, taken=4)
    assert counts(books) == (2, 300), "too young: the report may be older than the requests"
    books.reconcile(POOL, "a", 1, 0, None, taken=10)
    assert counts(books) == (2, 300), "one report is not enough"
    books.reconcile(POOL, "a", 1, 0, None, taken=11)
    assert counts(books) == (1, 200)


def test_lengths_of_computed_prompts_are_returned() -> None:
    books, length = Books(), PromptLength(90.0, 10.0)
    of_peer = PromptLength(150.0, 30.0, 10.0, 10.0)
    assert books.reconcile(POOL, "a", 0, 0, first_tokens=5, taken=0) is None
    books.merge("peer", {POOL: {"a": Count(0, 0)}}, now=0)
    books.started("1", POOL, "a", 60, 1, length=length)
    books.merge("peer", {POOL: {"a": Count(2, 400, 2, 400, 0, 300, 60, 20, 20)}}, now=1)
    assert books.reconcile(POOL, "a", 3, 0, first_tokens=8, taken=2) == [length, of_peer, of_peer]
    books.merge("peer", {POOL: {"a": Count(3, 200, 3, 600, 0, 300, 60, 20, 20)}}, now=3)
    assert books.reconcile(POOL, "a", 3, 0, first_tokens=9, taken=4) is None, "an earlier version sends no lengths"
    assert books.reconcile(POOL, "a", 3, 0, first_tokens=10, taken=5) is None, "no picker has sent this prompt"


def test_first_prompts_of_a_known_peer_have_lengths() -> None:
    books = Books()
    books.merge("peer", {}, now=0)
    books.merge("peer", {POOL: {"a": Count(1, 40, 1, 40, 0, 50)}}, now=1)
    books.merge("peer", {POOL: {"a": Count(2, 140, 2, 140, 0, 150)}}, now=3)
    assert books.load(POOL, "a").work == 140 + 2 * REQUEST_TOKENS
    assert books.reconcile(POOL, "a", 1, 0, first_tokens=1, taken=2) is None
    computed = books.reconcile(POOL, "a", 2, 0, first_tokens=2, taken=4)
    assert computed == [PromptLength(100.0)], "the first report may include the prompts from before it"
    books.merge("stranger", {POOL: {"a": Count(1, 60, 1, 60, 0, 60)}}, now=5)
    assert books.reconcile(POOL, "a", 3, 0, first_tokens=3, taken=6) is None, "when it was sent is unknown"


def test_old_prompts_of_a_peer_do_not_wait_at_a_returned_replica() -> None:
    """While a replica is in no pool here, this picker ignores the peer's counts, which are sums since its start."""
    books = Books()
    books.merge("peer", {}, now=0)
    books.reconcile(POOL, "a", 0, 0, first_tokens=1, taken=0.5)
    books.merge("peer", {POOL: {"a": Count(1, 40, 5000, 2_000_000, 0, 2_000_000)}}, now=1)
    assert books.load(POOL, "a").work < 2_000


def test_prompts_of_peers_are_dropped_if_not_counted() -> None:
    books = Books()
    books.merge("peer", {}, now=100)
    books.merge("peer", {POOL: {"a": Count(1, 40, 1, 40, 0, 50)}}, now=101)
    books.expire(101.5)
    assert books.load(POOL, "a").work == 40 + REQUEST_TOKENS
    assert books.reconcile(POOL, "a", 1, 0, first_tokens=1, taken=100.5) is None
    assert books.reconcile(POOL, "a", 1, 0, first_tokens=2, taken=102) is None


def test_reports_keep_requests_the_engine_still_runs() -> None:
    books = books_of(("1", 100), ("2", 200))
    for now in range(10, 100):
        books.reconcile(POOL, "a", 1, 1, None, now)
    assert counts(books) == (2, 300)


def test_requests_of_unknown_clients_count_as_work() -> None:
    books = books_of(("1", 100))
    books.reconcile(POOL, "a", 4, 1, None, taken=1)
    assert books.load(POOL, "a").others_requests == 4
    books.reconcile(POOL, "a", 0, 0, None, taken=2)
    assert books.load(POOL, "a").others_requests == 0


def test_a_request_expires_after_its_maximum_age() -> None:
    books = books_of(("1", 100), began=0.0)
    books.expire(MAX_AGE - 1)
    assert len(books) == 1
    books.expire(MAX_AGE + 1)
    assert (len(books), counts(books)) == (0, (0, 0))


def test_counts_of_a_peer_expire_after_its_ttl() -> None:
    mine, peer = books_of(("1", 100)), books_of(("2", 1000), ("3", 500))
    mine.merge("b", peer.snapshot(), now=1.0)
    assert mine.load(POOL, "a").work == 100 + 1500 + 3 * REQUEST_TOKENS
    peer.finished("2")
    mine.merge("b", peer.snapshot(), now=1.1)
    assert mine.load(POOL, "a").work == 100 + 500 + 2 * REQUEST_TOKENS
    peer.finished("3")
    mine.merge("b", peer.snapshot(), now=1.2)
    assert mine.load(POOL, "a").others_requests == 0
    mine.merge("b", {POOL: {"a": Count(5, 5)}}, now=1.3)
    mine.expire(1.3 + PEER_TTL + 0.1)
    assert mine.load(POOL, "a").work == 100 + REQUEST_TOKENS


def _merged(mine: Books, peer: Books, now: float) -> None:
    mine.merge("b", peer.snapshot(), now)


def test_expected_cached_tokens_are_the_sum_of_all_pickers() -> None:
    mine, peer = Books(), Books()
    mine.started("1", POOL, "a", 100, 0.0, cached_tokens=900)
    mine.started("2", POOL, "b", 1000, 0.0)
    peer.started("3", POOL, "a", 50, 0.0, cached_tokens=5000)
    _merged(mine, peer, 0.0)
    assert mine.expected_cached() == {POOL: {"a": 900}}, "the peer expected these before this picker heard from it"
    peer.started("4", POOL, "a", 50, 0.0, cached_tokens=400)
    _merged(mine, peer, 0.1)
    _merged(mine, peer, 0.2)
    assert mine.expected_cached() == {POOL: {"a": 1300}}
    peer.finished("4")
    _merged(mine, peer, 0.3)
    mine.expire(0.3 + PEER_TTL + 0.1)
    assert mine.expected_cached() == {POOL: {"a": 1300}}, "the counts only grow"


def test_first_tokens_mark_prompts_of_all_pickers_in_order() -> None:
    mine, peer = books_of(), books_of(("1", 10))
    mine.reconcile(POOL, "a", 1, 0, first_tokens=0, taken=0)
    _merged(mine, peer, 0)
    peer.started("2", POOL, "a", 1000, 1)
    _merged(mine, peer, 1)
    mine.started("3", POOL, "a", 100, 2)
    peer.started("4", POOL, "a", 500, 3)
    peer.started("5", POOL, "a", 300, 3)
    _merged(mine, peer, 3)
    assert counts(mine) == (1, 1900)
    mine.reconcile(POOL, "a", 5, 0, first_tokens=1, taken=4)
    assert counts(mine) == (1, 900), "the oldest prompt was sent by the peer"
    mine.reconcile(POOL, "a", 5, 0, first_tokens=2, taken=5)
    assert counts(mine) == (1, 800), "the next prompt is the picker's own"
    assert mine.load(POOL, "a").work == 800 + 5 * REQUEST_TOKENS


def test_unreported_prompts_of_peers_expire() -> None:
    mine, peer = books_of(), books_of(("1", 10))
    mine.reconcile(POOL, "a", 0, 0, first_tokens=0, taken=0)
    _merged(mine, peer, 0)
    for number in range(150):
        peer.started(f"x{number}", POOL, "a", 4, 1)
    _merged(mine, peer, 1)
    assert counts(mine) == (0, 600)
    mine.reconcile(POOL, "a", 2, 1, first_tokens=0, taken=20)
    assert counts(mine) == (0, 3 * 6), "the engine has three requests; one message added at most 100 prompts"
    mine.expire(20 + REPORT_TTL + 1)
    assert counts(mine) == (0, 0), "the engine no longer reports"


def test_a_removed_replica_is_dropped_after_its_last_request() -> None:
    books = books_of(("1", 100))
    books.keep({POOL: frozenset({"b"})})
    assert counts(books) == (1, 100)
    books.finished("1")
    books.keep({})
    assert books.snapshot() == {}


def test_a_row_lists_loads_in_the_given_order() -> None:
    books, names = books_of(("1", 100)), ["b", "a"]
    assert [load.requests for load in books.row(POOL, names)] == [0, 1]
    books.finished("1")
    books.keep({})
    books.started("2", POOL, "b", 100, 0.0)
    assert [load.requests for load in books.row(POOL, names)] == [1, 0]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "first", "end", "report", "expire", "merge"]),
        st.integers(0, 9),
        st.integers(0, 5000),
        st.floats(0, 2000),
    ),
    max_size=60,
)


@given(EVENTS)
def test_counts_are_never_negative_and_end_at_zero(
    events: list[tuple[str, int, int, float]],
) -> None:
    books, now = Books(), 0.0
    for kind, number, tokens, step in events:
        now += step / 10
        replica = "ab"[number % 2]
        match kind:
            case "start":
                books.started(str(number), POOL, replica, tokens, now)
            case "first":
                books.first_token(str(number))
            case "end":
                books.finished(str(number))
            case "report":
                books.reconcile(POOL, replica, number, tokens % 3, tokens if number % 2 else None, now)
            case "expire":
                books.expire(now)
            case _:
                books.merge("peer", {POOL: {replica: Count(number, tokens, int(now), 3 * int(now))}}, now)
        for name in "ab":
            load = books.load(POOL, name)
            assert min(load.requests, load.unread, load.work, load.others_requests) >= 0
            assert load.in_flight == load.requests + load.others_requests
    for number in range(10):
        books.finished(str(number))
    books.expire(now + REPORT_TTL + 1)
    assert all(counts(books, name) == (0, 0) for name in "ab")


def test_a_report_does_not_count_prompts_sent_after_it() -> None:
    books = books_of(("1", 10))
    books.reconcile(POOL, "a", 0, 0, first_tokens=0, taken=0)
    books.started("2", POOL, "a", 500, 2)
    assert books.reconcile(POOL, "a", 2, 0, first_tokens=2, taken=1) is None, "another client has sent one of them"
    assert books.load(POOL, "a").unread == 500
    books.started("3", POOL, "a", 30, 5)
    books.reconcile(POOL, "a", 2, 0, first_tokens=4, taken=4.9, duration=0.2)
    assert books.load(POOL, "a").unread == 0, "the engine may have counted it while it wrote its report"
