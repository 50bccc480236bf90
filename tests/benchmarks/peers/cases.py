"""The cases: their replicas, their requests, and the faults of one replica."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from lbctl.simulate.engine import saturated_rate
from lbctl.simulate.load import conversation, poisson
from tests.benchmarks.peers import prompts
from tests.benchmarks.peers.client import Planned
from tests.benchmarks.peers.engines import CURVE, SCALE
from tests.benchmarks.picking.traces import Arrival, sessions

PROMPT, ANSWER, _MAX_ANSWER_TOKENS = 1155.0, 117.0, 160
"""Mean lengths of requests other than chats, and the length of the longest answer, in tokens."""
MIXED_SPEEDS = (1.0, 0.4, 0.2)
"""GPUs with speeds of 5 : 2 : 1."""
_EQUAL_SPEEDS = (1.0,) * 3
_FAULT, _SETTLED = 0.2, 0.5
"""Fractions of a run: when a fault begins, and when measurement begins for a lasting fault."""
_WAVE = 10.0
"""Seconds between the starts of two bursts."""
_Speeds = tuple[float, ...]
_Arrivals = Callable[[_Speeds, float, int], list[Arrival]]
"""Arguments: speeds of the replicas, seconds of the run, seed."""


@dataclass(frozen=True, slots=True)
class Event:
    """A fault of a replica at this fraction of a run: a command to the engines with its arguments."""

    at: float
    command: str
    replica: int
    arguments: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One case, with its description on the page."""

    name: str
    description: str
    arrivals: _Arrivals
    speeds: _Speeds = MIXED_SPEEDS
    events: tuple[Event, ...] = ()
    since: float = 0.1
    """Fraction of the run after which requests are counted."""
    after: _Speeds | None = None
    """Speeds that determine the right shares. None if no shares are right, as with caches or while a replica is
    away."""


def _independent(load: float) -> _Arrivals:
    """Return Poisson arrivals of unrelated requests, at this load of the replicas without a fault."""

    def arrivals(speeds: _Speeds, seconds: float, seed: int) -> list[Arrival]:
        rate = load * sum(saturated_rate(speed, PROMPT, ANSWER, CURVE) for speed in speeds)
        trace = poisson(rate, seconds, conversation(PROMPT, 211), f"peers {seed}")
        columns = zip(trace.times, trace.prompts, trace.answers, strict=True)
        return [Arrival(at, prompt, min(answer, _MAX_ANSWER_TOKENS)) for at, prompt, answer in columns]

    return arrivals


def _burst(speeds: _Speeds, seconds: float, seed: int) -> list[Arrival]:
    """Return arrivals of which half come within a fifth of the time."""
    return [Arrival(_bunched(item.at), item.prompt, item.answer) for item in _independent(0.4)(speeds, seconds, seed)]


def _bunched(at: float) -> float:
    whole, part = divmod(at, _WAVE)
    half = _WAVE / 2
    return whole * _WAVE + (part * 0.4 if part < half else 0.4 * half + (part - half) * 1.6)


def _chat(speeds: _Speeds, seconds: float, seed: int) -> list[Arrival]:
    return sessions(1.2, SCALE * sum(speeds), seconds, seed, shared=8)


MIXED = Case("mixed 5:2:1", "Load 50 %, without faults.", _independent(0.5), after=MIXED_SPEEDS)
HALVED = Case(
    "one halved",
    "Load 40 %; after a fifth of the run, the largest replica drops to half its speed.",
    _independent(0.4),
    events=(Event(_FAULT, "throttle", 0, (0.5,)),), since=_SETTLED, after=(MIXED_SPEEDS[0] / 2, *MIXED_SPEEDS[1:]),
)  # fmt: skip
WEDGED = Case(
    "one wedged",
    "Load 40 %; after a fifth of the run, the second replica makes no progress, but its `/health` answers. Requests to "
    "it fail until this is detected, and a run takes only slightly longer than the detection.",
    _independent(0.4), events=(Event(_FAULT, "wedge", 1, (1,)),), since=_FAULT,
)  # fmt: skip
CHAT = Case(
    "chat with shared prefixes",
    "Three equal replicas; conversations of many turns with three system prompts of 4,096 tokens. Each turn contains "
    "all earlier turns.",
    _chat, _EQUAL_SPEEDS,
)  # fmt: skip
BURST = Case(
    "burst", "Load 40 %; every ten seconds, half of the requests arrive within two seconds.", _burst, after=MIXED_SPEEDS
)
KILLED = Case(
    "replica killed", "Load 40 %; the second replica dies at a fifth of the run and restarts at seven tenths.",
    _independent(0.4), events=(Event(_FAULT, "kill", 1), Event(0.7, "start", 1)), since=_FAULT,
)  # fmt: skip
CASES = (MIXED, HALVED, WEDGED, CHAT, BURST, KILLED)


def plan(case: Case, seconds: float, seed: int) -> list[Planned]:
    """Return the requests of a run as they are sent."""
    own = random.Random(seed)
    return [
        Planned(
            item.at,
            prompts.body(item.prompt, item.answer, item.blocks, f"{own.getrandbits(60):x}"),
            item.session or f"{own.getrandbits(60):x}",
        )
        for item in case.arrivals(case.speeds, seconds, seed)
    ]


def cacheable(case: Case, seconds: float, seed: int) -> float:
    """Return the fraction of prompt tokens that one unbounded cache would hold; 0 if prompts share nothing."""
    held: set[int] = set()
    hits = tokens = 0
    for item in case.arrivals(case.speeds, seconds, seed):
        blocks = item.blocks[: item.prompt // prompts.BLOCK]
        hits += min(_held(blocks, held) * prompts.BLOCK, item.prompt - 1)
        tokens += item.prompt
        held.update(blocks)
    return hits / tokens


def _held(blocks: Sequence[int], held: set[int]) -> int:
    return sum(1 for _ in takewhile(held.__contains__, blocks))
