"""The capacity of a fleet: a pool's engines, the stability bound Σλ < Σμ, service levels, and the search for a rate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lbctl.base.quantities import parse_duration
from lbctl.ir import load_bound
from lbctl.ir.pools import CircuitBreaker, Pool, Replica
from lbctl.simulate.engine import CostModel, saturated_rate
from lbctl.simulate.results import Latency, Summary
from lbctl.simulate.trace import Trace

_CACHE_EXPONENT = 0.86
"""Exponent that relates KV cache size to speed: 400k, 180k and 100k tokens for speeds of 5 : 2 : 1."""
_TERM = re.compile(r"\s*(ttft|tpot|total)\s+(p50|p95|p99)\s*<\s*(\S+)\s*|\s*(failed)\s*<\s*([\d.]+)\s*%\s*")


def engines_of(pool: Pool, reference: CostModel, largest: float | None = None) -> tuple[CostModel, ...]:
    """Return each replica's engine: `reference` for the capacity `largest`, and the others in proportion.

    `largest` defaults to the pool's largest capacity.
    """
    whole = max(item.capacity for item in pool.replicas) if largest is None else largest
    return tuple(_sized(reference, item.capacity / whole) for item in pool.replicas)


def faster(cost: CostModel, speed: float) -> CostModel:
    """Return an engine with a different speed but the same cache."""
    return replace(cost, a=cost.a / speed, b=cost.b / speed, c=cost.c / speed, p=cost.p / speed)


def _sized(cost: CostModel, speed: float) -> CostModel:
    """Return the engine for other GPUs, with a cache that matches their speed."""
    return replace(faster(cost, speed), cache=int(cost.cache * speed**_CACHE_EXPONENT))


def load_of(costs: Sequence[CostModel], trace: Trace) -> float:
    """Return the offered load, Σλ ÷ Σμ. At 1 or more, queues grow without limit under every algorithm.

    The result is 0 if all requests arrive at the same time, because the rate is then undefined.
    """
    return load_bound.utilisation(trace.rate, [carried(costs, trace)])


def carried(costs: Sequence[CostModel], trace: Trace) -> float:
    """Return Σμ, the number of the trace's requests per second that the engines can answer if they are never idle.

    Prompt tokens that would be in an unlimited cache are not counted.
    """
    count = len(trace.times)
    prompt, answer = sum(trace.prompts) / count, sum(trace.answers) / count
    cached = trace.repeated / count
    return sum(saturated_rate(1.0, prompt, answer, cost, cached=cached) for cost in costs)


@dataclass(frozen=True, slots=True)
class Objective:
    """A limit that belongs to a service level."""

    figure: str
    """`ttft`, `tpot`, `total` or `failed`."""
    percentile: str
    """`p50`, `p95` or `p99`; empty for `failed`."""
    limit: float
    """Limit in seconds; for `failed`, a share of requests, including rejected ones."""

    def is_met(self, summary: Summary) -> bool:
        """Return whether the figures of a replay are within the limit.

        A time limit is not met if more requests remained unanswered than the percentile allows.
        """
        if self.figure == "failed":
            return summary.unanswered < self.limit
        if summary.unanswered > 1 - int(self.percentile[1:]) / 100:
            return False
        latency: Latency = getattr(summary, self.figure)
        value: float = getattr(latency, self.percentile)
        return value < self.limit

    def __str__(self) -> str:
        if self.figure == "failed":
            return f"failed < {100 * self.limit:g}%"
        return f"{self.figure} {self.percentile} < {self.limit:g}s"


def objectives(text: str) -> tuple[Objective, ...]:
    """Parse limits such as `ttft p99 < 2s, failed < 1%`. Raises ValueError."""
    result = []
    for term in text.split(","):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(
                f"{term.strip()!r} is not a limit: use 'ttft p99 < 2s', 'tpot p95 < 50ms' or 'failed < 1%'"
            )
        if match[4]:
            result.append(Objective("failed", "", float(match[5]) / 100))
        else:
            result.append(Objective(match[1], match[2], parse_duration(match[3]) / 1000))
    return tuple(result)


def largest_rate(meets: Callable[[float], bool], start: float, precision: float = 0.02) -> float | None:
    """Return the largest multiple of the trace's rate that meets the limits, found by bisection.

    Return None if no multiple down to a 64th of `start` meets them. `start` is a multiple near the expected result.
    `meets` must be false above some multiple. The result is accurate within `precision`.
    """
    low, high = 0.0, start
    while meets(high):
        low, high = high, high * 2
    while low == 0.0:
        middle = high / 2
        if meets(middle):
            low = middle
        elif middle < start / 64:
            return None
        else:
            high = middle
    while high / low > 1 + precision:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def fewest_replicas(meets: Callable[[int], bool], start: int, most: int) -> int | None:
    """Return the smallest number of replicas that meets the limits; None if `most` are not enough."""
    low, high = 0, start
    while not meets(high):
        if high >= most:
            return None
        low, high = high, min(most, high * 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def with_replicas(pool: Pool, count: int) -> Pool:
    """Return the pool with `count` replicas: the strongest ones, or copies of all replicas in turn.

    The pool's limits are scaled in proportion.

    Drained replicas are omitted, because neither they nor their copies would get requests.
    """
    originals = sorted(serving(pool).replicas, key=lambda item: (-item.capacity, item.name))
    replicas = [
        originals[index] if index < len(originals) else _copy(originals[index % len(originals)], index)
        for index in range(count)
    ]
    ordered = tuple(sorted(replicas, key=lambda item: item.name))
    return replace(pool, replicas=ordered, circuit_breaker=_grown(pool.circuit_breaker, count / len(pool.replicas)))


def _grown(limits: CircuitBreaker, factor: float) -> CircuitBreaker:
    def times(limit: int) -> int:
        return max(1, math.ceil(limit * factor))

    return replace(
        limits,
        max_connections=times(limits.max_connections),
        max_pending_requests=times(limits.max_pending_requests),
        max_requests=times(limits.max_requests),
        max_retries=times(limits.max_retries),
    )


def _copy(original: Replica, index: int) -> Replica:
    return replace(original, name=f"{original.name}-copy{index}")


def serving(pool: Pool) -> Pool:
    """Return the pool without its drained replicas."""
    return without(pool, lambda replica: replica.drain)


def without(pool: Pool, lost: Callable[[Replica], bool]) -> Pool:
    """Return the pool without the lost replicas."""
    return replace(pool, replicas=tuple(item for item in pool.replicas if not lost(item)))
