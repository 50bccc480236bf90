"""The history of the dashboard: bounded memory, even thinning, null for unknown values."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lbctl.api import schema
from lbctl.runtime.errors import BadRequestError
from lbctl.serve.api.dashboard.history import BUDGET, METRICS, SampleHistory, interval
from lbctl.serve.api.dashboard.series import Query, series
from tests.support.dashboard import MovingFleet

HOUR = 3600.0


def rows(*values: float | None, pool: str = "p") -> list[schema.LiveReplica]:
    """Return replicas r0, r1… of a pool with these queue lengths."""
    first = next(iter(MovingFleet(3).live()))[1][0]
    return [replace(first, pool=pool, name=f"r{number}", queue=value) for number, value in enumerate(values)]


def history_of(*samples: list[schema.LiveReplica], seconds: float = HOUR) -> SampleHistory:
    """Return a history of these samples, 5 s apart from 1000 s on."""
    history = SampleHistory()
    for number, each in enumerate(samples):
        history.add(1000.0 + 5 * number, each, seconds)
    return history


def test_interval_grows_with_the_fleet_and_the_history() -> None:
    assert interval(HOUR, 1_000) == 5.0
    assert interval(600.0, 10) == 5.0
    assert 35 < interval(HOUR, 10_000) < 40
    assert interval(24 * HOUR, 10) == 120.0


@pytest.mark.parametrize("replicas", [1_000, 10_000])
def test_an_hour_of_samples_stays_within_the_budget(replicas: int) -> None:
    each = interval(HOUR, replicas)
    assert HOUR / each * replicas * len(METRICS) * 4 <= BUDGET


def test_thinning_keeps_the_first_and_the_newest_sample() -> None:
    history = SampleHistory(budget=4 * 3 * len(METRICS) * 4)  # four samples of three replicas
    for number in range(9):
        history.add(float(number), rows(1.0, 2.0, 3.0), HOUR)
    times = [item.at for item in history.samples]
    assert times[-1] == 8.0
    assert len(times) <= 4
    assert times[0] <= 2.0


def test_history_restarts_if_the_clock_is_set_back() -> None:
    history = history_of(*[rows(1.0)] * 10)
    assert history.due(40.0, HOUR, 1)
    history.add(40.0, rows(2.0), HOUR)
    assert [item.at for item in history.samples] == [40.0]


def test_samples_older_than_the_history_are_dropped() -> None:
    history = history_of(*[rows(1.0)] * 10, seconds=20.0)
    assert [item.at for item in history.samples] == [1030.0, 1035.0, 1040.0, 1045.0]
    assert not history.due(1047.0, 20.0, 1)
    assert history.due(1050.0, 20.0, 1)


def test_series_has_null_for_unknown_values_and_absent_replicas() -> None:
    history = history_of(rows(1.0), rows(2.0, None), rows(None, 4.0))
    queues = series(history.samples, Query("p", "queue", "*"))
    values = {item.replica: item.values for item in queues.replicas}
    assert values == {"r0": (1.0, 2.0, None), "r1": (None, None, 4.0)}
    assert queues.times == (1000.0, 1005.0, 1010.0)
    assert series(history.samples, Query("p", "queue", "r1")).replicas[0].values == (None, None, 4.0)


def test_pool_series_sums_counts_and_averages_ratios() -> None:
    history = history_of(rows(1.0, 2.0), rows(None, None))
    assert series(history.samples, Query("p", "queue")).total == (3.0, None)
    mean = series(history.samples, Query("p", "kv_cache")).total[0]
    assert mean == pytest.approx(rows(1.0)[0].kv_cache)
    assert series(history.samples, Query("p", "state")).total == (2.0, 2.0)
    assert series(history.samples, Query("other", "queue")).times == ()


def test_series_is_thinned_from_the_newest_sample_back() -> None:
    history = history_of(*[rows(float(number)) for number in range(10)])
    assert series(history.samples, Query("p", "queue", points=4)).total == (0.0, 3.0, 6.0, 9.0)


@pytest.mark.parametrize(
    "query", [{}, {"pool": "p"}, {"pool": "p", "metric": "colour"}, {"pool": "p", "metric": "queue", "points": "1e9"}]
)
def test_invalid_query_is_rejected_with_the_valid_values(query: dict[str, str]) -> None:
    with pytest.raises(BadRequestError, match=r"pool is missing|metric must be one of|points must be a whole number"):
        Query.parse(query)
