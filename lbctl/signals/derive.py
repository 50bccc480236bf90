"""Derives signals and evidence from a source's readings: gauges directly, counters as differences of two readings.

Counters restart when the engine restarts. A counter is considered to start a new series if it is smaller than before,
or if its number of lines differs because an engine was added or a line could not be read. In this case, nothing is
derived from the two readings. Nothing is ever divided by 0: a mean requires counts, and an absent value remains absent.
For a rate, a counter that was absent from the previous page is treated as 0, because counters with labels appear with
their first event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lbctl.signals.signal import COUNTERS, RATES, SIGNALS
from lbctl.signals.source import MetricsTable, SourceReading

_STEPS = ("iterations", "decode_tokens", "prefill_tokens")
_REQUESTS = (*_STEPS, "finished", "compute_count", "batches")


@dataclass(frozen=True, slots=True)
class TimedValue:
    """A signal's value from one source."""

    value: float
    """The value, in the unit of its signal."""
    at: float
    """Time of the reading, in seconds."""


@dataclass(frozen=True, slots=True)
class TokenEvidence:
    """Counter increases between two readings from an engine that generates tokens."""

    at: float
    """Time of the reading, in seconds."""
    itl_count: float
    """Number of inter-token times."""
    itl_seconds: float
    """Sum of the inter-token times, in seconds."""
    decode_tokens: float
    """Mean number of tokens generated per step."""
    prefill_tokens: float
    """Mean number of prompt tokens computed per step."""


@dataclass(frozen=True, slots=True)
class BatchEvidence:
    """Counter increases between two readings from an engine that processes requests in batches."""

    at: float
    """Time of the reading, in seconds."""
    compute_count: float
    """Number of measurements of the time spent in the model."""
    compute_seconds: float
    """Sum of these times, in seconds."""
    items: float
    """Mean number of inputs per execution."""


Evidence = TokenEvidence | BatchEvidence


@dataclass(frozen=True, slots=True)
class DerivedSignals:
    """The signals of one reading."""

    values: Mapping[str, TimedValue]
    """Maps each signal to its value."""
    evidence: Evidence | None = None
    """New evidence in this reading, if any."""
    restarted: bool = False
    """Whether the counters have restarted."""
    by_steps: bool = False
    """Whether progress changes with each step of the engine, not only when a request ends."""
    moves: int = 0
    """Number of readings so far in which the cache usage differed from the previous reading."""


def derive(table: MetricsTable, before: SourceReading | None, after: SourceReading) -> DerivedSignals:
    """Derive the signals of a reading, given the previous reading."""
    quantities = after.quantities
    values = {name: value for name, value in quantities.items() if name in SIGNALS}
    if "cache_found" in quantities and "cache_lookups" in quantities:
        values.pop("cache_hits", None)  # this gauge covers the engine's lifetime; the counters show the present
    moves = _moves(before, after)
    progress, by_steps = _progress(table, quantities, moves)
    if progress is not None:
        values["progress"] = progress
    seconds = after.at - before.at if before else 0.0
    restarted = before is not None and _restarted(before, after)
    evidence = None
    if before is not None and seconds > 0 and not restarted:
        delta = _CounterDelta(before, after)
        first = {name: quantities[name] for name in before.absent if name in quantities}
        values |= _rates(delta, first, seconds)
        evidence = None if table.voided_by in quantities else _evidence(table, delta, after.at)
    timed = {name: TimedValue(value, after.at) for name, value in values.items()}
    return DerivedSignals(timed, evidence, restarted, by_steps, moves)


class _CounterDelta:
    """Each counter's increase between two readings; None if unknown."""

    def __init__(self, before: SourceReading, after: SourceReading) -> None:
        self._growth = {
            name: after.quantities[name] - before.quantities[name]
            for name in COUNTERS
            if name in before.quantities and name in after.quantities and _same_lines(name, before, after)
        }

    def __call__(self, name: str) -> float | None:
        return self._growth.get(name)

    def ratio(self, numerator: str, denominator: str) -> float | None:
        """Return the ratio of two counters' increases; None if the denominator did not increase."""
        growth, base = self(numerator), self(denominator)
        return growth / base if growth is not None and base else None


def _same_lines(name: str, before: SourceReading, after: SourceReading) -> bool:
    return before.lines.get(name) == after.lines.get(name)


def _restarted(before: SourceReading, after: SourceReading) -> bool:
    return any(
        after.quantities[name] < before.quantities[name]
        for name in COUNTERS
        if name in before.quantities and name in after.quantities and _same_lines(name, before, after)
    )


def _moves(before: SourceReading | None, after: SourceReading) -> int:
    if before is None:
        return 0
    used, now = before.quantities.get("kv_cache"), after.quantities.get("kv_cache")
    return before.moves + (used is not None and now is not None and used != now)


def _progress(table: MetricsTable, quantities: Mapping[str, float], moves: int) -> tuple[float | None, bool]:
    """Return a number that changes when the engine works, and whether it changes with each step.

    Finished requests are not added to steps, because even a wedged engine's requests end when clients cancel them. A
    change in cache usage is treated as progress only in addition to counters, not by itself.
    """
    if "progress" in quantities:
        return quantities["progress"], table.heartbeat == "steps"
    by_steps = "iterations" in quantities or (table.heartbeat == "steps" and "decode_tokens" in quantities)
    counters = [quantities[name] for name in (_STEPS if by_steps else _REQUESTS) if name in quantities]
    return (sum(counters) + moves, by_steps) if table.heartbeat and counters else (None, False)


def _rates(delta: _CounterDelta, first: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return the signals derived from counter differences; `first`: counters that the previous page did not contain."""
    rates = {
        "ttft": delta.ratio("ttft_seconds", "ttft_count"),
        "token_latency": delta.ratio("itl_seconds", "itl_count"),
        "cache_hits": delta.ratio("cache_found", "cache_lookups"),
    }
    for name, counter in RATES.items():
        growth = first.get(counter, delta(counter))
        rates[name] = None if growth is None else growth / seconds
    return {name: value for name, value in rates.items() if value is not None and value <= SIGNALS[name].maximum}


def _evidence(table: MetricsTable, delta: _CounterDelta, at: float) -> Evidence | None:
    if table.evidence == "tokens":
        return _of_tokens(delta, at)
    return _of_batches(delta, at) if table.evidence == "batches" else None


def _of_tokens(delta: _CounterDelta, at: float) -> TokenEvidence | None:
    count, seconds = delta("itl_count"), delta("itl_seconds")
    decode, steps = delta("decode_tokens"), delta("iterations")
    if not count or not seconds or decode is None or not steps:
        return None
    return TokenEvidence(at, count, seconds, decode / steps, computed_tokens(delta) / steps)


def computed_tokens(delta: Callable[[str], float | None]) -> float:
    """Return the number of prompt tokens that the engine computed; 0 if unknown.

    `delta` returns a counter's increase between two readings; None if unknown. Without a counter of computed tokens,
    cached tokens are subtracted from all prompt tokens. An engine may count cached tokens some seconds earlier than the
    prompt, so the difference may be negative; the result is then 0.
    """
    computed = delta("computed_tokens")
    if computed is not None:
        return computed
    return max(0.0, (delta("prefill_tokens") or 0.0) - (delta("cache_found") or 0.0))


def _of_batches(delta: _CounterDelta, at: float) -> BatchEvidence | None:
    count, seconds, items = delta("compute_count"), delta("compute_seconds"), delta.ratio("items", "batches")
    if not count or not seconds or items is None:
        return None
    return BatchEvidence(at, count, seconds, items)
