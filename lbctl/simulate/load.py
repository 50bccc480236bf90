"""Synthetic load: Poisson arrivals of requests, single or in bursts."""

from __future__ import annotations

import math
import random
from array import array

from lbctl.simulate.lengths import Lengths
from lbctl.simulate.trace import Trace


def poisson(rate: float, seconds: float, lengths: Lengths, seed: str, *, burst: float = 1.0) -> Trace:
    """Return Poisson arrivals of requests with these lengths; perhaps there are none.

    `rate`: requests per second. `burst`: the mean number of requests that arrive together, geometrically distributed.
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
    """Return a number of requests, at least 1: each of them is the last with a probability of 1 ÷ mean."""
    return 1 if mean == 1 else 1 + int(math.log(1.0 - chance.random()) / math.log1p(-1.0 / mean))
