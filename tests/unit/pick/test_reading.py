"""The estimate of the prompt tokens that an engine still has to compute, which delays waiting requests."""

from __future__ import annotations

import pytest

from lbctl.pick.books import Books, Count

POOL, REPLICA = "p", "a"


def measured(speed: float = 1000.0) -> Books:
    """Return books that have measured this speed at the time 1."""
    books = Books()
    assert reading(books, 0.0) == 0, "prompts count from now on"
    books.started("measured", POOL, REPLICA, speed, 0.0)
    books.first_byte("measured", 1.0)
    return books


def reading(books: Books, now: float) -> float:
    return books.load(POOL, REPLICA).reading(now)


def test_unknown_speed_delays_nothing() -> None:
    books = Books()
    assert reading(books, 0.0) == 0
    books.started("1", POOL, REPLICA, 5000, 0.0)
    assert reading(books, 0.0) == 0
    books.first_token("1")
    books.started("2", POOL, REPLICA, 5000, 0.0)
    assert reading(books, 0.0) == 0, "headers may come before the first token"


def test_prompts_count_until_their_first_bytes() -> None:
    books = measured()
    books.started("1", POOL, REPLICA, 1000, 2.0)
    books.started("2", POOL, REPLICA, 3000, 2.0)
    assert reading(books, 2.0) == 4000
    assert reading(books, 2.5) == pytest.approx(3500), "the engine is expected to have computed 500 tokens"
    books.first_byte("1", 2.6)
    assert reading(books, 2.6) == 3000
    books.finished("2")
    assert reading(books, 2.6) == 0


def test_later_first_byte_means_that_earlier_prompts_are_read() -> None:
    books = measured()
    for number in range(4):
        books.started(str(number), POOL, REPLICA, 1000, 2.0)
    books.first_byte("2", 2.1)
    assert reading(books, 2.1) == 1000, "engines compute prompts in order, so two reports were lost"


def test_lost_first_byte_delays_for_a_limited_time() -> None:
    books = measured()
    books.started("1", POOL, REPLICA, 2000, 2.0)
    assert reading(books, 4.1) == 0, "twice the usual time has not passed"
    books.started("2", POOL, REPLICA, 500, 4.1)
    assert reading(books, 4.1) == 500
    assert reading(books, 20.0) == 0


def test_prompt_counts_for_five_seconds_at_most() -> None:
    """Short prompts make the measured speed too low."""
    books = measured(10.0)
    books.started("1", POOL, REPLICA, 8000, 2.0)
    assert reading(books, 6.9) > 0
    assert reading(books, 7.1) == 0


def test_without_reports_of_first_bytes_nothing_is_delayed() -> None:
    """HAProxy and nginx do not report them. The counters of the engines come too late for this estimate."""
    books = Books()
    assert reading(books, 0.0) == 0
    books.reconcile(POOL, REPLICA, 0, 0, first_tokens=0, taken=0.0)
    books.started("0", POOL, REPLICA, 1000, 0.1)
    books.reconcile(POOL, REPLICA, 0, 0, first_tokens=1, taken=1.0, ttft=0.5)
    books.started("1", POOL, REPLICA, 1000, 2.0)
    assert reading(books, 2.1) == 0


def test_prompts_of_other_pickers_count() -> None:
    books = measured()
    books.reconcile(POOL, REPLICA, 0, 0, first_tokens=1, taken=1.5)
    for sent in (0, 1):
        books.merge("peer", {POOL: {REPLICA: _count(sent)}}, 2.0)
    assert reading(books, 2.0) == pytest.approx(800)


def _count(sent: int) -> Count:
    return Count(sent, 800 * sent, sent, 800 * sent, sent_ascii=800 * sent)
