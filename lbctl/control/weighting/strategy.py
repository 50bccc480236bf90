"""What a weighting strategy is: a pure function from what is known of a pool's replicas to what each should get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lbctl.control.inputs import NEVER, Seen
from lbctl.ir.pools import Replica, Weighting
from lbctl.signals.derive import Evidence

Peers = tuple[str, int] | tuple[float]
"""(GPU, how many), or (capacity,) where no GPU is named: who should be equally fast for its capacity."""


class Estimate(NamedTuple):
    """What a strategy remembers of a replica (a named tuple: ten thousand are made at every look, and frozen
    dataclasses take four times as long). `expected` and `took`: decayed sums whose ratio is the speed; for composite
    `took` is the smoothed load. `total`: the decayed number of tokens or executions behind it. `at`: of the newest
    evidence, of this `kind`. `acting`, `across`: the deviation from peers, from other types, has left its band."""

    expected: float = 0.0
    took: float = 0.0
    total: float = 0.0
    at: float = NEVER
    acting: bool = False
    across: bool = False
    kind: type[Evidence] | None = None


Subject = tuple[Replica, Peers, Seen | None, Estimate, bool]
"""A replica as a strategy sees it, and whether it counts: it is in, and its samples are fresh."""


class Parts(NamedTuple):
    """What of a multiplier is measured `speed`, and what corrects the capacity (`room`); the rest is neither."""

    speed: float = 1.0
    room: float = 1.0


WHOLE = Parts()


class Wish(NamedTuple):
    """`multiplier`: of the capacity, None where nothing is known; `parts`: of it. `signal`: the measured number (speed,
    load) per capacity; `normalised`: its logarithm against the peers, `across`: that of the peers against the pool.
    `slow`: it is outside its band on the wrong side."""

    estimate: Estimate
    multiplier: float | None
    signal: float | None = None
    normalised: float = 0.0
    across: float = 0.0
    words: str = ""
    slow: bool = False
    parts: Parts = WHOLE


made = tuple.__new__
"""`made(Wish, (…))` with every field, in its order: a tenth of a look less than to call the class, which goes through
Python once more for each replica."""
Strategy = Callable[[Weighting, Sequence[Subject], float, float], "list[Wish]"]
"""(rules, replicas, seconds after which evidence is stale, now) → a wish each, in the same order."""
