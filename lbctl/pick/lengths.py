"""Corrections to estimated prompt lengths, learned per pool from the engines' counters.

An engine adds a prompt's tokens to its counter when it counts the response's first token. The tokens counted between
two reports therefore belong to the prompts that left the backlog in between. A Kalman filter per pool compares this
number with the estimates and derives a factor for each kind of content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, sqrt
from typing import NamedTuple

from lbctl.pick.prompt import EMPTY, MAX_PROMPT_TOKENS, PromptLength


class Factors(NamedTuple):
    """A correction factor for each part of a `PromptLength`."""

    ascii: float = 1.0
    """Counted tokens per estimated token, for `PromptLength.ascii`."""
    han: float = 1.0
    """Counted tokens per estimated token, for `PromptLength.han`."""
    other: float = 1.0
    """Counted tokens per estimated token, for `PromptLength.other`."""
    parts: float = 1.0
    """Counted tokens per estimated token, for `PromptLength.parts`."""


UNLEARNED = Factors()
_MIN, _MAX = 0.5, 2.0
_PROMPTS = 3
"""Minimum number of prompts that are compared together. Most groups of this size do not contain an unknown prompt."""
_DEVIATIONS = (0.2, 0.4, 0.4, 0.5)
"""Standard deviations of the factors before anything has been learned."""
_ERROR = 0.1
"""Standard deviation of the estimation error that the factors do not explain."""
_DRIFT = 0.003
"""Standard deviation of a factor's change between two comparisons."""
_MISMATCHED, _MIN_MISMATCHED, _MAX_MISMATCHED = 2.0, 0.02, 1000.0
"""Initial value of `_Filter._mismatched`, followed by its bounds. If all comparisons are rejected because the true
factors are far from 1, it grows until some comparisons are used."""
_AFTER_USE, _AFTER_REJECTION = 0.8, 1.1
"""Relative change of `_Filter._mismatched` after a comparison is used or rejected."""
_KNOWN = 0.5
"""Assumed probability that a comparison contains no unknown prompt, before its error is known."""
_MIN_PROBABILITY = 0.1
"""A comparison is rejected if its probability of containing no unknown prompt is lower than this. The value must be
less than `_KNOWN`, because the error is not informative when `_Filter._mismatched` is large."""


def tokens(length: PromptLength, factors: Factors) -> float:
    """Return a prompt's corrected length in tokens, at most `MAX_PROMPT_TOKENS`."""
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
        """Map each pool whose engines count prompt tokens to its factors."""
        return {pool: known.factors for pool, known in self._filters.items()}

    def computed(
        self, pool: str, replica: str, prompts: Sequence[PromptLength] | None, prompt_tokens: float | None
    ) -> None:
        """Compare the prompts that left a replica's backlog with its engine's cumulative prompt-token count.

        `prompts` is None if the prompts are unknown, for example after a restart or if some clients do not use a
        picker. `prompt_tokens` is None if the engine does not count prompt tokens.
        """
        window = self._windows.get((pool, replica))
        if window is None or prompts is None or prompt_tokens is None or prompt_tokens < window.began:
            self._windows.pop((pool, replica), None)
            if prompt_tokens is not None:
                self._windows[pool, replica] = _Window(prompt_tokens)
            return
        window.add(prompts)
        if window.prompts >= _PROMPTS:
            known = self._filters.setdefault(pool, _Filter())
            known.learn(window, prompt_tokens - window.began)
            self._windows[pool, replica] = _Window(prompt_tokens)

    def keep(self, pools: Mapping[str, frozenset[str]]) -> None:
        """Forget pools and replicas that are not in `pools`, a map from each pool to its replicas."""
        self._filters = {pool: known for pool, known in self._filters.items() if pool in pools}
        self._windows = {key: window for key, window in self._windows.items() if key[1] in pools.get(key[0], ())}


class _Window:
    """Consecutive prompts at one replica.

    `began`: the engine's prompt-token count before the first of these prompts. `squares`: sum of their squared lengths.
    """

    __slots__ = ("began", "length", "prompts", "squares")

    def __init__(self, began: float) -> None:
        self.began = began
        self.length = [0.0] * len(EMPTY)
        self.prompts = 0
        self.squares = 0.0

    def add(self, prompts: Iterable[PromptLength]) -> None:
        for length in prompts:
            self.prompts += 1
            self.length = [total + part for total, part in zip(self.length, length, strict=True)]
            self.squares += sum(length) ** 2


class _Filter:
    """A Kalman filter whose state consists of one pool's factors."""

    def __init__(self) -> None:
        self.factors = UNLEARNED
        self._mismatched = _MISMATCHED
        """Number of prompts by which a comparison may differ from the prompts that the engine has counted.

        The engine may count a prompt one report earlier or later, or may count a prompt from a client that does not use
        a picker.
        """
        self._covariance = [
            [deviation**2 if row == column else 0.0 for column in range(len(_DEVIATIONS))]
            for row, deviation in enumerate(_DEVIATIONS)
        ]

    def learn(self, window: _Window, counted: float) -> None:
        """Correct the factors using the number of tokens that an engine counted for a window's prompts."""
        length = window.length
        covariances = [_product(row, length) for row in self._covariance]
        variance = window.squares * (_ERROR**2 + self._mismatched / window.prompts)
        spread = _product(covariances, length)
        if spread + variance <= 0:
            return
        error = counted - _product(length, self.factors)
        probability = _probability(error, spread + variance, spread + variance + window.squares / window.prompts)
        if probability < _MIN_PROBABILITY:
            self._mismatched = min(self._mismatched * _AFTER_REJECTION, _MAX_MISMATCHED)
            return
        spread += variance / probability
        self._mismatched = max(_MIN_MISMATCHED, self._mismatched * _AFTER_USE)
        pairs = zip(self.factors, covariances, strict=True)
        gain = error / spread
        self.factors = Factors(*(max(_MIN, min(factor + part * gain, _MAX)) for factor, part in pairs))
        for row, deviation in enumerate(_DEVIATIONS):
            for column in range(len(_DEVIATIONS)):
                self._covariance[row][column] -= covariances[row] * covariances[column] / spread
            self._covariance[row][row] = min(self._covariance[row][row] + _DRIFT**2, deviation**2)


def _product(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(first, second, strict=True))


def _probability(error: float, known: float, unknown: float) -> float:
    """Return the probability that a comparison with this error does not contain an unknown prompt.

    `known` and `unknown` are the error's variances without and with an unknown prompt.
    """
    without, with_one = _KNOWN * _density(error, known), (1 - _KNOWN) * _density(error, unknown)
    return without / (without + with_one) if with_one else 0.0


def _density(error: float, variance: float) -> float:
    """Return the normal density of an error, up to a constant factor."""
    return exp(-error * error / (2 * variance)) / sqrt(variance)
