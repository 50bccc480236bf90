"""Fits an engine's costs to a live replica's metrics, using the differences between its counters across scrapes.

Between two scrapes, the sum and count of inter-token times give the mean iteration time, and tokens per iteration give
the number of sequences and prompt tokens. If an engine does not count iterations, the number of sequences is the mean
number of running sequences in the two scrapes. A sequence's context is estimated from the lengths of the requests that
ended during the entire observation period. The result is the costs that explain these times with the smallest relative
error. If the load was too uniform to separate the costs, they keep the reference's proportions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median

from lbctl.signals import table
from lbctl.signals.derive import computed_tokens
from lbctl.signals.devices import Selection
from lbctl.signals.source import SourceReading
from lbctl.simulate.engine import CostModel

KINDS = ("vllm", "sglang", "tgi", "trtllm", "lmdeploy", "nim")
"""Kinds of engines whose metrics are tried, in order."""
_NEEDED = ("decode_tokens", "prefill_tokens", "itl_seconds", "itl_count", "finished")
_COUNTED, _REPORTED = "iterations", "running"
"""Metrics of which at least one is required to determine the number of sequences per iteration."""
_MIN_SAMPLES = 3
"""Minimum number of intervals with generated tokens for a fit."""
_RIDGE = 1e-3
"""Weight of the reference's proportions relative to the measurement."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of a fit."""

    cost: CostModel
    error: float
    """Median relative error of the iteration time."""
    samples: int
    """Number of intervals between scrapes that the fit uses."""


@dataclass(frozen=True, slots=True)
class _Sample:
    seconds: float
    sequences: float
    prompt: float
    context: float


def reading(page: bytes, at: float) -> SourceReading | None:
    """Return the values in a metrics page, by the first engine kind with all required metrics; otherwise None."""
    for kind in KINDS:
        metrics = table(kind)
        source_reading = metrics.reading(metrics.reader().read(page), Selection(), at)
        quantities = source_reading.quantities
        if all(name in quantities for name in _NEEDED) and (_COUNTED in quantities or _REPORTED in quantities):
            return source_reading
    return None


def fit(readings: Sequence[SourceReading]) -> Calibration:
    """Return the costs that explain the readings.

    Raises ValueError if there are too few readings, or if counters restarted.
    """
    reference = CostModel()
    samples = _samples(readings)
    if len(samples) < _MIN_SAMPLES:
        raise ValueError(
            f"{len(samples)} of {max(0, len(readings) - 1)} intervals have generated tokens, but {_MIN_SAMPLES} are "
            "needed: send requests to the replica, and observe it for longer"
        )
    scale = median(item.seconds / _time(item, reference) for item in samples)
    start = [cost * scale for cost in (reference.a, reference.b, reference.c, reference.p)]
    a, b, c, p = _least_squares(samples, start)
    cost = replace(reference, a=a, b=b, c=c, p=p)
    return Calibration(cost, median(abs(_time(item, cost) / item.seconds - 1) for item in samples), len(samples))


def _samples(readings: Sequence[SourceReading]) -> list[_Sample]:
    if len(readings) < 2:
        return []
    first, last = readings[0].quantities, readings[-1].quantities
    ended = last["finished"] - first["finished"]
    answer, prompt = ((last[name] - first[name]) / ended if ended > 0 else 0.0 for name in _NEEDED[:2])
    samples = []
    for before, after in pairwise(readings):
        grown = {name: after.quantities[name] - before.quantities[name] for name in _NEEDED}
        if min(grown.values()) < 0:
            raise ValueError("its counters decreased: it restarted during the observation")
        iterations = _iterations(before, after, grown["itl_count"])
        if grown["itl_count"] <= 0 or iterations <= 0 or grown["itl_seconds"] <= 0:
            continue
        sequences = grown["itl_count"] / iterations
        samples.append(
            _Sample(
                grown["itl_seconds"] / grown["itl_count"],
                sequences,
                computed_tokens(partial(_growth, before, after)) / iterations,
                sequences * (prompt + answer / 2),
            )
        )
    return samples


def _growth(before: SourceReading, after: SourceReading, name: str) -> float | None:
    old, new = before.quantities.get(name), after.quantities.get(name)
    return new - old if old is not None and new is not None else None


def _iterations(before: SourceReading, after: SourceReading, tokens: float) -> float:
    """Return the number of iterations between two readings; 0 if unknown. `tokens`: number of inter-token times."""
    old, new = before.quantities, after.quantities
    if _COUNTED in old and _COUNTED in new:
        return new[_COUNTED] - old[_COUNTED]
    running = (old.get(_REPORTED, 0.0) + new.get(_REPORTED, 0.0)) / 2
    return tokens / running if running else 0.0


def _time(item: _Sample, cost: CostModel) -> float:
    return cost.a + cost.b * item.sequences + cost.c * item.context + cost.p * item.prompt


def _least_squares(samples: Sequence[_Sample], start: Sequence[float]) -> list[float]:
    """Return the factors ≥ 0 of (1, sequences, context, prompt) with the least squared relative error near `start`."""
    free = list(range(len(start)))
    while True:
        factors = _solve(samples, start, free)
        wrong = [place for place in free if factors[place] < 0]
        if not wrong:
            return [max(value, 1e-12) for value in factors]
        free.remove(min(wrong, key=lambda place: factors[place] / start[place]))


def _solve(samples: Sequence[_Sample], start: Sequence[float], free: Sequence[int]) -> list[float]:
    """Solve the normal equations, in units of `start`, for the costs in `free`. The others are 0."""
    rows = [
        [
            value * start[place] / item.seconds
            for place, value in enumerate((1, item.sequences, item.context, item.prompt))
        ]
        for item in samples
    ]
    ridge = _RIDGE * len(samples)
    matrix = [[sum(row[i] * row[j] for row in rows) + (ridge if i == j else 0) for j in free] for i in free]
    right = [sum(row[i] for row in rows) + ridge for i in free]
    solved = _eliminate(matrix, right)
    factors = [0.0] * len(start)
    for place, value in zip(free, solved, strict=True):
        factors[place] = value * start[place]
    return factors


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a system with a positive definite matrix by Gaussian elimination."""
    size = len(right)
    for column in range(size):
        for row in range(column + 1, size):
            factor = matrix[row][column] / matrix[column][column]
            matrix[row] = [one - factor * other for one, other in zip(matrix[row], matrix[column], strict=True)]
            right[row] -= factor * right[column]
    solved = [0.0] * size
    for row in reversed(range(size)):
        rest = sum(matrix[row][column] * solved[column] for column in range(row + 1, size))
        solved[row] = (right[row] - rest) / matrix[row][row]
    return solved
