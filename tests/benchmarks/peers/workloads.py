"""The requests of the cases, and the capacity of replicas for them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from lbctl.simulate.engine import saturated_rate
from lbctl.simulate.load import conversation, poisson
from tests.benchmarks.peers.engines import CURVE
from tests.benchmarks.picking import traces
from tests.benchmarks.picking.traces import Arrival

SEQUENCES = 64
"""Maximum number of requests in the batch of an engine."""
UNRELATED = (1155.0, 117.0)
"""Mean lengths of the prompts and answers of unrelated requests, in tokens."""
PREFIXED = (7200, 100)
"""Lengths of the requests with common prefixes."""
PREFIX_BLOCKS, PREFIXES = 12, 150
"""Length of each common prefix, and number of them."""
FLOOD = "flood"
"""Tenant that sends ten times as many requests as each other."""
TENANTS = 9
"""Number of the other tenants."""
TENANT_LIMIT = 232
"""Requests per minute of a tenant if there are limits, a tenth of the capacity."""
TENANT_BURST = 20
"""Requests of a tenant at once if there are limits."""
BURST_SECONDS = 4.0
_MAX_ANSWER_TOKENS, _MAX_LONG_ANSWER_TOKENS = 160, 400
_AGENTS = 13.0
"""Factor for the number of sessions that `traces.sessions` returns."""


def capacity(replicas: Iterable[float], prompt: float = UNRELATED[0], answer: float = UNRELATED[1]) -> float:
    """Return the requests per second of replicas that are never idle, without caches."""
    curve = replace(CURVE, sequences=SEQUENCES)
    return sum(saturated_rate(speed, prompt, answer, curve) for speed in replicas)


def unrelated(rate: float, seconds: float, seed: object, session: str | None = None) -> list[Arrival]:
    """Return Poisson arrivals of requests that have nothing in common."""
    trace = poisson(rate, seconds, conversation(UNRELATED[0], 211), f"peers {seed}")
    columns = zip(trace.times, trace.prompts, trace.answers, strict=True)
    return [Arrival(at, prompt, min(answer, _MAX_ANSWER_TOKENS), session=session) for at, prompt, answer in columns]


def prefixed(rate: float, seconds: float, seed: int) -> list[Arrival]:
    """Return Poisson arrivals of requests, each with one of the common prefixes."""
    chance, at, found = random.Random(seed), 0.0, list[Arrival]()
    while (at := at + chance.expovariate(rate)) < seconds:
        first = chance.randrange(PREFIXES) * PREFIX_BLOCKS
        found.append(Arrival(at, *PREFIXED, tuple(range(first, first + PREFIX_BLOCKS))))
    return found


def agents(seconds: float, seed: int) -> list[Arrival]:
    """Return the turns of agents with sessions. Each turn contains all earlier turns."""
    found = traces.sessions(1.0, _AGENTS, seconds, seed, shared=8)
    return [_with_short_answer(item, item.at) for item in found]


def mooncake(count: int, seed: int) -> list[Arrival]:
    """Return successive requests of Mooncake's trace, three times as fast. The parts of different seeds overlap."""
    part = traces.mooncake(1 / 3)[125 * seed :][:count]
    return [_with_short_answer(item, item.at - part[0].at) for item in part]


def burst(rate: float, seconds: float, seed: int) -> list[Arrival]:
    """Return a quarter of the rate all the time, and the whole rate after a third of the run."""
    always, more = unrelated(rate / 4, seconds, seed), unrelated(rate * 3 / 4, BURST_SECONDS, f"{seed} burst")
    return sorted([*always, *(replace(item, at=seconds / 3 + item.at) for item in more)], key=lambda item: item.at)


def tenants(rate: float, seconds: float, seed: int) -> list[Arrival]:
    """Return the requests of some tenants with this rate together, and of one with a flood. Tenants are sessions."""
    share = rate / TENANTS
    groups = [unrelated(share, seconds, f"{seed} {number}", f"t{number}") for number in range(TENANTS)]
    groups.append(unrelated(10 * share, seconds, f"{seed} {FLOOD}", FLOOD))
    return sorted([item for group in groups for item in group], key=lambda item: item.at)


def _with_short_answer(item: Arrival, at: float) -> Arrival:
    return replace(item, at=at, answer=min(item.answer, _MAX_LONG_ANSWER_TOKENS))
