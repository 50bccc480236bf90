"""Corrections to estimated prompt lengths, learned per pool from the engines' counters.

An engine counts a prompt's tokens when it counts the first token of the response. So the tokens counted between two
reports belong to the prompts that left the backlog in between. A Kalman filter per pool compares their number with the
estimates, and finds a factor for each kind of content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

from lbctl.pick.prompt import EMPTY, MAX_PROMPT_TOKENS, PromptLength


class Factors(NamedTuple):
    """A factor for each part of a `PromptLength`."""

    ascii: float = 1.0
    """Counted tokens per estimated token, for `PromptLength.ascii`."""
    han: float = 1.0
    """The same for `PromptLength.han`."""
    other: float = 1.0
    """The same for `PromptLength.other`."""
    parts: float = 1.0
    """The same for `PromptLength.parts`."""


UNLEARNED = Factors()
_MIN, _MAX = 0.5, 2.0
_PROMPTS, _MISMATCHED = 16, 4
"""Number of prompts that are compared together, and how many of them may differ from the prompts that the engine has
counted.

The engine may count a prompt one report earlier or later, or count a prompt from a client that does not use a picker.
"""
_IGNORED = 32
"""Number of prompts that are ignored after an engine has counted unknown prompts."""
_DEVIATIONS = (0.2, 0.4, 0.4, 0.5)
"""Standard deviations of the factors before anything is learned."""
_ERROR = 0.1
"""Standard deviation of the part of an estimate's error that the factors do not explain."""
_DRIFT = 0.003
"""Standard deviation of the change of a factor between two comparisons."""
_NOISE_CHANGE, _MIN_NOISE, _MAX_NOISE = 0.3, 0.06, 2.0
"""Greatest relative decrease of `_Filter._noise` after a comparison, and its bounds."""
_MAX_ERROR = 3.0
"""Maximum effect of one comparison, in standard deviations."""


def tokens(length: PromptLength, factors: Factors) -> float:
    """Return the corrected length of a prompt in tokens, at most `MAX_PROMPT_TOKENS`."""
    ascii_tokens, han, other, parts = length
    by_ascii, by_han, by_other, by_parts = factors
    corrected = ascii_tokens * by_ascii + han * by_han + other * by_other + parts * by_parts
    return min(corrected, MAX_PROMPT_TOKENS)


class LearnedLengths:
    """The learned factors of all pools."""

    def __init__(self) -> None:
        self._filters: dict[str, _Filter] = {}
        self._windows: dict[tuple[str, str], _Window] = {}

    def factors(self, pool: str) -> Factors:
        """Return a pool's factors."""
        known = self._filters.get(pool)
        return UNLEARNED if known is None else known.factors

    def learned(self) -> dict[str, Factors]:
        """Return pool → its factors, for pools whose engines count prompt tokens."""
        return {pool: known.factors for pool, known in self._filters.items()}

    def computed(
        self, pool: str, replica: str, prompts: Sequence[PromptLength] | None, prompt_tokens: float | None
    ) -> None:
        """Compare the prompts that left a replica's backlog with its engine's cumulative count of prompt tokens.

        `prompts` is None if these prompts are unknown, for example after a restart or if clients do not use a picker.
        `prompt_tokens` is None if the engine does not count them.
        """
        window = self._windows.get((pool, replica))
        if window is None or prompts is None or prompt_tokens is None or prompt_tokens < window.began:
            self._windows.pop((pool, replica), None)
            if prompt_tokens is not None:
                self._windows[pool, replica] = _Window(prompt_tokens, 0 if window is None else _IGNORED)
            return
        if window.ignored > 0:
            self._windows[pool, replica] = _Window(prompt_tokens, window.ignored - len(prompts))
            return
        window.add(prompts)
        if window.prompts >= _PROMPTS:
            known = self._filters.setdefault(pool, _Filter())
            known.learn(window.length, prompt_tokens - window.began, window.variance)
            self._windows[pool, replica] = _Window(prompt_tokens)

    def keep(self, pools: Mapping[str, frozenset[str]]) -> None:
        """Forget pools and replicas that are not in `pools`, which maps each pool to its replicas."""
        self._filters = {pool: known for pool, known in self._filters.items() if pool in pools}
        self._windows = {key: window for key, window in self._windows.items() if key[1] in pools.get(key[0], ())}


class _Window:
    """Consecutive prompts at one replica.

    `began`: the engine's count of prompt tokens before the first of them. `ignored`: the number of prompts that are not
    used.
    """

    __slots__ = ("_squares", "began", "ignored", "length", "prompts")

    def __init__(self, began: float, ignored: int = 0) -> None:
        self.began = began
        self.ignored = ignored
        self.length = [0.0] * len(EMPTY)
        self.prompts = 0
        self._squares = 0.0

    def add(self, prompts: Iterable[PromptLength]) -> None:
        for length in prompts:
            self.prompts += 1
            self.length = [total + part for total, part in zip(self.length, length, strict=True)]
            self._squares += sum(length) ** 2

    @property
    def variance(self) -> float:
        """Variance of the difference between the counted and the estimated tokens."""
        return self._squares * (_ERROR**2 + _MISMATCHED / self.prompts)


class _Filter:
    """A Kalman filter whose state is one pool's factors."""

    def __init__(self) -> None:
        self.factors = UNLEARNED
        self._noise = 1.0
        """Variance of the recent comparisons, relative to `_Window.variance`. Most pools have fewer mismatched prompts
        than `_MISMATCHED`."""
        self._covariance = [
            [deviation**2 if row == column else 0.0 for column in range(len(_DEVIATIONS))]
            for row, deviation in enumerate(_DEVIATIONS)
        ]

    def learn(self, length: Sequence[float], counted: float, variance: float) -> None:
        """Correct the factors with the number of tokens that an engine counted for prompts of this total length."""
        covariances = [_product(row, length) for row in self._covariance]
        spread = _product(covariances, length) + variance * self._noise
        if spread <= 0:
            return
        limit = _MAX_ERROR * sqrt(spread)
        error = max(-limit, min(counted - _product(length, self.factors), limit))
        change = 1 + _NOISE_CHANGE * (error**2 / spread - 1)
        self._noise = max(_MIN_NOISE, min(self._noise * change, _MAX_NOISE))
        pairs = zip(self.factors, covariances, strict=True)
        gain = error / spread
        self.factors = Factors(*(max(_MIN, min(factor + part * gain, _MAX)) for factor, part in pairs))
        for row, deviation in enumerate(_DEVIATIONS):
            for column in range(len(_DEVIATIONS)):
                self._covariance[row][column] -= covariances[row] * covariances[column] / spread
            self._covariance[row][row] = min(self._covariance[row][row] + _DRIFT**2, deviation**2)


def _product(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(first, second, strict=True))
