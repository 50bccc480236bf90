"""Synthetic load: Poisson arrivals, single or in bursts, of requests with random lengths.

Lengths are lognormal or distributed as in a production service. `conversation` has the quantiles of 19,366
conversations with an Azure service within an hour in November 2023: `AzureLLMInferenceTrace_conv.csv` of
https://github.com/Azure/AzurePublicDataset (CC-BY-4.0). Lengths are interpolated between quantiles and scaled to the
requested mean. Prompt and response lengths are drawn independently, because their correlation in that trace is only
-0.11. The arrivals in the trace are nearly a Poisson process: the standard deviation of the time between two requests
is 1.09 times the mean.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from lbctl.simulate.trace import Trace

Lengths = Callable[[Random], tuple[int, int]]
"""Draws the lengths of a prompt and its response, in tokens."""
_SHARES = (*(number / 20 for number in range(20)), 0.975, 0.99, 0.999, 1.0)
"""Shares of requests that do not exceed the quantiles below."""
_PROMPTS = (
    2, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020, 1045, 1071, 1097, 1130, 1189, 1315, 1876, 2734, 4083,
    4092, 4142, 6212, 14050,
)  # fmt: skip
_ANSWERS = (
    7, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 451, 522, 601, 954, 1000,
)  # fmt: skip
_MIN_TOKENS = 2
"""Minimum length of a lognormal response, in tokens: a single token has no inter-token time."""
_STEPS = 2000
"""Number of points used to compute a distribution's mean."""
_HALVINGS = 30


@dataclass(frozen=True, slots=True)
class TenantShare:
    """One tenant's part of a load."""

    name: str
    share: float
    """Number of the tenant's requests, relative to other tenants."""
    priority: int
    """Index in `lbctl.pick.waiting.PRIORITIES`."""


def conversation(prompt: float, answer: float) -> Lengths:
    """Return lengths distributed as in the conversations, with these means in tokens.

    Each length is at least 1.
    """
    prompts, answers = _scale(_PROMPTS, prompt), _scale(_ANSWERS, answer)
    return lambda chance: (
        _tokens(prompts * _quantile(_PROMPTS, chance.random())),
        _tokens(answers * _quantile(_ANSWERS, chance.random())),
    )


def lognormal(prompt: float, answer: float, spread: float) -> Lengths:
    """Return lognormal lengths with these means, in tokens. `spread` is the standard deviation of their logarithms."""
    shift = spread**2 / 2

    def draw(chance: Random) -> tuple[int, int]:
        lengths = [math.exp(chance.gauss(math.log(mean) - shift, spread)) for mean in (prompt, answer)]
        return max(1, round(lengths[0])), max(_MIN_TOKENS, min(round(lengths[1]), round(8 * answer)))

    return draw


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the length that this share of requests (0…1) does not exceed."""
    number = min(bisect_right(_SHARES, share), len(_SHARES) - 1)
    low, high = _SHARES[number - 1], _SHARES[number]
    return values[number - 1] + (values[number] - values[number - 1]) * (share - low) / (high - low)


def _tokens(length: float) -> int:
    return max(1, round(length))


@lru_cache(maxsize=16)
def _scale(values: Sequence[float], mean: float) -> float:
    """Return the factor that gives the lengths this mean, with a minimum of one token."""
    lengths = [_quantile(values, (number + 0.5) / _STEPS) for number in range(_STEPS)]
    low, high = 0.0, 2 * mean / (sum(lengths) / _STEPS)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_short = sum(_tokens(middle * length) for length in lengths) < mean * _STEPS
        low, high = (middle, high) if is_short else (low, middle)
    return high


def poisson(rate: float, seconds: float, lengths: Lengths, seed: str, *, burst: float = 1.0) -> Trace:
    """Return Poisson arrivals of requests with these lengths. The result may be empty.

    `rate`: requests per second. `burst`: mean number of requests that arrive together, geometrically distributed.
    """
    chance = random.Random(seed)
    times, prompts, answers = array("d"), array("i"), array("i")
    now = 0.0
    while (now := now + chance.expovariate(rate / burst)) < seconds:
        for _ in range(_size(chance, burst)):
            prompt, answer = lengths(chance)
            times.append(now)
            prompts.append(prompt)
            answers.append(answer)
    return Trace(times, prompts, answers)


def _size(chance: random.Random, mean: float) -> int:
    """Return a geometrically distributed number of requests (1 or more) with this mean."""
    return 1 if mean == 1 else 1 + int(math.log(1.0 - chance.random()) / math.log1p(-1.0 / mean))


def with_tenants(trace: Trace, tenants: Sequence[TenantShare], seed: str) -> Trace:
    """Return the trace with a random tenant per request, in proportion to the shares."""
    drawn = random.Random(seed).choices(tenants, [item.share for item in tenants], k=len(trace.times))
    priorities = array("b", (item.priority for item in drawn))
    return replace(trace, tenants=[item.name for item in drawn], priorities=priorities)
