"""Budgets of prompt tokens."""

from __future__ import annotations

import pytest

from lbctl.pick.budgets import MAX_BUDGETS, Budget, Budgets

ACME = Budget("acme", 600.0, 60.0)


class _Charged(Budgets):
    """Budgets that are charged if they admit a prompt."""

    def ask(self, tokens: float, now: float, *budgets: Budget) -> float:
        """Return the wait; 0.0 if the prompt was admitted."""
        wait = self.wait(budgets, now)
        if wait == 0.0:
            self.charge(budgets, tokens, now)
        return wait


def test_tokens_of_a_period_are_admitted_at_once() -> None:
    budgets = _Charged()
    assert [budgets.ask(100.0, 0.0, ACME) for _ in range(7)] == [0.0] * 6 + [pytest.approx(0.001)]


def test_long_prompt_delays_the_next_one() -> None:
    budgets = _Charged()
    assert budgets.ask(1000.0, 0.0, ACME) == 0.0
    assert budgets.ask(1.0, 10.0, ACME) == pytest.approx(30.0)
    assert budgets.ask(1.0, 40.1, ACME) == 0.0


def test_steady_rate_is_the_limit() -> None:
    budgets = _Charged()
    sent = sum(100.0 for second in range(6000) if budgets.ask(100.0, second / 10, ACME) == 0.0)
    assert sent == pytest.approx(600 + 6000, rel=0.02)


def test_idle_time_saves_at_most_one_period() -> None:
    budgets = _Charged()
    budgets.ask(1.0, 0.0, ACME)
    assert [budgets.ask(300.0, 10_000.0, ACME) == 0.0 for _ in range(3)] == [True, True, False]


def test_keys_have_separate_budgets() -> None:
    budgets = _Charged()
    budgets.ask(1000.0, 0.0, ACME)
    assert budgets.ask(1.0, 0.0, ACME._replace(key="other")) == 0.0


def test_rejected_request_costs_nothing() -> None:
    budgets, everybody = _Charged(), Budget("all", 6000.0, 60.0)
    budgets.ask(1000.0, 0.0, ACME)
    for _ in range(100):
        assert budgets.ask(500.0, 0.0, ACME, everybody) > 0
    assert budgets.ask(5999.0, 0.0, everybody) == 0.0
    assert budgets.ask(2.0, 0.0, everybody) == 0.0


def test_clock_that_goes_back_gives_no_tokens() -> None:
    budgets = _Charged()
    budgets.ask(700.0, 1000.0, ACME)
    assert budgets.ask(1.0, 0.0, ACME) == pytest.approx(10.0)


def test_many_keys_take_bounded_memory() -> None:
    budgets = _Charged()
    for number in range(MAX_BUDGETS + 100):
        budgets.ask(1.0, 0.0, Budget(number, 1.0, 60.0))
    assert len(budgets) == MAX_BUDGETS
