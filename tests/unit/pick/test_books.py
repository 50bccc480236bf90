"""The books of work in flight: exact by own events, corrected by reports, never negative."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbctl.pick.backlog import REPORT_TTL
from lbctl.pick.books import MAX_AGE, PEER_TTL, REQUEST_TOKENS, Books, Count

POOL = "p"


def books(*requests: tuple[str, float], began: float = 0.0) -> Books:
    made = Books()
    for request, tokens in requests:
        made.started(request, POOL, "a", tokens, began)
    return made


def counts(made: Books, replica: str = "a") -> tuple[int, int]:
    load = made.load(POOL, replica)
    return load.requests, load.unread


def test_a_request_counts_until_it_ends_and_its_prompt_until_its_first_token() -> None:
    made = books(("1", 1000), ("2", 500))
    assert counts(made) == (2, 1500)
    assert made.load(POOL, "a").work == 1500 + 2 * REQUEST_TOKENS
    made.first_token("1")
    made.first_token("1")
    assert counts(made) == (2, 500)
    made.finished("1")
    made.finished("2")
    made.finished("2")
    assert counts(made) == (0, 0)


def test_the_engine_s_count_of_first_tokens_marks_the_oldest_prompts_as_read() -> None:
    made = books(("1", 100), ("2", 200), ("3", 400))
    made.reconcile(POOL, "a", 3, 0, first_tokens=7, taken=1)
    assert counts(made) == (3, 700)
    made.reconcile(POOL, "a", 3, 0, first_tokens=9, taken=2)
    assert counts(made) == (3, 400)
    made.first_token("3")
    assert counts(made) == (3, 400), "headers may come before the first token: the engine's own count is better"


def test_requests_that_ended_between_two_reports_are_not_counted_twice() -> None:
    made = books(("1", 100), ("2", 200), ("3", 400))
    made.reconcile(POOL, "a", 3, 0, first_tokens=0, taken=1)
    made.finished("1")
    made.reconcile(POOL, "a", 2, 0, first_tokens=1, taken=2)
    assert counts(made) == (2, 600)


def test_a_restarted_engine_begins_to_count_anew() -> None:
    made = books(("1", 100))
    made.reconcile(POOL, "a", 1, 0, first_tokens=50, taken=1)
    made.reconcile(POOL, "a", 1, 0, first_tokens=0, taken=2)
    assert counts(made) == (1, 100)


def test_requests_whose_end_was_lost_are_removed_after_two_reports_without_them() -> None:
    made = books(("1", 100), ("2", 200))
    made.reconcile(POOL, "a", 1, 0, None, taken=3)
    made.reconcile(POOL, "a", 1, 0, None, taken=4)
    assert counts(made) == (2, 300), "too young: the report may be older than the requests"
    made.reconcile(POOL, "a", 1, 0, None, taken=10)
    assert counts(made) == (2, 300), "one report is not enough"
    made.reconcile(POOL, "a", 1, 0, None, taken=11)
    assert counts(made) == (1, 200)


def test_nothing_that_the_engine_still_works_on_is_removed_by_reports() -> None:
    made = books(("1", 100), ("2", 200))
    for now in range(10, 100):
        made.reconcile(POOL, "a", 1, 1, None, now)
    assert counts(made) == (2, 300)


def test_requests_of_unknown_clients_count_as_work() -> None:
    made = books(("1", 100))
    made.reconcile(POOL, "a", 4, 1, None, taken=1)
    assert made.load(POOL, "a").others_requests == 4
    made.reconcile(POOL, "a", 0, 0, None, taken=2)
    assert made.load(POOL, "a").others_requests == 0


def test_an_end_that_never_comes_is_given_up() -> None:
    made = books(("1", 100), began=0.0)
    made.expire(MAX_AGE - 1)
    assert len(made) == 1
    made.expire(MAX_AGE + 1)
    assert (len(made), counts(made)) == (0, (0, 0))


def test_pickers_that_exchange_counts_see_each_other_s_work_until_they_fall_silent() -> None:
    mine, other = books(("1", 100)), books(("2", 1000), ("3", 500))
    mine.merge("b", other.snapshot(), now=1.0)
    assert mine.load(POOL, "a").work == 100 + 1500 + 3 * REQUEST_TOKENS
    other.finished("2")
    mine.merge("b", other.snapshot(), now=1.1)
    assert mine.load(POOL, "a").work == 100 + 500 + 2 * REQUEST_TOKENS
    other.finished("3")
    mine.merge("b", other.snapshot(), now=1.2)
    assert mine.load(POOL, "a").others_requests == 0
    mine.merge("b", {POOL: {"a": Count(5, 5)}}, now=1.3)
    mine.expire(1.3 + PEER_TTL + 0.1)
    assert mine.load(POOL, "a").work == 100 + REQUEST_TOKENS


def _merged(mine: Books, other: Books, now: float) -> None:
    mine.merge("b", other.snapshot(), now)


def test_the_engine_s_count_is_of_all_pickers_prompts_in_the_order_in_which_they_were_sent() -> None:
    mine, other = books(), books(("1", 10))
    mine.reconcile(POOL, "a", 1, 0, first_tokens=0, taken=0)
    _merged(mine, other, 0)
    other.started("2", POOL, "a", 1000, 1)
    _merged(mine, other, 1)
    mine.started("3", POOL, "a", 100, 2)
    other.started("4", POOL, "a", 500, 3)
    other.started("5", POOL, "a", 300, 3)
    _merged(mine, other, 3)
    assert counts(mine) == (1, 1900)
    mine.reconcile(POOL, "a", 5, 0, first_tokens=1, taken=4)
    assert counts(mine) == (1, 900), "the oldest prompt was the other's"
    mine.reconcile(POOL, "a", 5, 0, first_tokens=2, taken=5)
    assert counts(mine) == (1, 800), "then the own one"
    assert mine.load(POOL, "a").work == 800 + 5 * REQUEST_TOKENS


def test_prompts_of_others_that_no_report_ever_counts_are_given_up() -> None:
    mine, other = books(), books(("1", 10))
    mine.reconcile(POOL, "a", 0, 0, first_tokens=0, taken=0)
    _merged(mine, other, 0)
    for number in range(150):
        other.started(f"x{number}", POOL, "a", 4, 1)
    _merged(mine, other, 1)
    assert counts(mine) == (0, 600)
    mine.reconcile(POOL, "a", 2, 1, first_tokens=0, taken=20)
    assert counts(mine) == (0, 3 * 6), "the engine has three requests; one message added at most 100 prompts"
    mine.expire(20 + REPORT_TTL + 1)
    assert counts(mine) == (0, 0), "an engine that reports nothing any more"


def test_loads_of_removed_replicas_are_dropped_when_their_requests_have_ended() -> None:
    made = books(("1", 100))
    made.keep({POOL: frozenset({"b"})})
    assert counts(made) == (1, 100)
    made.finished("1")
    made.keep({})
    assert made.snapshot() == {}


def test_a_row_has_the_loads_of_replicas_in_the_order_of_their_names_also_after_some_were_dropped() -> None:
    made, names = books(("1", 100)), ["b", "a"]
    assert [load.requests for load in made.row(POOL, names)] == [0, 1]
    made.finished("1")
    made.keep({})
    made.started("2", POOL, "b", 100, 0.0)
    assert [load.requests for load in made.row(POOL, names)] == [1, 0]


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
def test_no_count_is_ever_negative_and_all_are_zero_when_all_has_ended_and_nobody_reports(
    events: list[tuple[str, int, int, float]],
) -> None:
    made, now = Books(), 0.0
    for kind, number, tokens, step in events:
        now += step / 10
        replica = "ab"[number % 2]
        match kind:
            case "start":
                made.started(str(number), POOL, replica, tokens, now)
            case "first":
                made.first_token(str(number))
            case "end":
                made.finished(str(number))
            case "report":
                made.reconcile(POOL, replica, number, tokens % 3, tokens if number % 2 else None, now)
            case "expire":
                made.expire(now)
            case _:
                made.merge("peer", {POOL: {replica: Count(number, tokens, int(now), 3 * int(now))}}, now)
        for name in "ab":
            load = made.load(POOL, name)
            assert min(load.requests, load.unread, load.work, load.others_requests) >= 0
            assert load.in_flight == load.requests + load.others_requests
    for number in range(10):
        made.finished(str(number))
    made.expire(now + REPORT_TTL + 1)
    assert all(counts(made, name) == (0, 0) for name in "ab")
