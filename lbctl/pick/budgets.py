"""Prompt-token budgets: how many prompt tokens a tenant may send per period.

A budget refills continuously, up to one period's tokens. A request is admitted while its budget is positive, and is
charged for its entire prompt. A prompt may therefore exceed the remaining budget. Later requests then wait until the
budget is positive again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

MAX_BUDGETS = 20_000
"""Maximum number of budgets. The limit is needed because clients may choose the key. The least recently used budget is
dropped first."""


class Budget(NamedTuple):
    """A limit that applies to a request."""

    key: Hashable
    """Requests with the same key share the budget."""
    tokens: float
    """Tokens per period (> 0)."""
    period: float
    """Length of the period, in seconds."""


class _Balance(NamedTuple):
    tokens: float
    at: float


class Budgets:
    """The balances of all budgets. Times are in seconds on one clock."""

    def __init__(self) -> None:
        self._balances: dict[Hashable, _Balance] = {}
        """Maps each key to its balance, least recently used first."""

    def __len__(self) -> int:
        """Number of remembered budgets."""
        return len(self._balances)

    def wait(self, budgets: Iterable[Budget], now: float) -> float:
        """Return the number of seconds until all of a request's budgets are positive; 0.0 if they already are."""
        return max((_wait(budget, self._balance(budget, now)) for budget in budgets), default=0.0)

    def charge(self, budgets: Iterable[Budget], tokens: float, now: float) -> None:
        """Charge an admitted prompt to all of the request's budgets."""
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
    """Return the number of seconds until the balance is positive."""
    return 0.0 if balance > 0 else max(0.001, -balance * budget.period / budget.tokens)
