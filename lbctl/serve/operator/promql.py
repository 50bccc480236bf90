"""PromQL metrics for an analysis: one query per pool, all evaluated for the same time.

Pool names consist of letters, digits and `. _ -`, so a name inserted for `{pool}` cannot alter the query. A value that
cannot be determined is unknown and has a reason; server responses never raise an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import aiohttp

from lbctl.control.analysis.evidence import MetricValues
from lbctl.ir.routes import AnalysisMetric
from lbctl.runtime.net.fetch import fetch
from lbctl.signals.prometheus import NoValueError, single_value

TIMEOUT = 5.0
"""Timeout for a single query, in seconds."""


async def metric_values(
    session: aiohttp.ClientSession, metrics: Iterable[AnalysisMetric], new: str, old: Mapping[str, int], at: float
) -> tuple[MetricValues, ...]:
    """Return the metrics' values for the new pool and for the old pools.

    `old` maps each pool to its share; for several old pools, the result is the mean of their values, weighted by share.
    `at`: the evaluation time, in seconds since the epoch.
    """
    return tuple(await asyncio.gather(*(_values(session, metric, new, old, at) for metric in metrics)))


async def _values(
    session: aiohttp.ClientSession, metric: AnalysisMetric, new: str, old: Mapping[str, int], at: float
) -> MetricValues:
    results = await asyncio.gather(*(_value(session, metric, pool, at) for pool in (new, *old)))
    problems = "; ".join(result for result in results if isinstance(result, str))
    of_new, *of_old = (None if isinstance(result, str) else result for result in results)
    return MetricValues(metric.name, metric.max_ratio, of_new, _mean(of_old, tuple(old.values())), problems)


async def _value(session: aiohttp.ClientSession, metric: AnalysisMetric, pool: str, at: float) -> float | str:
    """Return a pool's value, or the reason why it does not have one."""
    fetched = await fetch(session, metric.source, TIMEOUT, metric.query.replace("{pool}", pool), at)
    if fetched.reason:
        return f"{pool}: {fetched.message}"
    try:
        return single_value(fetched.body)
    except NoValueError as error:
        return f"{pool}: {error}"


def _mean(values: Iterable[float | None], shares: Iterable[int]) -> float | None:
    pairs = [(value, share) for value, share in zip(values, shares, strict=True) if value is not None]
    total = sum(share for _, share in pairs)
    return sum(value * share for value, share in pairs) / total if total else None
