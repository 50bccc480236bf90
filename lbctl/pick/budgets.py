"""Budgets of prompt tokens: how many tokens of prompts a tenant may send in a period.

A budget fills continuously, up to the tokens of one period. A request is admitted while its budget is above zero, and
its whole prompt is charged. So a prompt may be longer than the rest of the budget, and the requests after it wait until
the budget is above zero again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

MAX_BUDGETS = 20_000
"""Upper bound on the budgets, because clients may choose the key. The least recently used one goes first."""


class Budget(NamedTuple):
    """The limit that applies to a request."""

    key: Hashable
    """Requests with the same key share the budget."""
    tokens: float
    """Tokens (> 0) in a period."""
    period: float
    """Length of the period in seconds."""


class _Balance(NamedTuple):
    tokens: float
    at: float


class Budgets:
    """The balances of all budgets. Times are in seconds on one clock."""

    def __init__(self) -> None:
        self._balances: dict[Hashable, _Balance] = {}
        """Key → balance, the least recently used first."""

    def __len__(self) -> int:
        """Number of remembered budgets."""
        return len(self._balances)

    def wait(self, budgets: Iterable[Budget], now: float) -> float:
        """Return the seconds until all budgets of a request are above zero; 0.0 if they are."""
        return max((_wait(budget, self._balance(budget, now)) for budget in budgets), default=0.0)

    def charge(self, budgets: Iterable[Budget], tokens: float, now: float) -> None:
        """Charge an admitted prompt to all its budgets."""
        for budget in budgets:
            balance = self._balance(budget, now)
            self._balances.pop(budget.key, None)
            self._balances[budget.key] = _Balance(balance - tokens, now)
        while len(self._balances) > MAX_BUDGETS:
            del self._balances[next(iter(self._balances))]

    def _balance(self, budget: Budget, now: float) -> float:
        last = self._balances.get(budget.key)
        if last is None:
            return budget.tokens
        elapsed = max(0.0, now - last.at)
        return min(budget.tokens, last.tokens + elapsed * budget.tokens / budget.period)


def _wait(budget: Budget, balance: float) -> float:
    """Return the seconds until the balance is above zero."""
    return 0.0 if balance > 0 else max(0.001, -balance * budget.period / budget.tokens)
