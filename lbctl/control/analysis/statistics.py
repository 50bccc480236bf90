"""The tests behind an analysis's verdicts: exact tail probabilities, significance levels and clusters.

Two pools are compared with the exact conditional test. If the error rates are equal, the probability that an error
belongs to the new pool is the new pool's share of the requests. The test is valid for any number of errors, even if the
old pool has none, and an outage that affects both pools equally does not change the result.

Errors occur in clusters, for example among the requests in flight when an engine restarts. `cluster_size` estimates how
many errors occur together, and the tests count clusters instead of individual errors. `slow_cluster_size` does the same
for slow requests.

A rollout is tested many times. `level` spreads a total probability of `FALSE_ALARM` over all intervals of a rollout,
however long it takes, and takes into account that several consecutive intervals must fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from lbctl.control.analysis.evidence import RequestCounts

FALSE_ALARM = 0.005
"""Maximum probability that the analysis ends a rollout even though the new pool is not worse than the old ones."""
MAX_LEVEL = 0.005
"""Maximum significance level of a single test, which limits the harm if intervals depend on one another."""
_MAX_TERM = 100.0
"""Maximum weight of a single rate change, so that one fault does not hide errors for long."""
_COMMON = 3.0
"""Change, in standard deviations, above which simultaneous changes in both pools are considered to have a common
cause."""
_PRIOR_CLUSTER, _PRIOR_TERMS = 4.0, 3
"""Cluster size assumed before any observation, and the number of changes that this assumption is weighted as."""
_NEGLIGIBLE = 1e-18
_Sides = tuple[RequestCounts, RequestCounts]
"""Numbers of requests to the new pool and to the old pools."""


def level(tests: int, failures: int) -> float:
    """Return the significance level of the test with this number, from 1, if `failures` consecutive tests must fail."""
    spent = FALSE_ALARM * 6 / (math.pi * tests) ** 2
    return min(MAX_LEVEL, math.pow(spent, 1 / failures))


def excess_over_rate(counts: RequestCounts, rate: float, cluster: float = 1.0) -> float:
    """Return the probability of at least this many errors if the true error rate is `rate`."""
    return upper_tail(math.floor(counts.errors / cluster), math.ceil(counts.requests / cluster), rate)


def excess_over_pool(new: RequestCounts, old: RequestCounts, cluster: float = 1.0) -> float:
    """Return the probability of at least this many errors in `new` if both sides have the same true error rate."""
    errors = math.floor(new.errors / cluster)
    total = errors + math.ceil(old.errors / cluster)
    return upper_tail(errors, total, new.requests / (new.requests + old.requests))


def upper_tail(successes: int, trials: int, probability: float) -> float:
    """Return P(X ≥ successes) for a binomial X."""
    if successes <= 0:
        return 1.0
    if successes > trials or probability <= 0:
        return 0.0
    if probability >= 1:
        return 1.0
    if successes <= trials * probability:
        return 1.0 - _sum(trials - successes + 1, trials, 1 - probability)
    return _sum(successes, trials, probability)


def _sum(successes: int, trials: int, probability: float) -> float:
    """Return P(X ≥ successes) for values above the mean, where the terms only decrease."""
    odds = probability / (1 - probability)
    log_term = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    term = math.exp(log_term + successes * math.log(probability) + (trials - successes) * math.log1p(-probability))
    total = 0.0
    for count in range(successes, trials + 1):
        total += term
        if term < _NEGLIGIBLE * total:
            break
        term *= (trials - count) / (count + 1) * odds
    return min(1.0, total)


def cluster_size(intervals: Sequence[tuple[RequestCounts, RequestCounts]]) -> float:
    """Return the number of errors that occur together (1 or more), estimated from changes in both pools' rates.

    Changes are used instead of deviations from a mean, so that a constantly high rate does not look like a cluster. If
    both pools change, a shared component has failed, which does not count as a cluster either. Two error-free intervals
    of a pool reveal nothing about clusters and are ignored.
    """
    terms = [term for before, after in pairwise(intervals) for term in _squared_changes(before, after)]
    mean = (sum(terms) + _PRIOR_TERMS * _PRIOR_CLUSTER) / (len(terms) + _PRIOR_TERMS)
    return max(1.0, mean)


def slow_cluster_size(changes: Sequence[tuple[_Sides, _Sides]]) -> float:
    """Return the number of slow requests that occur together (1 or more), from changes in the difference between sides.

    A change is calculated from both sides in two successive intervals.
    """
    terms = [_squared_change(before, after) for before, after in changes]
    mean = (sum(terms) + _PRIOR_TERMS * _PRIOR_CLUSTER) / (len(terms) + _PRIOR_TERMS)
    return max(1.0, mean)


def _squared_change(before: _Sides, after: _Sides) -> float:
    """Return the squared change in the difference, divided by its variance for independent requests."""
    variance = _variance(*before) + _variance(*after)
    change = _difference(*after) - _difference(*before)
    return min(_MAX_TERM, change**2 / variance) if variance else 1.0


def _difference(new: RequestCounts, old: RequestCounts) -> float:
    return (new.rate or 0.0) - (old.rate or 0.0)


def _variance(new: RequestCounts, old: RequestCounts) -> float:
    return sum(_part(side) for side in (new, old))


def _part(side: RequestCounts) -> float:
    """Return the variance of one side's rate. For a rate of 0 or 1, return the variance for half a request."""
    if not side.requests:
        return 0.0
    rate = min(max(side.rate or 0.0, 0.5 / side.requests), 1 - 0.5 / side.requests)
    return rate * (1 - rate) / side.requests


def _squared_changes(
    before: tuple[RequestCounts, RequestCounts], after: tuple[RequestCounts, RequestCounts]
) -> tuple[float, ...]:
    """Return the squared changes of both pools if they have a change, which average 1 for independent errors."""
    changes = [_change(*pool) for pool in zip(before, after, strict=True)]
    shown = [change for change in changes if change is not None]
    if len(shown) == len(changes) and (min(shown) > _COMMON or max(shown) < -_COMMON):
        return (1.0, 1.0)
    return tuple(min(_MAX_TERM, change**2) for change in shown)


def _change(before: RequestCounts, after: RequestCounts) -> float | None:
    """Return the change in the rate, in standard deviations for independent errors.

    The result is None if all requests in both intervals failed or none did, because neither case reveals anything.
    """
    requests = before.requests + after.requests
    rate = (before.errors + after.errors) / requests if requests else 0.0
    if not before.requests or not after.requests or rate in (0.0, 1.0):
        return None
    variance = rate * (1 - rate) * (1 / before.requests + 1 / after.requests)
    return (after.errors / after.requests - before.errors / before.requests) / math.sqrt(variance)
