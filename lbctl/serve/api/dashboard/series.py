"""`GET /api/v1/series`: the history of one metric for a pool or its replicas, as JSON.

The functions are pure and operate on immutable samples, so that they can run in a thread. If a series has too many
samples for a chart, it is thinned out evenly, starting from the newest sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lbctl.api import schema
from lbctl.runtime.errors import BadRequestError
from lbctl.serve.api.dashboard.history import METRICS, STATES, HistorySample

EVERY = "*"
"""Value of `replica` that selects all of the pool's replicas; replicas cannot have this name."""
_MAX_POINTS = 720
_SUMS = ("requests_per_second", "in_flight", "queue")


@dataclass(frozen=True, slots=True)
class Query:
    """A query for a metric's values."""

    pool: str
    metric: schema.SeriesMetric
    replica: str = ""
    """A replica name, `EVERY`, or an empty string for the pool as a whole."""
    points: int = 240
    """Maximum number of values in a series."""

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Query:
        """Parse a URL's query. Raises BadRequestError."""
        metric, points = values.get("metric", ""), values.get("points", "240")
        if not values.get("pool"):
            raise BadRequestError("pool is missing: /api/v1/series?pool=NAME&metric=METRIC")
        if metric not in METRICS:
            raise BadRequestError(f"metric must be one of {', '.join(METRICS)}")
        if not points.isascii() or not points.isdecimal() or not 2 <= int(points[:9]) <= _MAX_POINTS:
            raise BadRequestError(f"points must be a whole number from 2 to {_MAX_POINTS}")
        return cls(values["pool"], metric, values.get("replica", ""), int(points))


def series(samples: Sequence[HistorySample], query: Query) -> schema.Series:
    """Return the series."""
    step = -(-len(samples) // query.points) or 1
    kept = [item for item in samples[::-1][::step][::-1] if query.pool in item.layout.starts]
    return schema.Series(
        pool=query.pool,
        metric=query.metric,
        states=STATES if query.metric == "state" else (),
        times=tuple(round(item.at, 1) for item in kept),
        total=() if query.replica else tuple(_total(query, item) for item in kept),
        replicas=_replicas(query, kept) if query.replica else (),
    )


def _replicas(query: Query, samples: Sequence[HistorySample]) -> tuple[schema.ReplicaSeries, ...]:
    """Return a series for each replica in the newest sample."""
    names = samples[-1].layout.names[query.pool] if samples else ()
    wanted = tuple(name for name in names if query.replica in (EVERY, name))
    rows = zip(*(_values(query, item, wanted) for item in samples), strict=True)
    return tuple(schema.ReplicaSeries(name, row) for name, row in zip(wanted, rows, strict=True))


def _values(query: Query, sample: HistorySample, wanted: Sequence[str]) -> list[float | None]:
    values, names = sample.of_pool(query.pool, query.metric), sample.layout.names[query.pool]
    if names == wanted:
        return [_number(value) for value in values]
    by_name = dict(zip(names, values, strict=True))
    return [_number(by_name[name]) if name in by_name else None for name in wanted]


def _total(query: Query, sample: HistorySample) -> float | None:
    values = [value for value in sample.of_pool(query.pool, query.metric) if value == value]
    if not values:
        return None
    if query.metric == "state":
        return float(values.count(0.0))
    return round(sum(values) / (1 if query.metric in _SUMS else len(values)), 4)


def _number(value: float) -> float | None:
    return round(value, 4) if value == value else None
