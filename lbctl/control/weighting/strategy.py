"""What a weighting strategy is: a pure function from what is known of a pool's replicas to what each should get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lbctl.control.inputs import Seen
from lbctl.ir.pools import Replica, Weighting


class Estimate(NamedTuple):
    """What a strategy remembers of a replica (a named tuple: ten thousand are made at every look, and frozen
    dataclasses take four times as long). `expected` and `took`: decayed sums whose ratio is the speed; for composite
    `took` is the smoothed load. `count`: the decayed number of tokens or executions behind it. `at`: of the newest
    evidence. `acting`, `across`: the deviation from peers, from other types, has left its band."""

    expected: float = 0.0
    took: float = 0.0
    count: float = 0.0
    at: float = float("-inf")
    acting: bool = False
    across: bool = False


class Subject(NamedTuple):
    """A replica as a strategy sees it. `peers`: the same for replicas that should be equally fast for their capacity.
    `counts`: it is in, and its samples are fresh."""

    replica: Replica
    peers: tuple[str, int] | tuple[float]
    seen: Seen | None
    estimate: Estimate
    counts: bool


class Wish(NamedTuple):
    """`multiplier`: of the capacity, None where nothing is known. `signal`: the measured number (speed, load) per
    capacity; `normalised`: its logarithm against the peers, `across`: that of the peers against the pool. `slow`: it
    is outside its band on the wrong side."""

    estimate: Estimate
    multiplier: float | None
    signal: float | None = None
    normalised: float = 0.0
    across: float = 0.0
    words: str = ""
    slow: bool = False


Strategy = Callable[[Weighting, Sequence[Subject], float, float], "list[Wish]"]
"""(rules, replicas, seconds after which evidence is stale, now) → a wish each, in the same order."""
