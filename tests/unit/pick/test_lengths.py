"""Factors of prompt lengths are learned from the counters of simulated engines, with the lengths of real texts."""

from __future__ import annotations

import csv
import math
from collections import deque
from random import Random
from statistics import mean, pstdev

import pytest

from lbctl.pick.books import Books
from lbctl.pick.lengths import UNLEARNED, Factors, LearnedLengths, tokens
from lbctl.pick.prompt import MAX_PROMPT_TOKENS, PromptLength
from tests.support.paths import FIXTURES

TOKENIZERS = ("cl100k", "o200k", "qwen", "tekken", "deepseek")
with (FIXTURES / "prompt_lengths.csv").open() as file:
    TEXTS = list(csv.DictReader(file))
"""The estimated tokens of documentation, programs, data and Chinese, Japanese and Korean texts, and their numbers of
tokens by tokenizer. They are every fourth text of docs/develop/picking-study.md."""
LENGTHS = [PromptLength(float(text["ascii"]), float(text["han"]), float(text["other"])) for text in TEXTS]
POOL, HUNDRED = "p", PromptLength(100.0)


def error(tokenizer: str, factors: Factors) -> float:
    """Return the standard deviation of the logarithm of estimate ÷ length."""
    pairs = zip(LENGTHS, TEXTS, strict=True)
    return pstdev(math.log(tokens(length, factors) / int(text[tokenizer])) for length, text in pairs)


class Engine:
    """An engine that computes prompts in order and answers each of them within 5 s."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self.waiting: deque[tuple[str, int]] = deque()
        self.ends: list[tuple[float, str]] = []
        self.first_tokens = self.prompt_tokens = 0
        self._done = 0.0

    def run(self, seconds: float, now: float, random: Random) -> None:
        self._done += self.speed * seconds
        while self.waiting and self._done >= self.waiting[0][1]:
            name, length = self.waiting.popleft()
            self._done -= length
            self.first_tokens += 1
            self.prompt_tokens += length
            self.ends.append((now + random.uniform(0, 5), name))
        if not self.waiting:
            self._done = 0.0

    def ended(self, now: float) -> list[str]:
        names = [name for end, name in self.ends if end <= now]
        self.ends = [item for item in self.ends if item[0] > now]
        return names


class Minute:
    """Pickers, and 4 replicas that get 4 requests a second each. `strangers` is the share of requests without a picker.

    The pickers start `late` seconds after the traffic. The engines are scraped each second, and the pickers get the
    counts 0.2 s later.
    """

    def __init__(self, tokenizer: str, pickers: int, strangers: float, seed: int, late: float) -> None:
        self.lengths = [int(text[tokenizer]) for text in TEXTS]
        self.engines = [Engine(5 * sum(self.lengths) / len(TEXTS)) for _ in range(4)]
        self.books = [Books() for _ in range(pickers)]
        self.learned = [LearnedLengths() for _ in range(pickers)]
        self._strangers = strangers
        self._late = late
        self._random = Random(seed)
        self._reports: list[tuple[int, int, int]] = []

    def step(self, number: int) -> None:
        now = number / 20
        if self._random.random() < 0.8:
            self._request(str(number), now)
        for engine in self.engines:
            engine.run(0.05, now, self._random)
            for name in engine.ended(now):
                for books in self.books:
                    books.finished(name)
        if now < self._late:
            return
        for index, books in enumerate(self.books):
            for other in self.books[:index] + self.books[index + 1 :]:
                books.merge(str(id(other)), other.snapshot(), now)
        if number % 20 == 0:
            self._reports = [
                (len(engine.waiting) + len(engine.ends), engine.first_tokens, engine.prompt_tokens)
                for engine in self.engines
            ]
        elif number % 20 == 4:
            self._report(now - 0.2)

    def _request(self, name: str, now: float) -> None:
        text, books = self._random.randrange(len(TEXTS)), self._random.choice(self.books)
        if now < self._late:
            place = min(range(4), key=lambda index: len(self.engines[index].waiting))
        else:
            place = min(range(4), key=lambda index: books.load(POOL, str(index)).work)
        if now >= self._late and self._random.random() >= self._strangers:
            books.started(name, POOL, str(place), tokens(LENGTHS[text], UNLEARNED), now, length=LENGTHS[text])
        self.engines[place].waiting.append((name, self.lengths[text]))

    def _report(self, taken: float) -> None:
        for place, (running, first_tokens, prompt_tokens) in enumerate(self._reports):
            for books, learned in zip(self.books, self.learned, strict=True):
                computed = books.reconcile(POOL, str(place), running, 0, first_tokens, taken)
                learned.computed(POOL, str(place), computed, prompt_tokens)


def after_a_minute(
    tokenizer: str, pickers: int = 1, strangers: float = 0.0, seed: int = 0, late: int = 0
) -> list[Factors]:
    """Return the factors of each picker, a minute after the pickers' start."""
    minute = Minute(tokenizer, pickers, strangers, seed, late)
    for number in range(1200 + 20 * late):
        minute.step(number)
    return [learned.factors(POOL) for learned in minute.learned]


@pytest.mark.parametrize("tokenizer", ["cl100k", "tekken"])
def test_error_falls_below_eight_percent_within_a_minute(tokenizer: str) -> None:
    assert error(tokenizer, UNLEARNED) > 0.085
    (factors,) = after_a_minute(tokenizer)
    assert error(tokenizer, factors) < 0.08


@pytest.mark.parametrize("tokenizer", ["cl100k", "tekken"])
def test_each_of_several_pickers_learns_from_the_prompts_of_all(tokenizer: str) -> None:
    for factors in after_a_minute(tokenizer, pickers=3):
        assert error(tokenizer, factors) < 0.08


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_no_tokenizer_gets_worse(tokenizer: str) -> None:
    (factors,) = after_a_minute(tokenizer, seed=1)
    assert error(tokenizer, factors) < error(tokenizer, UNLEARNED) + 0.003


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_pickers_learn_if_some_requests_bypass_them(tokenizer: str) -> None:
    errors = [error(tokenizer, after_a_minute(tokenizer, strangers=0.1, seed=seed)[0]) for seed in range(8)]
    assert mean(errors) < 0.08


def test_many_requests_without_a_picker_do_little_harm() -> None:
    (factors,) = after_a_minute("deepseek", strangers=0.5)
    assert error("deepseek", factors) < 0.11


@pytest.mark.parametrize("pickers", [1, 3])
def test_pickers_that_start_during_traffic_learn_in_a_minute(pickers: int) -> None:
    errors = [
        mean(error("cl100k", factors) for factors in after_a_minute("cl100k", pickers, seed=seed, late=10))
        for seed in range(3)
    ]
    assert mean(errors) < 0.077


def compared(counts: list[float], length: PromptLength = HUNDRED) -> Factors:
    """Return the factors after 20 prompts of the same length before each count of an engine."""
    learned = LearnedLengths()
    for count in counts:
        learned.computed(POOL, "a", [length] * 20, count)
    return learned.factors(POOL)


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_factor_follows_the_counted_tokens(part: int) -> None:
    length = PromptLength(*(100.0 if index == part else 0.0 for index in range(4)))
    factors = compared([2600.0 * count for count in range(100)], length)
    assert factors[part] == pytest.approx(1.3, abs=0.02)
    assert [factor for index, factor in enumerate(factors) if index != part] == [1.0] * 3


def test_factors_stay_between_half_and_two() -> None:
    assert compared([6000.0 * count for count in range(300)])[0] == 2.0
    assert compared([count * 1e-3 for count in range(300)])[0] == 0.5


def test_an_impossible_count_changes_nothing() -> None:
    counts = [2600.0 * count for count in range(20)]
    learned = compared(counts)
    assert compared([*counts, 1e9]) == learned


def test_nothing_is_learned_from_unknown_prompts_or_counts() -> None:
    assert compared([1e6 - 1000 * count for count in range(50)]) == UNLEARNED, "the engine restarts each time"
    learned = LearnedLengths()
    for count in range(50):
        learned.computed(POOL, "a", [HUNDRED] * 2 if count % 2 else None, 1e4 * count)
        learned.computed(POOL, "b", [HUNDRED] * 20, None)
    assert learned.factors(POOL) == UNLEARNED
    assert learned.learned() == {}


def test_departed_pools_and_replicas_are_forgotten() -> None:
    learned = LearnedLengths()
    for count in range(3):
        learned.computed(POOL, "a", [HUNDRED] * 20, 2600.0 * count)
    known = learned.factors(POOL)
    learned.keep({POOL: frozenset()})
    learned.computed(POOL, "a", [HUNDRED] * 20, 1e9)
    assert learned.factors(POOL) == known != UNLEARNED, "a new replica of this name starts its counts again"
    learned.keep({})
    assert learned.factors(POOL) == UNLEARNED


def test_a_corrected_length_is_capped() -> None:
    assert tokens(PromptLength(100_000.0), Factors(2.0)) == MAX_PROMPT_TOKENS
